"""Greedy choice among all pairs of candidate and device, compiled: ETF takes the earliest start, min-min the earliest end.

Each device keeps its candidates in two heaps: those whose inputs arrive only after it is free, and those that it alone delays. The best of
a heap is the best of its class, so that a choice looks at 2 D entries, however many candidates there are (the idea of FLB,
Radulescu and van Gemund 1999, here for unequal devices).
"""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.queues import ENTRY, pop, push
from doppler_tf.heuristics.planning import arrival, permitted, send


@compiled
def schedule(p, position, name, by_end):
    """One schedule.

    Args:
      p: PlanningData; position: int32 [N], by descending priority, decides ties; name: int32 [N], the vertex at each position.
      by_end: whether the earliest end counts, or the earliest start.

    Inputs' arrivals are those known when a vertex becomes a candidate. Devices whose memory the outputs placed on them would exceed
    are taken only where no other is left.

    Returns:
      int32 [N] device (-1 for inputs), int32 [M] vertices in the order of choice, float64 [N] planned starts.
    """
    count, num_devices = p.exec_s.shape
    device, order, start, end = np.full(count, -1, np.int32), np.empty(count, np.int32), np.zeros(count), np.zeros(count)
    copy, link_end = np.full((count, num_devices), np.inf), np.zeros((num_devices, num_devices))
    free, memory_left, group_device = np.zeros(num_devices), p.memory_bytes.copy(), np.full(p.colocate.max() + 2, -1, np.int64)
    # Heap 2 d: inputs arrive later than d is free; heap 2 d + 1: d is the one that delays. One more entry: a vertex may come twice.
    heaps, size = np.empty((2 * num_devices, 2 * count + 1), ENTRY), np.zeros(2 * num_devices, np.int64)
    left, anyhow, fresh = np.zeros(count, np.int64), np.zeros(count, np.bool_), np.empty(count, np.int32)
    missing, chosen, news = p.missing.copy(), 0, 0
    for v in range(count):
        if missing[v] == 0:
            fresh[news] = v
            news += 1
    while True:
        while news:
            news -= 1
            v = fresh[news]
            for d in range(num_devices):
                if permitted(p, v, d, group_device):
                    left[v] += 1
                    key = arrival(p, v, d, device, end, copy, link_end) + (p.exec_s[v, d] if by_end else 0.0)
                    push(heaps[2 * d], 0, size[2 * d], key, position[v])
                    size[2 * d] += 1
        best, best_heap, best_key, best_item = -1, -1, np.inf, 0
        for d in range(num_devices):
            late, held = heaps[2 * d], heaps[2 * d + 1]
            for k in range(2 * d, 2 * d + 2):
                while size[k]:
                    v = name[heaps[k][0].item]
                    own = p.exec_s[v, d] if by_end else 0.0
                    fits = memory_left[d] >= p.output_bytes[v] or anyhow[v]
                    if device[v] < 0 and fits and permitted(p, v, d, group_device):
                        if k == 2 * d + 1 or heaps[k][0].key > free[d] + own:
                            break
                        push(held, 0, size[k + 1], own, heaps[k][0].item)
                        size[k + 1] += 1
                    elif device[v] < 0:
                        left[v] -= 1
                        if left[v] == 0:
                            anyhow[v] = True
                            fresh[news] = v
                            news += 1
                    pop(heaps[k], 0, size[k])
                    size[k] -= 1
            if size[2 * d] and (late[0].key, late[0].item) < (best_key, best_item):
                best, best_heap, best_key, best_item = d, 2 * d, late[0].key, late[0].item
            if size[2 * d + 1] and (free[d] + held[0].key, held[0].item) < (best_key, best_item):
                best, best_heap, best_key, best_item = d, 2 * d + 1, free[d] + held[0].key, held[0].item
        if news:
            continue
        if best < 0:
            break
        pop(heaps[best_heap], 0, size[best_heap])
        size[best_heap] -= 1
        v, d = name[best_item], best
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
                fresh[news] = w
                news += 1
    return device, order[:chosen], start
