"""The teacher: critical-path list scheduling with random ties."""

from __future__ import annotations

import heapq

import numba
import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.ranks import b_levels


class CriticalPath:
    """Among the candidates the one with the largest b-level, on the device where it starts earliest; ties at random.

    (The teacher of DOPPLER, Yao et al. 2026, section 4; after Graham's list scheduling.) Earliest starts come from the episode's own
    timeline: end of the device's last vertex, inputs' ends plus transfers. A device whose memory the outputs placed on it would
    exceed is avoided while another one is left.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel):
        self._graph, self._costs = graph, costs
        into, out = graph.predecessors, graph.successors
        self._b_level_s = b_levels(graph, costs).value_s
        self._arrays = (into.ptr, into.vertex, costs.explicit_transfer_s[into.edge], costs.edge_bytes[into.edge], out.ptr, out.vertex,
                        graph.is_input, costs.exec_s, costs.allowed, costs.colocate, costs.output_bytes, costs.memory_bytes,
                        costs.topology.latency_s, costs.topology.bandwidth_bytes_per_s)

    def sample(self, rng: np.random.Generator) -> Assignment:
        """One assignment with the order in which the vertices were chosen."""
        count = self._graph.num_vertices
        ranked = np.lexsort((rng.random(count), -self._b_level_s))
        rank = np.empty(count, np.int64)
        rank[ranked] = np.arange(count)
        device, order = _schedule(rank, ranked, rng.random((count, self._costs.num_devices)), *self._arrays)
        return Assignment(device, order, "critical_path")


def critical_path(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """One randomised critical-path assignment; `CriticalPath` for many of one graph."""
    return CriticalPath(graph, costs).sample(rng)


@numba.njit(cache=True)
def _schedule(rank, ranked, tie, in_ptr, producer, explicit_s, edge_bytes, out_ptr, consumer, is_input, exec_s, allowed, colocate,
              output_bytes, memory_bytes, latency_s, bandwidth):
    count, num_devices = exec_s.shape
    device, order = np.full(count, -1, np.int32), np.empty(count, np.int32)
    missing, end = np.zeros(count, np.int64), np.zeros(count)
    device_end, memory_left = np.zeros(num_devices), memory_bytes.copy()
    group_device = np.full(colocate.max() + 2, -1, np.int64)
    candidates = [np.int64(0) for _ in range(0)]
    for v in range(count):
        for i in range(in_ptr[v], in_ptr[v + 1]):
            if not is_input[producer[i]]:
                missing[v] += 1
        if missing[v] == 0 and not is_input[v]:
            heapq.heappush(candidates, rank[v])
    chosen = 0
    while len(candidates):
        v = ranked[heapq.heappop(candidates)]
        best, best_start, best_fits = -1, 0.0, False
        for d in range(num_devices):
            if not allowed[v, d] or (colocate[v] >= 0 and group_device[colocate[v]] not in (-1, d)):
                continue
            start = device_end[d]
            for i in range(in_ptr[v], in_ptr[v + 1]):
                u = producer[i]
                if is_input[u]:
                    continue
                arrival = end[u]
                if device[u] != d:
                    if np.isnan(explicit_s[i]):
                        arrival += latency_s[device[u], d] + edge_bytes[i] / bandwidth[device[u], d]
                    else:
                        arrival += explicit_s[i]
                start = max(start, arrival)
            fits = memory_left[d] >= output_bytes[v]
            better = start < best_start or (start == best_start and tie[v, d] < tie[v, best])
            if best < 0 or (fits and not best_fits) or (fits == best_fits and better):
                best, best_start, best_fits = d, start, fits
        device[v] = best
        end[v] = best_start + exec_s[v, best]
        device_end[best] = end[v]
        memory_left[best] -= output_bytes[v]
        if colocate[v] >= 0:
            group_device[colocate[v]] = best
        order[chosen] = v
        chosen += 1
        for i in range(out_ptr[v], out_ptr[v + 1]):
            w = consumer[i]
            missing[w] -= 1
            if missing[w] == 0:
                heapq.heappush(candidates, rank[w])
    return device, order[:chosen]
