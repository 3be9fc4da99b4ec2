"""Compiled list scheduling by a fixed priority. HEFT, CPoP, PEFT and FCP differ in the priority and the devices that they compare."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.queues import ENTRY, edge_cost, pop, push
from doppler_tf.heuristics.constructive.planning import arrival, fill_gap, fitting_gap, permitted, send


@compiled
def schedule(p, priority, extra, preferred, insertion, two_devices):
    """Places the candidate with the highest priority on the device where it ends soonest, until all vertices are placed.

    A device whose memory the outputs placed on it would exceed is used only if no permitted device has room.

    Args:
      p: PlanningData.
      priority: float64 [N]; ties go to the smaller index.
      extra: float64 [N, D] or [1, 1], added to the end when devices are compared.
      preferred: int32 [N], the device of a vertex if it is permitted and has memory; -1: none.
      insertion: whether a vertex may start before one that was placed earlier.
      two_devices: if possible, compares only the device that sends the last input and the device that is free first.

    Returns:
      int32 [N] device (-1 for inputs), int32 [M] vertices in the order of choice, float64 [N] planned starts.
    """
    count, num_devices = p.exec_s.shape
    device, order, start, end = np.full(count, -1, np.int32), np.empty(count, np.int32), np.zeros(count), np.zeros(count)
    copy, link_end = np.full((p.num_tensors, num_devices), np.inf), np.zeros(p.link_lane.max() + 1)
    most_gaps = count + 2 if insertion else 1
    gap_start, gap_end = np.empty((num_devices, most_gaps)), np.empty((num_devices, most_gaps))
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
        sender, first_free = -1, -1
        if two_devices:
            latest = -1.0
            for d in range(num_devices):
                if first_free < 0 or gap_start[d, 0] < gap_start[first_free, 0]:
                    first_free = d
            for i in range(p.in_ptr[v], p.in_ptr[v + 1]):
                u = p.in_edges[i].vertex
                if device[u] >= 0:
                    sent = end[u] + edge_cost(p.in_edges[i].cost, device[u], (device[u] + 1) % num_devices, p.latency_s, p.bandwidth)
                    if sent > latest:
                        latest, sender = sent, device[u]
        best, best_rank, best_end = -1, 0, np.inf
        for d in range(num_devices):
            if not permitted(p, v, d, group_device):
                continue
            # Devices with memory come first. Among them, devices that the method prefers come first.
            favoured = d == preferred[v] or (two_devices and d in (sender, first_free))
            rank = 2 * (memory_left[d] < p.output_bytes[v]) + (not favoured)
            if best >= 0 and rank > best_rank:
                continue
            ready_s = arrival(p, v, d, device, end, copy, link_end)
            _, start_s = fitting_gap(gap_start[d], gap_end[d], gaps[d], ready_s, p.exec_s[v, d])
            end_s = start_s + p.exec_s[v, d] + (extra[v, d] if len(extra) > 1 else 0.0)
            if best < 0 or rank < best_rank or end_s < best_end:
                best, best_rank, best_end = d, rank, end_s
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
