"""Compiled greedy choice among all pairs of candidate and device. ETF takes the earliest start, min-min the earliest end.

Each device keeps its candidates in two heaps. In the first, inputs arrive after the device is free. In the second, inputs arrive before.
The top of each heap is the best of its class, so that a choice compares 2 D entries, however many candidates there are. (The idea of FLB,
Radulescu and van Gemund 1999, applied to unequal devices.)
"""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.queues import ENTRY, pop, push
from doppler_tf.heuristics.constructive.planning import arrival, permitted, send


@compiled
def schedule(p, position, vertex_at, by_end):
    """Makes one schedule.

    The arrivals of a vertex's inputs are computed when it becomes a candidate, and not updated. A device whose memory the outputs placed
    on it would exceed is used only if no permitted device has room.

    Args:
      p: PlanningData.
      position: int32 [N], rank by descending priority, which breaks ties.
      vertex_at: int32 [N], the vertex at each position.
      by_end: chooses the earliest end instead of the earliest start.

    Returns:
      int32 [N] device (-1 for inputs), int32 [M] vertices in the order of choice, float64 [N] planned starts.
    """
    count, num_devices = p.exec_s.shape
    device, order, start, end = np.full(count, -1, np.int32), np.empty(count, np.int32), np.zeros(count), np.zeros(count)
    copy, link_end = np.full((p.num_tensors, num_devices), np.inf), np.zeros(p.link_lane.max() + 1)
    free, memory_left, group_device = np.zeros(num_devices), p.memory_bytes.copy(), np.full(p.colocate.max() + 2, -1, np.int64)
    # Heap 2 d: inputs arrive after d is free. Heap 2 d + 1: they arrive before. One extra entry, because a vertex may be pushed twice.
    heaps, size = np.empty((2 * num_devices, 2 * count + 1), ENTRY), np.zeros(2 * num_devices, np.int64)
    options, ignore_memory, new_candidates = np.zeros(count, np.int64), np.zeros(count, np.bool_), np.empty(count, np.int32)
    missing, chosen, num_new = p.missing.copy(), 0, 0
    for v in range(count):
        if missing[v] == 0:
            new_candidates[num_new] = v
            num_new += 1
    while True:
        while num_new:
            num_new -= 1
            v = new_candidates[num_new]
            for d in range(num_devices):
                if permitted(p, v, d, group_device):
                    options[v] += 1
                    key = arrival(p, v, d, device, end, copy, link_end) + (p.exec_s[v, d] if by_end else 0.0)
                    push(heaps[2 * d], 0, size[2 * d], key, position[v])
                    size[2 * d] += 1
        best, best_heap, best_key, best_item = -1, -1, np.inf, 0
        for d in range(num_devices):
            later, earlier = heaps[2 * d], heaps[2 * d + 1]
            for k in range(2 * d, 2 * d + 2):
                while size[k]:
                    v = vertex_at[heaps[k][0].item]
                    own = p.exec_s[v, d] if by_end else 0.0
                    fits = memory_left[d] >= p.output_bytes[v] or ignore_memory[v]
                    if device[v] < 0 and fits and permitted(p, v, d, group_device):
                        if k == 2 * d + 1 or heaps[k][0].key > free[d] + own:
                            break
                        push(earlier, 0, size[k + 1], own, heaps[k][0].item)
                        size[k + 1] += 1
                    elif device[v] < 0:
                        options[v] -= 1
                        if options[v] == 0:
                            ignore_memory[v] = True
                            new_candidates[num_new] = v
                            num_new += 1
                    pop(heaps[k], 0, size[k])
                    size[k] -= 1
            if size[2 * d] and (later[0].key, later[0].item) < (best_key, best_item):
                best, best_heap, best_key, best_item = d, 2 * d, later[0].key, later[0].item
            if size[2 * d + 1] and (free[d] + earlier[0].key, earlier[0].item) < (best_key, best_item):
                best, best_heap, best_key, best_item = d, 2 * d + 1, free[d] + earlier[0].key, earlier[0].item
        if num_new:
            continue
        if best < 0:
            break
        pop(heaps[best_heap], 0, size[best_heap])
        size[best_heap] -= 1
        v, d = vertex_at[best_item], best
        start[v] = max(free[d], send(p, v, d, device, end, copy, link_end))
        end[v] = free[d] = start[v] + p.exec_s[v, d]
        memory_left[d] -= p.output_bytes[v]
        if p.colocate[v] >= 0:
            group_device[p.colocate[v]] = d
        device[v], order[chosen] = d, v
        chosen += 1
        for i in range(p.out_ptr[v], p.out_ptr[v + 1]):
            w = p.consumer[i]
            missing[w] -= 1
            if missing[w] == 0:
                new_candidates[num_new] = w
                num_new += 1
    return device, order[:chosen], start
