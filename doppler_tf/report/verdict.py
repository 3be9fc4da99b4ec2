"""The figures reported of a trace: validity, work conservation, busy shares, causes of idle time, and the critical chain."""

from __future__ import annotations

from typing import Any

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.critical_chain import critical_chain
from doppler_tf.report.idle import CAUSES, idle_by_cause
from doppler_tf.report.utilisation import card_utilisation, device_utilisation, link_utilisation
from doppler_tf.schedule.assignment import Assignment, plan_transfers
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.offloaded import KEPT, RELOAD
from doppler_tf.schedule.trace import Trace, peak_bytes
from doppler_tf.schedule.validation import validate_trace

SHOWN_VIOLATIONS = 5
TOLERANCE_SHARE = 0.01


def judge(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, tolerance_s: float | None = None) -> dict[str, Any]:
    """The verdict on a trace.

    Times of a virtual clock and the dispatcher's own log of a real run are judged exactly. Times of a wall clock are judged with
    `tolerance_s` (default: 1% of the makespan), under `clock`. `trace_valid` is True if every report is valid. `work_conserving` comes from
    the exact report if there is one, because a thread that wakes late does not make the dispatcher's decisions wrong.
    """
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
    """Busy shares of the makespan: `busy` by device, `busy_links` by used link, `busy_cards` by used network card.

    `peak_bytes` by device, as counted in a real run, else computed from a `valid` trace, else None.
    """
    names, peaks = costs.topology.device_names, trace.peak_bytes
    if peaks is None and valid:
        peaks = peak_bytes(graph, costs, assignment, trace)
    return {"peak_bytes": None if peaks is None else dict(zip(names, peaks.tolist(), strict=True)),
            "busy": dict(zip(names, device_utilisation(costs, trace).tolist(), strict=True)),
            "busy_links": {f"{names[s]} -> {names[d]}": share for (s, d), share in link_utilisation(trace).items()},
            "busy_cards": card_utilisation(costs, trace)}


def idle(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, valid: bool) -> dict[str, Any]:
    """`idle`: idle slot seconds by device and cause (`input_s`, ...); None if the trace is not `valid`."""
    if not valid:
        return {"idle": None}
    by_device = zip(costs.topology.device_names, idle_by_cause(graph, costs, assignment, trace).tolist(), strict=True)
    return {"idle": {name: {f"{cause}_s": seconds for cause, seconds in zip(CAUSES, row, strict=True)} for name, row in by_device}}


def chain(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace, valid: bool) -> dict[str, Any]:
    """`critical_chain`: its elements from the start of the run, and their sums by kind; None if the trace is not `valid`."""
    if not valid:
        return {"critical_chain": None}
    names, elements = costs.topology.device_names, critical_chain(graph, costs, assignment, trace)
    rows = [{"kind": "transfer" if e.is_transfer else "exec", "id": graph.ids[e.vertex], "name": graph.names[e.vertex],
             "lane": f"{names[e.source]} -> {names[e.destination]}" if e.is_transfer else names[e.source],
             "start_s": e.start_s, "end_s": e.end_s, "waited_for": e.waited_for, "waiting_s": e.waiting_s} for e in elements]
    sums = {kind: sum(e.seconds for e in elements if e.is_transfer == (kind == "transfer")) for kind in ("exec", "transfer")}
    return {"critical_chain": {"exec_s": sums["exec"], "transfer_s": sums["transfer"], "waiting_s": sum(e.waiting_s for e in elements),
                               "elements": rows}}


def batch_figures(batches: Batches, trace: Trace, simulated: Trace | None = None) -> dict[str, Any]:
    """The figures of a run of several batches: their numbers, throughput and latency, and those simulated beside a real run."""
    beside = {} if simulated is None else {f"simulated_{name}": value for name, value in batches.figures(simulated).items()}
    return {"repeat": batches.repeats, "in_flight": batches.in_flight, **batches.figures(trace), **beside}


def offload_figures(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> dict[str, Any]:
    """How much crosses the links of the host, of what `offloaded` has returned; nothing for a graph without host."""
    if assignment.after is None:
        return {}
    plan, host = plan_transfers(graph, costs, assignment.device), costs.num_devices - 1
    size = costs.tensor_bytes[plan.tensor]
    return {"offload": {"reloads": graph.kinds.count(RELOAD), "kept_on_host": graph.kinds.count(KEPT), "memory_dependencies":
                        len(assignment.after), "to_host_bytes": float(size[plan.destination == host].sum()),
                        "from_host_bytes": float(size[plan.source == host].sum())}}
