"""From an assignment that does not fit to one with an `Offload`: compiled along a run without limits, then along its own runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.offload.compiler import PLANNED, Style, compile_offload
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator

# Compilations along the run of the one before.
_AGAIN = 3


def without_limits(costs: CostModel) -> CostModel:
    """The same costs on devices that hold everything."""
    topology = costs.topology
    return replace(costs, topology=replace(topology, devices=tuple(replace(each, memory_bytes=None) for each in topology.devices)))


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
