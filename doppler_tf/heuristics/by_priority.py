"""List scheduling by a fixed priority, compiled: HEFT, CPoP, PEFT and FCP differ in the priority and in the devices they weigh."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.queues import ENTRY, edge_cost, pop, push
from doppler_tf.heuristics.planning import arrival, fill_gap, fitting_gap, permitted, send


@compiled
def schedule(p, priority, extra, preferred, insertion, two_devices):
    """Of the vertices whose predecessors are placed, the one with the highest priority, where it ends soonest.

    Args:
      p: PlanningData; priority: float64 [N], ties by index.
      extra: float64 [N, D] or [1, 1], added to the end when devices are compared.
      preferred: int32 [N], the device a vertex goes to where that is allowed and has memory for it, -1: any.
      insertion: whether a vertex may start before one that was placed earlier.
      two_devices: weigh only the device from which the last input comes and the one that is free first, where either will do.

    Devices whose memory the outputs placed on them would exceed are taken only where no other is left.

    Returns:
      int32 [N] device (-1 for inputs), int32 [M] vertices in the order of choice, float64 [N] planned starts.
    """
    count, num_devices = p.exec_s.shape
    device, order, start, end = np.full(count, -1, np.int32), np.empty(count, np.int32), np.zeros(count), np.zeros(count)
    copy, link_end = np.full((count, num_devices), np.inf), np.zeros((num_devices, num_devices))
    places = count + 2 if insertion else 1
    gap_start, gap_end = np.empty((num_devices, places)), np.empty((num_devices, places))
    gap_start[:, 0], gap_end[:, 0] = 0.0, np.inf
    gaps, memory_left = np.ones(num_devices, np.int64), p.memory_bytes.copy()
    group_device = np.full(p.colocate.max() + 2, -1, np.int64)
    missing, ready, waiting, chosen = p.missing.copy(), np.empty(count, ENTRY), 0, 0
    for v in range(count):
        if missing[v] == 0:
            push(ready, 0, waiting, -priority[v], v)
            waiting += 1
    while waiting:
        v = pop(ready, 0, waiting)
        waiting -= 1
        first, second = -1, -1
        if two_devices:
            latest = -1.0
            for d in range(num_devices):
                if second < 0 or gap_start[d, 0] < gap_start[second, 0]:
                    second = d
            for i in range(p.in_ptr[v], p.in_ptr[v + 1]):
                u = p.in_edges[i].vertex
                if device[u] >= 0:
                    there = end[u] + edge_cost(p.in_edges[i].cost, device[u], (device[u] + 1) % num_devices, p.latency_s, p.bandwidth)
                    if there > latest:
                        latest, first = there, device[u]
        best, best_class, best_end = -1, 0, np.inf
        for d in range(num_devices):
            if not permitted(p, v, d, group_device):
                continue
            # What has memory comes before what has not, then what the method wants.
            wanted = d == preferred[v] or (two_devices and d in (first, second))
            rank = 2 * (memory_left[d] < p.output_bytes[v]) + (not wanted)
            if best >= 0 and rank > best_class:
                continue
            ready_s = arrival(p, v, d, device, end, copy, link_end)
            _, begin = fitting_gap(gap_start[d], gap_end[d], gaps[d], ready_s, p.exec_s[v, d])
            ends = begin + p.exec_s[v, d] + (extra[v, d] if len(extra) > 1 else 0.0)
            if best < 0 or rank < best_class or ends < best_end:
                best, best_class, best_end = d, rank, ends
        d = best
        ready_s = send(p, v, d, device, end, copy, link_end)
        k, start[v] = fitting_gap(gap_start[d], gap_end[d], gaps[d], ready_s, p.exec_s[v, d])
        end[v] = start[v] + p.exec_s[v, d]
        if insertion:
            gaps[d] = fill_gap(gap_start[d], gap_end[d], gaps[d], k, start[v], end[v])
        else:
            gap_start[d, 0] = end[v]
        memory_left[d] -= p.output_bytes[v]
        if p.colocate[v] >= 0:
            group_device[p.colocate[v]] = d
        device[v], order[chosen] = d, v
        chosen += 1
        for i in range(p.out_ptr[v], p.out_ptr[v + 1]):
            w = p.consumer[i]
            missing[w] -= 1
            if missing[w] == 0:
                push(ready, 0, waiting, -priority[w], w)
                waiting += 1
    return device, order[:chosen], start
