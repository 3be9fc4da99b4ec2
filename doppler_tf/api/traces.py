"""Simulations and stored traces, judged; what the results of runs have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler_tf.api.inputs import AssignmentLike, load_costs, load_planned
from doppler_tf.formats.chrome_trace import read_trace, write_trace
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.report.verdict import batch_figures, chain, idle, judge, offload_figures, usage
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import known_bound_s
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace


@dataclass(frozen=True, eq=False)
class Executed:
    """A run or a simulation.

    Attributes:
      figures: what the command prints with `--json`.
      graph, costs, assignment: what ran: several calls as one graph, or merged calls, where these were asked for.
      trace: of the median run.
      outputs: of the last run of kernels, arrays by tensor.
    """

    figures: Mapping[str, Any]
    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    trace: Trace
    outputs: Mapping[int, np.ndarray] | None = None


def simulated(graph: GraphLike, topology: TopologyLike | CostModel, assignment: AssignmentLike, costs: str = "given",
              dispatch: str | None = None, repeat: int | None = None, in_flight: int | None = None, trace: str | Path | None = None,
              gantt: str | Path | None = None) -> Executed:
    """Simulates under the virtual clock and judges the trace exactly. Args: as of `run`."""
    batches, graph, costs, assignment = load_planned(assignment, *load_costs(graph, topology, costs), dispatch, repeat, in_flight)
    found = Simulator().execute(graph, costs, assignment)
    figures = {"dispatch": assignment.dispatch, "transfers": len(found.producer),
               **({} if batches is None else batch_figures(batches, found))}
    return executed((graph, costs, assignment, found), figures, (), None, trace, gantt)


def stored(file: str | Path, tolerance_s: float | None = None, gantt: str | Path | None = None) -> Executed:
    """Reads a trace file and judges its trace. Args: as of `run`."""
    found = read_trace(file)
    figures = {"dispatch": found.trace.dispatch, "device_kind": found.trace.device_kind}
    return executed((found.graph, found.costs, found.assignment, found.trace), figures, (idle, chain), tolerance_s, None, gantt)


def executed(ran: tuple[DataflowGraph, CostModel, Assignment, Trace], figures: Mapping[str, Any], more: Sequence[Callable],
             tolerance_s: float | None, trace: str | Path | None, gantt: str | Path | None,
             outputs: Mapping[int, np.ndarray] | None = None) -> Executed:
    """Judges what ran, and writes its trace and a picture where there are paths for them.

    Args: figures: to add to those that all runs have; more: of `report.verdict`, to be added, too.
    """
    graph, costs, assignment, found = ran
    lower_bound_s = known_bound_s(graph, costs, assignment)
    verdict = judge(*ran, tolerance_s)
    if trace is not None:
        write_trace(trace, *ran)
    if gantt is not None:
        from doppler_tf.report.gantt import write_gantt  # here, as Matplotlib takes long to import
        write_gantt(gantt, graph, costs, found, lower_bound_s, assignment.method)
    result = {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, **figures,
              "makespan_s": found.makespan_s, "lower_bound_s": lower_bound_s, **offload_figures(graph, costs, assignment), **verdict}
    for of in (usage, *more):
        result |= of(*ran, verdict["trace_valid"])
    return Executed(result, *ran, outputs)
