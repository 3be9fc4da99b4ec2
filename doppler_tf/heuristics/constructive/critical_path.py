"""The teacher: critical-path list scheduling with random ties."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled, copy_to
from doppler_tf.fastsim.queues import ENTRY, edge_cost, pop, push
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.constructive.planning import permitted, planning_data
from doppler_tf.heuristics.mending import legal
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.ranks import b_levels

_TIES = 2.0**31


class CriticalPath:
    """Places the candidate with the largest b-level on the device where it starts earliest, with random ties.

    (The teacher of DOPPLER, Yao et al. 2026, section 4; after Graham's list scheduling.) Earliest starts come from the episode's own
    timeline: the end of the device's last vertex, and the inputs' ends plus transfers. A device whose memory the outputs placed on it would
    exceed is used only if no permitted device has room.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel):
        self._graph, self._costs, self._data = graph, costs, planning_data(graph, costs)
        self._rank = np.unique(-b_levels(graph, costs).value_s, return_inverse=True)[1]  # 0: the largest b-level

    def sample(self, rng: np.random.Generator) -> Assignment:
        """One assignment with the order in which the vertices were chosen."""
        # A tie takes 31 bits, so that the sum is exact for up to 4 million levels.
        rank = self._rank + np.floor(rng.random(len(self._rank)) * _TIES) / _TIES
        device, order = _schedule(self._data, rank, rng.random(self._costs.exec_s.shape))
        return legal(self._graph, self._costs, Assignment(device, order, "critical_path"))


@compiled
def _schedule(p, rank, device_tie):
    """Makes one schedule.

    Args:
      p: PlanningData.
      rank: float64 [N], the smallest goes first.
      device_tie: float64 [N, D], breaks ties between devices.

    Returns:
      int32 [N] device by vertex, -1 for inputs; int32 [M] vertices in the order of choice.
    """
    # In locals: in the loops below, each reading of a field of `p` would count a reference, for eight times as long.
    in_ptr, in_edges, out_ptr, consumer, exec_s, output_bytes = p.in_ptr, p.in_edges, p.out_ptr, p.consumer, p.exec_s, p.output_bytes
    latency_s, bandwidth, colocate = p.latency_s, p.bandwidth, p.colocate
    count, num_devices = p.exec_s.shape
    device, order, end = np.full(count, -1, np.int32), np.empty(count, np.int32), np.zeros(count)
    free, start, memory_left = np.zeros(num_devices), np.empty(num_devices), p.memory_bytes.copy()
    group_device = np.full(p.colocate.max() + 2, -1, np.int64)
    missing, candidates, waiting, chosen = p.missing.copy(), np.empty(count, ENTRY), 0, 0
    for v in range(count):
        if missing[v] == 0:
            push(candidates, 0, waiting, rank[v], v)
            waiting += 1
    while waiting:
        v = pop(candidates, 0, waiting)
        waiting -= 1
        copy_to(start, free)
        for i in range(in_ptr[v], in_ptr[v + 1]):
            u, cost = in_edges[i].vertex, in_edges[i].cost
            home = device[u]
            if home < 0:
                continue
            for d in range(num_devices):
                arrival = end[u]
                if d != home:
                    arrival += edge_cost(cost, home, d, latency_s, bandwidth)
                start[d] = max(start[d], arrival)
        best, best_fits = -1, False
        for d in range(num_devices):
            if not permitted(p, v, d, group_device):
                continue
            fits = memory_left[d] >= output_bytes[v]
            if best >= 0 and fits == best_fits:
                better = start[d] < start[best] or (start[d] == start[best] and device_tie[v, d] < device_tie[v, best])
            else:
                better = best < 0 or fits
            if better:
                best, best_fits = d, fits
        end[v] = free[best] = start[best] + exec_s[v, best]
        memory_left[best] -= output_bytes[v]
        if colocate[v] >= 0:
            group_device[colocate[v]] = best
        device[v], order[chosen] = best, v
        chosen += 1
        for i in range(out_ptr[v], out_ptr[v + 1]):
            w = consumer[i]
            missing[w] -= 1
            if missing[w] == 0:
                push(candidates, 0, waiting, rank[w], w)
                waiting += 1
    return device, order[:chosen]
