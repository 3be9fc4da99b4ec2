"""What is said of a trace: is it valid, is it work conserving, how busy were devices and links, why did they idle; its file and picture."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.trace import Trace

SHOWN_VIOLATIONS = 5
TOLERANCE_SHARE = 0.01
SHOWN_ELEMENTS = 20
IDLE_HEADERS = ("for input", "for link", "for memory", "overhead", "nothing left")  # as report.idle.CAUSES


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


def usage(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, valid: bool) -> dict[str, Any]:
    """Busy fractions of the makespan: `busy` by device, `busy_links` by link that carried anything; `peak_bytes` by device, as a real
    run counted them or else as the trace gives them (None where that is not `valid`)."""
    from doppler_tf.report.utilisation import device_utilisation, link_utilisation
    from doppler_tf.trace import peak_bytes

    names, peaks = costs.topology.device_names, trace.peak_bytes
    if peaks is None and valid:
        peaks = peak_bytes(graph, costs, assignment, trace)
    return {"peak_bytes": None if peaks is None else dict(zip(names, peaks.tolist(), strict=True)),
            "busy": dict(zip(names, device_utilisation(costs, trace).tolist(), strict=True)),
            "busy_links": {f"{names[s]} -> {names[d]}": share for (s, d), share in link_utilisation(trace).items()}}


def idle(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, valid: bool) -> dict[str, Any]:
    """`idle`: idle slot seconds by device and cause (`input_s`, ...); None where the trace is not `valid`."""
    if not valid:
        return {"idle": None}
    from doppler_tf.report.idle import CAUSES, idle_by_cause

    by_device = zip(costs.topology.device_names, idle_by_cause(graph, costs, assignment, trace).tolist(), strict=True)
    return {"idle": {name: {f"{cause}_s": seconds for cause, seconds in zip(CAUSES, row, strict=True)} for name, row in by_device}}


def chain(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, valid: bool) -> dict[str, Any]:
    """`critical_chain`: all its elements, from the begin of the run, and their sums by kind; None where the trace is not `valid`."""
    if not valid:
        return {"critical_chain": None}
    from doppler_tf.report.chain import critical_chain

    names, elements = costs.topology.device_names, critical_chain(graph, costs, assignment, trace)
    rows = [{"kind": "transfer" if e.is_transfer else "exec", "id": graph.ids[e.vertex], "name": graph.names[e.vertex],
             "lane": f"{names[e.source]} -> {names[e.destination]}" if e.is_transfer else names[e.source],
             "start_s": e.start_s, "end_s": e.end_s, "waited_for": e.waited_for, "waiting_s": e.waiting_s} for e in elements]
    sums = {kind: sum(e.seconds for e in elements if e.is_transfer == (kind == "transfer")) for kind in ("exec", "transfer")}
    return {"critical_chain": {"exec_s": sums["exec"], "transfer_s": sums["transfer"], "waiting_s": sum(e.waiting_s for e in elements),
                               "elements": rows}}


def device_table(result: Mapping[str, Any]) -> RenderableType:
    """Devices: their busy share and peak memory; where the result tells it, the idle slot time by cause."""
    from doppler_tf.report.tables import grid, percent, quantity, time_unit

    peaks = result["peak_bytes"] or {}
    known = {name: (name, percent(share), quantity(peaks.get(name), "B")) for name, share in result["busy"].items()}
    if result.get("idle") is None:
        return grid("", ("device", "busy", "peak memory"), list(known.values()))
    unit = time_unit([sum(causes.values()) for causes in result["idle"].values()])
    rows = [(*known[name], *map(unit.text, (sum(causes.values()), *causes.values()))) for name, causes in result["idle"].items()]
    return grid("", ("device", "busy", "peak memory", "idle", *IDLE_HEADERS), rows)


def chain_tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """The critical chain: its sums and its elements, the longest ones where they are many."""
    from doppler_tf.report.tables import facts, grid, percent, time_unit

    chain = result["critical_chain"]
    if chain is None:
        return []
    elements, whole = chain["elements"], time_unit([result["makespan_s"]])
    seconds = {kind: chain[f"{kind}_s"] for kind in ("exec", "transfer", "waiting")}
    total = sum(seconds.values()) or 1.0
    before = ["", *(element["name"] for element in elements)]
    taken = [element["end_s"] - element["start_s"] + element["waiting_s"] for element in elements]
    unit = time_unit([max(taken)])  # of a long run the makespan's digits would round them off
    shown = sorted(sorted(range(len(elements)), key=lambda i: -taken[i])[:SHOWN_ELEMENTS])
    rows = [(e["name"], e["lane"], unit.text(e["start_s"]), unit.text(e["end_s"]),
             f"{e['waited_for']} ({before[i]})" if i else e["waited_for"], unit.text(e["waiting_s"]))
            for i, e in ((i, elements[i]) for i in shown)]
    many = f", the {len(shown)} longest of {len(elements):,} elements" if len(shown) < len(elements) else ""
    return [facts("critical chain, by kind", {kind: f"{whole.text(value)}, {percent(value / total)}" for kind, value in seconds.items()}),
            grid(f"critical chain from the begin of the run{many}", ("what", "lane", "start", "end", "waited for", "waiting"), rows)]


def write_pictures(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace,
                   lower_bound_s: float) -> None:
    """Writes what `--trace` and `--gantt` ask for."""
    if getattr(args, "trace", None) is not None:
        from doppler_tf.formats.chrome_trace import write_trace

        write_trace(args.trace, graph, costs, assignment, trace)
    if args.gantt is not None:
        from doppler_tf.report.gantt import write_gantt

        write_gantt(args.gantt, graph, costs, trace, lower_bound_s, assignment.method)
