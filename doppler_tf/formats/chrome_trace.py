"""Traces in the Chrome/Perfetto JSON format; the file carries graph, topology and assignment, so that it can be checked alone.

Format: "Trace Event Format" (Google, 2016), which chrome://tracing and ui.perfetto.dev open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from doppler_tf.errors import TraceError, field_error
from doppler_tf.formats.assignment_json import assignment_from_json, assignment_to_json
from doppler_tf.formats.files import read_json, write_json
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import MOST_OUTPUTS, graph_from_records, graph_to_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.trace import DEVICE_KINDS, Trace, arrivals, memory_profiles, sums_over_time

TRACE_SCHEMA = "doppler-trace/1"
_DEVICES, _LINKS, _COUNTERS = 1, 2, 3


@dataclass(frozen=True)
class TraceFile:
    """A trace with all that is needed to check it."""

    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    trace: Trace


def write_trace(path: str | Path, graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> None:
    """Writes a trace atomically: a row a device, a row a link, flow arrows for transfers, counters for memory and queue length."""
    if trace.assignment is not None:  # devices were lost, and another assignment ran
        assignment = trace.assignment
    nodes, edges, attributes = graph_to_records(graph)
    metadata = {
        "schema": TRACE_SCHEMA, "device_kind": trace.device_kind, "dispatch": trace.dispatch, "makespan_s": trace.makespan_s,
        "graph": {"nodes": nodes, "edges": edges, "graph": attributes}, "topology": costs.topology.to_json(),
        "costs": {"exec_s": costs.exec_s.tolist(),
                  "transfer_s": [None if np.isnan(x) else x for x in costs.explicit_transfer_s.tolist()]},
        "assignment": assignment_to_json(graph, costs, assignment, trace.makespan_s),
        "log": None if trace.log is None else _times(trace.log), "lost": list(trace.lost),
        **{name: None if peaks is None else peaks.tolist() for name, peaks in _peaks(trace).items()},
    }
    events = [*_names(costs), *_vertex_events(graph, trace), *_transfer_events(graph, costs, trace),
              *_memory_counters(graph, costs, assignment, trace), *_queue_counters(graph, costs, assignment, trace)]
    write_json(path, {"displayTimeUnit": "ms", "metadata": metadata, "traceEvents": events})


def read_trace(path: str | Path) -> TraceFile:
    """Reads a trace file and rebuilds graph, costs, assignment and trace from it alone.

    Raises:
      FormatError, TraceError: not a trace file of ours, or fields are missing.
    """
    record, where = read_json(path), str(path)
    metadata = record.get("metadata") if isinstance(record, Mapping) else None
    schema = metadata.get("schema") if isinstance(metadata, Mapping) else None
    if schema != TRACE_SCHEMA:
        raise field_error(TraceError, where, "", "metadata.schema", TRACE_SCHEMA, schema, "write it with the 'run' or 'simulate' command")
    try:
        stored = metadata["graph"]
        graph = graph_from_records(stored["nodes"], stored["edges"], stored["graph"], where)
        built = build_costs(graph, Topology.from_json(metadata["topology"], where))
        costs = replace(built, exec_s=_costs(metadata["costs"]["exec_s"], built.exec_s.shape, optional=False),
                        explicit_transfer_s=_costs(metadata["costs"]["transfer_s"], built.explicit_transfer_s.shape, optional=True))
        assignment = assignment_from_json(metadata["assignment"], graph, built, where)
        vertices = [e["args"] for e in record["traceEvents"] if e.get("cat") == "vertex"]
        transfers = [e["args"] for e in record["traceEvents"] if e.get("cat") == "transfer"]
        limits = graph.num_vertices, built.num_devices
        outputs = np.diff(graph.tensor_ptr)
        kind, rule, log = str(metadata["device_kind"]), str(metadata["dispatch"]), metadata.get("log")
        if kind not in DEVICE_KINDS or rule not in (*DISPATCH_RULES, "levels"):
            raise ValueError(f"device_kind {kind!r}, dispatch {rule!r}")
        trace = _trace(vertices, transfers, limits, rule, kind,
                       None if log is None else _trace(log["vertices"], log["transfers"], limits, rule, kind))
        if (trace.output >= outputs[trace.producer]).any():
            raise ValueError("output of a vertex that has not so many")
        trace = replace(trace, lost=tuple(int(d) for d in metadata.get("lost", ())), graph=graph, costs=costs,
                        **{name: _bytes(metadata.get(name), built.num_devices) for name in _peaks(trace)})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise TraceError(f"{where}: expected a complete {TRACE_SCHEMA} file, got {error!r} while reading it; write it again") from None
    return TraceFile(graph, costs, assignment, trace)


def _peaks(trace: Trace) -> dict[str, np.ndarray | None]:
    return {"peak_bytes": trace.peak_bytes, "peak_tensor_bytes": trace.peak_tensor_bytes}


def _bytes(values: list | None, devices: int) -> np.ndarray | None:
    """Bytes by device; None where a run has not counted them."""
    if values is None:
        return None
    counted = np.array(values, np.float64)
    if counted.shape != (devices,) or not (np.isfinite(counted) & (counted >= 0)).all():
        raise ValueError(f"bytes {values!r}, expected {devices} numbers >= 0")
    return counted


def _costs(values: list, shape: tuple[int, ...], optional: bool) -> np.ndarray:
    """Seconds as a run used them; null (if `optional`) where the link decides."""
    table = np.array(values, np.float64)
    if table.shape != shape or not (((table >= 0) & np.isfinite(table)) | (optional & np.isnan(table))).all():
        raise ValueError(f"costs of shape {table.shape}, expected finite ones of {shape}")
    return table


def _trace(vertices: list, transfers: list, limits: tuple[int, int], dispatch: str, device_kind: str, log: Trace | None = None) -> Trace:
    def index(rows: list, key: str, limit: int) -> np.ndarray:
        values = [row[key] for row in rows]
        if not all(type(x) is int and 0 <= x < limit for x in values):
            raise ValueError(f"{key} outside 0 to {limit - 1}")
        return np.array(values, np.int32)

    def times(rows: list, key: str) -> np.ndarray:
        return np.array([float(row[key]) for row in rows], np.float64)

    count, devices = limits
    return Trace(index(vertices, "vertex", count), index(vertices, "device", devices), times(vertices, "start_s"),
                 times(vertices, "end_s"), index(transfers, "producer", count), index(transfers, "source", devices),
                 index(transfers, "destination", devices), times(transfers, "start_s"), times(transfers, "end_s"),
                 dispatch, device_kind, log, output=index([{"output": 0, **row} for row in transfers], "output", MOST_OUTPUTS))


def _times(trace: Trace) -> dict:
    vertices = zip(trace.vertex.tolist(), trace.device.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), strict=True)
    transfers = zip(trace.producer.tolist(), trace.output.tolist(), trace.source.tolist(), trace.destination.tolist(),
                    trace.transfer_start_s.tolist(), trace.transfer_end_s.tolist(), strict=True)
    return {"vertices": [{"vertex": v, "device": d, "start_s": s, "end_s": e} for v, d, s, e in vertices],
            "transfers": [{"producer": p, **({"output": k} if k else {}), "source": a, "destination": b, "start_s": s, "end_s": e}
                          for p, k, a, b, s, e in transfers]}


def _names(costs: CostModel) -> list[dict]:
    names = costs.topology.device_names
    rows = [(_DEVICES, 0, "process_name", "devices"), (_LINKS, 0, "process_name", "links"), (_COUNTERS, 0, "process_name", "counters")]
    rows += [(_DEVICES, d, "thread_name", name) for d, name in enumerate(names)]
    rows += [(_LINKS, s * len(names) + d, "thread_name", f"{a} -> {b}")
             for s, a in enumerate(names) for d, b in enumerate(names) if s != d]
    return [{"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}} for pid, tid, kind, name in rows]


def _span(pid: int, tid: int, name: str, category: str, args: dict) -> dict:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": args["start_s"] * 1e6, "dur": (args["end_s"] - args["start_s"]) * 1e6,
            "name": name, "cat": category, "args": args}


def _vertex_events(graph: DataflowGraph, trace: Trace) -> list[dict]:
    return [_span(_DEVICES, row["device"], graph.names[row["vertex"]], "vertex", row) for row in _times(trace)["vertices"]]


def _transfer_events(graph: DataflowGraph, costs: CostModel, trace: Trace) -> list[dict]:
    """A span on the link, and a flow arrow from the producer over the link to the first consumer at the destination."""
    device_of = dict(zip(trace.vertex.tolist(), trace.device.tolist(), strict=True))
    start_of = dict(zip(trace.vertex.tolist(), trace.start_s.tolist(), strict=True))
    end_of = dict(zip(trace.vertex.tolist(), trace.end_s.tolist(), strict=True))
    first_use: dict[tuple[int, int, int], float] = {}
    for p, k, v in zip(graph.sources.tolist(), graph.edge_output.tolist(), graph.targets.tolist(), strict=True):
        if v in device_of:
            key = (p, k, device_of[v])
            first_use[key] = min(first_use.get(key, np.inf), start_of[v])
    events = []
    for i, row in enumerate(_times(trace)["transfers"]):
        p, source, destination = row["producer"], row["source"], row["destination"]
        link = source * costs.num_devices + destination
        events.append(_span(_LINKS, link, graph.names[p], "transfer", row))
        flow = {"cat": "flow", "name": "transfer", "id": i}
        events.append({**flow, "ph": "s", "pid": _DEVICES, "tid": source, "ts": end_of.get(p, row["start_s"]) * 1e6})
        events.append({**flow, "ph": "t", "pid": _LINKS, "tid": link, "ts": row["start_s"] * 1e6})
        events.append({**flow, "ph": "f", "bp": "e", "pid": _DEVICES, "tid": destination,
                       "ts": first_use.get((p, row.get("output", 0), destination), row["end_s"]) * 1e6})
    return events


def _counter(name: str, time_s: float, series: str, value: float) -> dict:
    return {"ph": "C", "pid": _COUNTERS, "tid": 0, "name": name, "ts": time_s * 1e6, "args": {series: value}}


def _memory_counters(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[dict]:
    return [_counter(f"memory {costs.topology.device_names[d]}", t, "bytes", used)
            for d, profile in enumerate(memory_profiles(graph, costs, assignment, trace))
            for t, used in zip(profile.time_s.tolist(), profile.used_bytes.tolist(), strict=True)]


def _queue_counters(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[dict]:
    """Ready vertices that wait on each device: +1 when the last input is resident, -1 at the start."""
    start, resident = np.zeros(graph.num_vertices), np.zeros(graph.num_vertices)
    start[trace.vertex], resident[trace.vertex] = trace.start_s, trace.end_s
    arrived, ready = arrivals(graph, trace), np.zeros(graph.num_vertices)
    for p, t, v in zip(graph.sources.tolist(), graph.edge_tensor.tolist(), graph.targets.tolist(), strict=True):
        ready[v] = max(ready[v], arrived.get((t, int(assignment.device[v])), resident[p]))
    events = []
    for d, name in enumerate(costs.topology.device_names):
        members = np.flatnonzero(assignment.device == d)
        times, length = sums_over_time(np.concatenate([ready[members], start[members]]), np.repeat([1, -1], len(members)))
        events += [_counter(f"ready {name}", t, "vertices", int(n)) for t, n in zip(times.tolist(), length.tolist(), strict=True)]
    return events
