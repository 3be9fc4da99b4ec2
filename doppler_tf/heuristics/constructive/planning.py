"""The planned timeline that all list schedulers share, compiled: when inputs arrive, which gap fits a vertex, what it then occupies.

A device runs one vertex at a time in the plan, whatever its slots. A tensor is sent to a device once; where links carry a limited
number at once, transfers queue in the order in which they are planned. Plans are estimates: the simulator judges the assignment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.compiled import inner
from doppler_tf.fastsim.queues import edge_cost, edge_records
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment


class PlanningData(NamedTuple):
    """Graph and costs as the compiled schedulers read them.

    Edges: `in_edges` EDGE [E] by consumer, `consumer` int32 [E] by producer, `in_ptr`, `out_ptr` int64 [N + 1]. `missing` int32 [N]:
    edges from work vertices, -1 for inputs. `link_share`: the part of a link that a transfer takes, 0 where links never wait.
    `link_lane` int32 [D, D]: the lane of each link.
    """

    in_ptr: np.ndarray
    in_edges: np.ndarray
    out_ptr: np.ndarray
    consumer: np.ndarray
    missing: np.ndarray
    exec_s: np.ndarray
    allowed: np.ndarray
    colocate: np.ndarray
    output_bytes: np.ndarray
    memory_bytes: np.ndarray
    latency_s: np.ndarray
    bandwidth: np.ndarray
    link_share: float
    link_lane: np.ndarray
    num_tensors: int


def planning_data(graph: DataflowGraph, costs: CostModel) -> PlanningData:
    """Arrays of one graph on one topology."""
    missing = np.bincount(graph.targets[graph.work_edges], minlength=graph.num_vertices).astype(np.int32)
    missing[graph.is_input] = -1
    into, out, topology = graph.predecessors, graph.successors, costs.topology
    share = 0.0 if topology.link_slots is None else 1.0 / topology.link_slots
    return PlanningData(into.ptr, edge_records(graph, into, costs), out.ptr, out.vertex, missing, np.ascontiguousarray(costs.exec_s),
                        costs.allowed, costs.colocate, costs.output_bytes, costs.memory_bytes, costs.planned_latency_s,
                        topology.bandwidth_bytes_per_s, share, topology.lanes, graph.num_tensors)


def planned(schedule: tuple[np.ndarray, np.ndarray, np.ndarray], method: str) -> Assignment:
    """An assignment in order of planned starts; schedule: device int32 [N], order of choice int32 [M], starts float64 [N]."""
    device, order, start_s = schedule
    return Assignment(device, order[np.argsort(start_s[order], kind="stable")], method)


@inner
def permitted(p, v, d, group_device):
    """Whether pins and the group of v let it go to device d."""
    return p.allowed[v, d] and (p.colocate[v] < 0 or group_device[p.colocate[v]] in (-1, d))


@inner
def arrival(p, v, d, device, end, copy, link_end):
    """When the inputs of v are on device d; copy: float64 [T, D] arrivals of tensors (infinite: not sent), link_end: by lane."""
    return _arrival(p, v, d, device, end, copy, link_end, False)


@inner
def send(p, v, d, device, end, copy, link_end):
    """Plans the transfers of those inputs of v that device d lacks; returns when all inputs have arrived. Arguments: as of `arrival`."""
    return _arrival(p, v, d, device, end, copy, link_end, True)


@inner(inline="always")  # a call would take a third longer
def _arrival(p, v, d, device, end, copy, link_end, sends):
    latest = 0.0
    for i in range(p.in_ptr[v], p.in_ptr[v + 1]):
        u, tensor = p.in_edges[i].vertex, p.in_edges[i].tensor
        source = device[u]
        if source < 0:
            continue
        there = end[u]
        if source != d:
            cost = edge_cost(p.in_edges[i].cost, source, d, p.latency_s, p.bandwidth)
            if copy[tensor, d] == np.inf:
                there = max(there, link_end[p.link_lane[source, d]])
                if sends and p.link_share > 0:
                    link_end[p.link_lane[source, d]] = there + cost * p.link_share
                there += cost
            else:
                there = max(copy[tensor, d], there + cost)
            if sends:
                copy[tensor, d] = there
        latest = max(latest, there)
    return latest


@inner
def fitting_gap(gap_start, gap_end, count, ready, duration):
    """Index and start of the first gap of one device (`count` of them, sorted, the last without end) that holds `duration`."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        if gap_end[middle] < ready:
            low = middle + 1
        else:
            high = middle
    while max(gap_start[low], ready) + duration > gap_end[low]:
        low += 1
    return low, max(gap_start[low], ready)


@inner
def fill_gap(gap_start, gap_end, count, k, start, stop):
    """Takes [start, stop) out of gap k; returns the new number of gaps."""
    left, right = start > gap_start[k], stop < gap_end[k]
    if left and right:
        for i in range(count, k + 1, -1):
            gap_start[i], gap_end[i] = gap_start[i - 1], gap_end[i - 1]
        gap_start[k + 1], gap_end[k + 1] = stop, gap_end[k]
        gap_end[k] = start
        return count + 1
    if left:
        gap_end[k] = start
    elif right:
        gap_start[k] = stop
    else:
        for i in range(k, count - 1):
            gap_start[i], gap_end[i] = gap_start[i + 1], gap_end[i + 1]
        return count - 1
    return count
