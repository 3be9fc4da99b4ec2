"""The assignment format `doppler-assignment/1`, and bare lists of device indices."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from doppler_tf.errors import AssignmentError, Described, TopologyError, field_error, shown
from doppler_tf.formats.files import read_json, write_json
from doppler_tf.formats.offload_json import after_from_json, offload_from_json, offload_to_json
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment, assignment_from_devices
from doppler_tf.schedule.memory import size_text
from doppler_tf.schema import refuse_slips

ASSIGNMENT_SCHEMA = "doppler-assignment/1"
_FIELDS = ("schema", "graph_hash", "topology_hash", "device", "device_names", "order", "dispatch", "priority", "batches", "makespan_s",
           "method", "proven_bound_s", "after", "offload", "memory_bytes")


def assignment_to_json(graph: DataflowGraph, costs: CostModel, assignment: Assignment, makespan_s: float | None = None) -> dict:
    """The record of an assignment for `graph` on `costs.topology`."""
    priority, limits = assignment.priority, _limits(costs)
    return {
        "schema": ASSIGNMENT_SCHEMA, "graph_hash": graph.graph_hash, "topology_hash": costs.topology.topology_hash,
        "device": [None if d < 0 else d for d in assignment.device.tolist()], "device_names": list(costs.topology.device_names),
        "order": None if assignment.order is None else assignment.order.tolist(), "dispatch": assignment.dispatch,
        **({} if priority is None else {"priority": [None if d < 0 else int(x) if x.is_integer() else x for d, x in
                                                     zip(assignment.device.tolist(), priority.tolist(), strict=True)]}),
        "makespan_s": makespan_s, "method": assignment.method,
        **({"proven_bound_s": assignment.proven_bound_s} if assignment.proven_bound_s else {}),
        **({} if assignment.after is None else {"after": assignment.after.tolist()}),
        **({} if assignment.offload is None else {"offload": offload_to_json(costs, assignment)}),
        **({} if limits is None else {"memory_bytes": limits}),
    }


def assignment_from_json(record, graph: DataflowGraph, costs: CostModel, where: str = "assignment") -> Assignment:
    """Checks a record (an object of the format or a bare list of device indices) against graph and topology.

    A `proven_bound_s` counts only beside the hashes of both, which fix the costs that it was proved for.

    Raises:
      AssignmentError: made for another graph or topology, or it does not fit; the message says what came and what was expected.
    """
    if isinstance(record, list):
        return assignment_from_devices(graph, costs, record, where=where)
    if not isinstance(record, Mapping) or record.get("schema", ASSIGNMENT_SCHEMA) != ASSIGNMENT_SCHEMA:
        raise field_error(AssignmentError, where, "", "schema", f"{ASSIGNMENT_SCHEMA} or a bare list of device indices", record)
    refuse_slips(record, _FIELDS, AssignmentError, where)
    if not isinstance(record.get("device"), list):
        raise field_error(AssignmentError, where, "", "device", "a list in node order", record.get("device"))
    for key, expected, name in (("graph_hash", graph.graph_hash, f"graph {graph.name}"),
                                ("topology_hash", costs.topology.topology_hash, f"topology {costs.topology.name}")):
        if record.get(key) not in (None, expected):
            if key == "topology_hash":
                _refuse_other_limits(record, costs, where)
            other = "graph, or with other --costs" if key == "graph_hash" else "topology"
            raise AssignmentError(f"{where}: {key}: expected {expected[:12]!r}... ({name}), got {shown(record[key])[:14]}...; it was made "
                                  f"for another {other}: place again, or pass its 'device' as a bare list")
    order = record.get("order")
    if order is not None and not isinstance(order, list):
        raise field_error(AssignmentError, where, "", "order", "a list of vertex indices or null", order)
    method = record.get("method") or ""
    if not isinstance(method, str):
        raise field_error(AssignmentError, where, "", "method", "a string or null", method)
    dispatch = record.get("dispatch")
    if dispatch is None:
        if record.get("priority") is not None:
            raise field_error(AssignmentError, where, "", "dispatch", "'order' beside a priority", None)
        dispatch = "fifo"
    if dispatch not in DISPATCH_RULES:
        raise field_error(AssignmentError, where, "", "dispatch", f"one of {', '.join(DISPATCH_RULES)}", dispatch)
    assignment = assignment_from_devices(graph, costs, record["device"], order, method, where)
    bound_s = _bound_s(record, where)
    read = replace(assignment, dispatch=dispatch, priority=_priority(graph, record.get("priority"), where), proven_bound_s=bound_s)
    if record.get("after") is not None:
        read = replace(read, after=after_from_json(record["after"], graph, costs, read.device, where))
    if record.get("offload") is not None:
        read = replace(read, offload=offload_from_json(record["offload"], graph, costs, read, where))
    return read


def _limits(costs: CostModel) -> list[float | None] | None:
    """The limits of the devices' memory; None if there are none."""
    return [device.memory_bytes for device in costs.topology.devices] if costs.limited_memory else None


