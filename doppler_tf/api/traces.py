"""Simulations and stored traces, judged; what the results of runs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler_tf.api.inputs import AssignmentLike, load_costs, load_planned
from doppler_tf.assignment import Assignment
from doppler_tf.bounds import known_bound_s
from doppler_tf.costs import CostModel
from doppler_tf.formats.chrome_trace import read_trace, write_trace
from doppler_tf.given import GraphLike, TopologyLike
from doppler_tf.graph import DataflowGraph
from doppler_tf.report.gantt import write_gantt
from doppler_tf.report.verdict import batch_figures, chain, idle, judge, usage
from doppler_tf.simulator import Simulator
from doppler_tf.trace import Trace


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
    lower_bound_s = known_bound_s(graph, costs, assignment)
    ran = graph, costs, assignment, found
    write_pictures(*ran, lower_bound_s, trace, gantt)
    figures = {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "dispatch": assignment.dispatch,
               "makespan_s": found.makespan_s, "lower_bound_s": lower_bound_s, "transfers": len(found.producer),
               **({} if batches is None else batch_figures(batches, found)), **judge(*ran), **usage(*ran, valid=True)}
    return Executed(figures, *ran)


def stored(file: str | Path, tolerance_s: float | None = None, gantt: str | Path | None = None) -> Executed:
    """Reads a trace file and judges its trace. Args: as of `run`."""
    found = read_trace(file)
    graph, costs, assignment, trace = ran = found.graph, found.costs, found.assignment, found.trace
    lower_bound_s = known_bound_s(graph, costs, assignment)
    write_pictures(*ran, lower_bound_s, None, gantt)
    verdict = judge(*ran, tolerance_s)
    judged = *ran, verdict["trace_valid"]
    figures = {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "dispatch": trace.dispatch,
               "device_kind": trace.device_kind, "makespan_s": trace.makespan_s, "lower_bound_s": lower_bound_s,
               **verdict, **usage(*judged), **idle(*judged), **chain(*judged)}
    return Executed(figures, *ran)


def write_pictures(graph: DataflowGraph, costs: CostModel, assignment: Assignment, ran: Trace, lower_bound_s: float,
                   trace: str | Path | None, gantt: str | Path | None) -> None:
    """Writes the trace and the picture of a run, where there are paths for them."""
    if trace is not None:
        write_trace(trace, graph, costs, assignment, ran)
    if gantt is not None:
        write_gantt(gantt, graph, costs, ran, lower_bound_s, assignment.method)
