"""What is said of a trace: is it valid, is it work conserving, how busy were devices and links; and its file and picture."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.trace import Trace

SHOWN_VIOLATIONS = 5
TOLERANCE_SHARE = 0.01


def judge(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, tolerance_s: float | None = None) -> dict[str, Any]:
    """The verdict on a trace.

    A virtual clock, and of a wall clock the dispatcher's own log, are judged exactly; wall-clock times with `tolerance_s` (default: 1% of
    the makespan), under `clock`. `trace_valid` asks all of them, `work_conserving` the exact one where there is one: a thread that wakes
    late does not make the dispatcher's decisions wrong.
    """
    from doppler_tf.validation import validate_trace

    exact = clock = None
    if trace.log is not None or trace.device_kind == "virtual":
        exact = validate_trace(graph, costs, assignment, trace.log or trace)
    if trace.device_kind != "virtual":
        tolerance_s = TOLERANCE_SHARE * trace.makespan_s if tolerance_s is None else tolerance_s
        clock = validate_trace(graph, costs, assignment, trace, tolerance_s)
    reports = [report for report in (exact, clock) if report is not None]
    found = [violation for report in reports for violation in report.violations] or list(reports[0].idle)
    return {
        "trace_valid": all(report.valid for report in reports), "work_conserving": reports[0].work_conserving,
        "violations": len(found), "first_violations": [f"{v.kind}: {v.message}" for v in found[:SHOWN_VIOLATIONS]],
        "clock": None if clock is None else {"tolerance_s": tolerance_s, "valid": clock.valid, "work_conserving": clock.work_conserving},
    }


def utilisation(costs: CostModel, trace: Trace) -> dict[str, Any]:
    """Busy fractions of the makespan: `busy` by device, `busy_links` by link that carried anything."""
    from doppler_tf.report.utilisation import device_utilisation, link_utilisation

    names = costs.topology.device_names
    return {"busy": dict(zip(names, device_utilisation(costs, trace).tolist(), strict=True)),
            "busy_links": {f"{names[s]} -> {names[d]}": share for (s, d), share in link_utilisation(trace).items()}}


def write_pictures(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace,
                   lower_bound_s: float) -> None:
    """Writes what `--trace` and `--gantt` ask for."""
    if getattr(args, "trace", None) is not None:
        from doppler_tf.formats.chrome_trace import write_trace

        write_trace(args.trace, graph, costs, assignment, trace)
    if args.gantt is not None:
        from doppler_tf.report.gantt import write_gantt

        write_gantt(args.gantt, graph, costs, trace, lower_bound_s, assignment.method)
