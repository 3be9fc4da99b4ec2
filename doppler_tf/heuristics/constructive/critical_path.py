"""The teacher: critical-path list scheduling with random ties."""

from __future__ import annotations

import threading

import numpy as np

from doppler_tf.fastsim.compiled import compiled, copy_to
from doppler_tf.fastsim.queues import ENTRY, edge_cost, edge_records, pop, push
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.mending import legal
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.ranks import b_levels

_TIES = 2.0**31
# One cache line per vertex, because cache misses dominate the time of a schedule of a large graph. `missing` is -1 for inputs.
_VERTEX = np.dtype([("rank", np.float64), ("end", np.float64), ("exec_s", np.float64), ("output_bytes", np.float64),
                    ("first_in", np.int32), ("last_in", np.int32), ("first_out", np.int32), ("last_out", np.int32),
                    ("missing", np.int32), ("device", np.int32), ("name", np.int32)], align=True)


class CriticalPath:
    """Places the candidate with the largest b-level on the device where it starts earliest, with random ties.

    (The teacher of DOPPLER, Yao et al. 2026, section 4; after Graham's list scheduling.) Earliest starts come from the episode's own
    timeline: the end of the device's last vertex, and the inputs' ends plus transfers. A device whose memory the outputs placed on it would
    exceed is used only if no permitted device has room.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel):
        level_s = b_levels(graph, costs).value_s
        # Vertices are stored in the order of their b-levels, because they are chosen almost in this order.
        name = np.argsort(-level_s, kind="stable").astype(np.int32)
        vertices = np.zeros(graph.num_vertices, _VERTEX)
        vertices["rank"] = np.cumsum(np.diff(level_s[name], prepend=level_s[name[:1]]) != 0)
        vertices["exec_s"], vertices["output_bytes"] = costs.exec_s[name, 0], costs.output_bytes[name]
        incoming = np.bincount(graph.targets[graph.work_edges], minlength=graph.num_vertices)
        vertices["missing"], vertices["device"], vertices["name"] = np.where(graph.is_input, -1, incoming)[name], -1, name
        position = np.empty(graph.num_vertices, np.int32)
        position[name] = np.arange(graph.num_vertices)
        edges = []
        for adjacency, first, last in ((graph.predecessors, "first_in", "last_in"), (graph.successors, "first_out", "last_out")):
            degree = np.diff(adjacency.ptr)[name]
            vertices[last] = np.cumsum(degree)
            vertices[first] = vertices[last] - degree
            at = np.repeat(adjacency.ptr[name] - vertices[first], degree) + np.arange(graph.num_edges)
            records = edge_records(graph, adjacency, costs)[at]
            records["vertex"] = position[records["vertex"]]
            edges.append(records)
        uniform = bool((costs.exec_s == costs.exec_s[:, :1]).all())
        constrained = bool((costs.colocate >= 0).any() or not costs.allowed.all())
        self._graph, self._costs, self._lock = graph, costs, threading.Lock()
        # Every sample reuses these arrays. Allocating them would cost more than filling them.
        self._device_tie, self._vertices = np.empty((graph.num_vertices, costs.num_devices)), np.empty_like(vertices)
        self._arrays = (vertices, edges[0], edges[1]["vertex"].copy(), uniform, costs.exec_s, constrained, costs.allowed, costs.colocate,
                        costs.memory_bytes, costs.planned_latency_s, costs.topology.bandwidth_bytes_per_s)

    def sample(self, rng: np.random.Generator) -> Assignment:
        """One assignment with the order in which the vertices were chosen."""
        with self._lock:
            choice_tie = rng.random(len(self._vertices))
            device, order = _schedule(choice_tie, rng.random(out=self._device_tie), self._vertices, *self._arrays)
        return legal(self._graph, self._costs, Assignment(device, order, "critical_path"))


@compiled
def _schedule(choice_tie, device_tie, vertices, prepared, in_edges, consumer, uniform, exec_s, constrained, allowed, colocate, memory_bytes,
              latency_s, bandwidth):
    """Makes one schedule.

    Args:
      choice_tie: float64 [N], breaks ties between vertices of equal b-level; device_tie: float64 [N, D], between devices.
      vertices: _VERTEX [N], overwritten.
      prepared: _VERTEX [N], sorted by b-level; its rank numbers the b-levels, from 0 for the largest.
      in_edges, consumer: EDGE [E] and int32 [E]; their vertices are positions in `prepared`. All other arrays are by vertex.
      uniform: whether all devices are equally fast; constrained: whether there are pins or groups.

    Returns:
      int32 [N] device by vertex, -1 for inputs; int32 [M] vertices in the order of choice.
    """
    count, num_devices = exec_s.shape
    device, order = np.full(count, -1, np.int32), np.empty(count, np.int32)
    device_end, start, memory_left = np.zeros(num_devices), np.empty(num_devices), memory_bytes.copy()
    group_device = np.full(colocate.max() + 2, -1, np.int64)
    candidates, waiting, chosen = np.empty(count, ENTRY), 0, 0
    for p in range(count):
        vertices[p] = prepared[p]
        vertex = vertices[p]
        # The tie takes 31 bits, so that the sum is exact for up to 4 million levels.
        vertex.rank += np.floor(choice_tie[vertex.name] * _TIES) / _TIES
        if vertex.missing == 0:
            push(candidates, 0, waiting, vertex.rank, p)
            waiting += 1
    while waiting:
        p = pop(candidates, 0, waiting)
        vertex = vertices[p]
        waiting -= 1
        v = vertex.name
        copy_to(start, device_end)
        for i in range(vertex.first_in, vertex.last_in):
            before, cost = vertices[in_edges[i].vertex], in_edges[i].cost
            if before.device < 0:
                continue
            for d in range(num_devices):
                arrival = before.end
                if d != before.device:
                    arrival += edge_cost(cost, before.device, d, latency_s, bandwidth)
                start[d] = max(start[d], arrival)
        best, best_fits = -1, False
        for d in range(num_devices):
            if constrained and (not allowed[v, d] or (colocate[v] >= 0 and group_device[colocate[v]] not in (-1, d))):
                continue
            fits = memory_left[d] >= vertex.output_bytes
            if best >= 0 and fits == best_fits:
                better = start[d] < start[best] or (start[d] == start[best] and device_tie[v, d] < device_tie[v, best])
            else:
                better = best < 0 or fits
            if better:
                best, best_fits = d, fits
        vertex.device = best
        vertex.end = start[best] + (vertex.exec_s if uniform else exec_s[v, best])
        device_end[best] = vertex.end
        memory_left[best] -= vertex.output_bytes
        if constrained and colocate[v] >= 0:
            group_device[colocate[v]] = best
        device[v], order[chosen] = best, v
        chosen += 1
        for i in range(vertex.first_out, vertex.last_out):
            after = vertices[consumer[i]]
            after.missing -= 1
            if after.missing == 0:
                push(candidates, 0, waiting, after.rank, consumer[i])
                waiting += 1
    return device, order[:chosen]
