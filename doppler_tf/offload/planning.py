"""From an assignment that does not fit to one with an `Offload`: compiled along a run without limits, then along its own runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.offload.compiler import PLANNED, Style, compile_offload
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.memory import MORE_MEMORY, needed_bytes
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator

# Compilations along the run of the one before.
_AGAIN = 3


def without_limits(costs: CostModel) -> CostModel:
    """The same costs on devices that hold everything."""
    topology = costs.topology
    return replace(costs, topology=replace(topology, devices=tuple(replace(each, memory_bytes=None) for each in topology.devices)))


def roomy(graph: DataflowGraph, costs: CostModel) -> CostModel:
    """The costs without limits, where a vertex may only be on devices that hold its inputs and outputs, with all of its group.

    Raises:
      DeadlockError: a group for which there is no such device.
    """
    fits = needed_bytes(graph, costs)[:, None] <= costs.memory_bytes
    allowed, members = costs.allowed & (fits | graph.is_input[:, None]), np.flatnonzero((graph.colocate >= 0) & ~graph.is_input)
    common = np.ones((len(graph.groups), costs.num_devices), bool)
    np.logical_and.at(common, graph.colocate[members], allowed[members])
    nowhere = np.flatnonzero(~common.any(axis=1))
    if nowhere.size:
        raise DeadlockError(f"{graph.name}: colocate group {graph.groups[nowhere[0]]!r}: no device that its vertices may use holds each of "
                            f"them with its inputs and outputs; {MORE_MEMORY}")
    allowed[members] = common[graph.colocate[members]]
    return replace(without_limits(costs), allowed=allowed)


def crossing_bound_s(graph: DataflowGraph, costs: CostModel) -> float:
    """No run is faster, as inputs for which there is no room at the start have to cross the links from the host."""
    topology, host = costs.topology, costs.topology.host
    used = np.unique(graph.edge_tensor[graph.is_input[graph.sources]])
    crossing_bytes = costs.tensor_bytes[used].sum() - costs.memory_bytes.sum()
    if crossing_bytes <= 0 or topology.link_slots is None:
        return 0.0
    bandwidth = topology.with_host.bandwidth_bytes_per_s[-1, :-1]
    return float(crossing_bytes / ((bandwidth.max() if host.shared else bandwidth.sum()) * topology.link_slots))


def plan_offload(graph: DataflowGraph, costs: CostModel, assignment: Assignment, style: Style = PLANNED) -> tuple[float, Assignment]:
    """Simulated seconds, and the assignment with an `Offload`.

    Raises:
      DeadlockError: as `compile_offload`.
    """
    bare = replace(assignment, offload=None, after=None)
    start_s = _starts(graph, Simulator().execute(graph, without_limits(costs), bare))
    best: tuple[float, Assignment] | None = None
    for _ in range(1 + _AGAIN):
        planned = compile_offload(graph, costs, bare, start_s, style)
        trace = Simulator().execute(*offloaded(graph, costs, planned))
        if best is not None and trace.makespan_s >= best[0]:
            break
        best, start_s = (trace.makespan_s, planned), _starts(graph, trace)
    return best


def _starts(graph: DataflowGraph, trace) -> np.ndarray:
    start_s = np.zeros(graph.num_vertices)
    mine = trace.vertex < graph.num_vertices
    start_s[trace.vertex[mine]] = trace.start_s[mine]
    return start_s