def _refuse_other_limits(record: Mapping, costs: CostModel, where: str) -> None:
    """Raises AssignmentError if nothing but the limits of memory differs from the topology that a record was made for."""
    made = record.get("memory_bytes")
    with contextlib.suppress(TopologyError):
        if costs.topology.with_memory(made).topology_hash == record["topology_hash"]:
            raise field_error(AssignmentError, where, "", "memory_bytes", Described(f"{_sizes(_limits(costs))}, as the devices of "
                              f"{costs.topology.name} have"), Described(_sizes(made)), "it was made with other limits of memory: "
                              f"{f'give --memory {_sizes(made)}' if made and None not in made else 'leave out --memory'}, or place again")


def _sizes(limits: list[float | None] | None) -> str:
    """Limits of memory as `--memory` takes them."""
    each = ["none" if x is None else size_text(x).replace(" bytes", "B").replace(" ", "") for x in limits or [None]]
    return each[0] if len({*each}) == 1 else ",".join(each)


def _bound_s(record: Mapping, where: str) -> float:
    """The bound that a search has proved, 0 for none. Raises AssignmentError unless it is a number of seconds."""
    bound_s = record.get("proven_bound_s")
    if bound_s is None:
        return 0.0
    if isinstance(bound_s, bool) or not isinstance(bound_s, int | float) or not 0 <= bound_s <= sys.float_info.max:
        raise field_error(AssignmentError, where, "", "proven_bound_s", "a number of seconds >= 0 or null", bound_s)
    return float(bound_s) if record.get("graph_hash") and record.get("topology_hash") else 0.0


def _priority(graph: DataflowGraph, values, where: str) -> np.ndarray | None:
    """float64 [N]. Raises AssignmentError unless `values` is None, or a list with a number for each vertex that is not an input."""
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != graph.num_vertices:
        raise field_error(AssignmentError, where, "", "priority", f"a list of {graph.num_vertices} entries in node order, or null",
                          len(values) if isinstance(values, list) else values)
    for v in graph.work_vertices.tolist():
        number = not isinstance(values[v], bool) and isinstance(values[v], int | float)
        if not number or not -sys.float_info.max <= values[v] <= sys.float_info.max:
            raise field_error(AssignmentError, where, f"vertex {graph.ids[v]!r}", "priority", "a finite number, smallest first", values[v])
    return np.array([0.0 if is_input else float(x) for x, is_input in zip(values, graph.is_input.tolist(), strict=True)])


def read_assignment(path: str | Path, graph: DataflowGraph, costs: CostModel) -> Assignment:
    """Reads an assignment file made for `graph` and `costs.topology`. Raises FormatError, AssignmentError."""
    return assignment_from_json(read_json(path), graph, costs, str(path))


def write_assignment(path: str | Path, graph: DataflowGraph, costs: CostModel, assignment: Assignment, makespan_s: float | None = None,
                     batches: int | None = None) -> None:
    """Writes an assignment file atomically. Args: batches: how many calls `graph` joins; None for an ordinary graph."""
    record = assignment_to_json(graph, costs, assignment, makespan_s)
    write_json(path, record if batches is None else {**record, "batches": batches})
