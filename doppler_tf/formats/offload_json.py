"""The fields `after` and `offload` of `doppler-assignment/1`: what waits for which ends, and what is kept on the host for a while."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from doppler_tf.errors import AssignmentError, field_error
from doppler_tf.formats.files import plain
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph, longest_paths
from doppler_tf.schedule.assignment import Assignment, Load, Offload, plan_transfers
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schema import check

_Index = Annotated[int, Meta(ge=0, lt=2**31)]
_Pairs = Annotated[list[Annotated[list[_Index], Meta(min_length=2, max_length=2)]], Meta(description="a list of pairs of integers >= 0")]
_Loads = Annotated[list[tuple[_Index, _Index, list[_Index]]], Meta(description="a list of [tensor, device, [consumers]]")]


def offload_to_json(costs: CostModel, assignment: Assignment) -> dict:
    """The record of an assignment's plan. It names the host that it was made for."""
    host = costs.topology.host
    return {"host": None if host is None else host.to_json(), **_plan(assignment.offload), "digest": _digest(assignment)}


def _plan(plan: Offload) -> dict:
    return {"loads": [[load.tensor, load.device, list(load.consumers)] for load in plan.loads], "after": plan.after.tolist()}


def _digest(assignment: Assignment) -> str:
    """SHA-256 of what together keeps limits: devices, loads and what waits for what. Without one of its pairs a plan may run out of memory
    in some order alone, which no simulation would tell."""
    return hashlib.sha256(json.dumps({"device": assignment.device.tolist(), **_plan(assignment.offload)}).encode()).hexdigest()


def offload_from_json(record: object, graph: DataflowGraph, costs: CostModel, assignment: Assignment, where: str) -> Offload:
    """Checks a plan for `assignment`.

    Raises:
      AssignmentError: it is none, was made for another host, its loads do not fit the graph and the devices, or it was changed.
    """
    if not isinstance(record, Mapping) or not {"host", "loads", "after", "digest"} >= set(record):
        raise field_error(AssignmentError, where, "", "offload", "an object of host, loads, after, digest", record)
    host = costs.topology.host
    if host is None or record.get("host") != plain(host.to_json()):
        raise field_error(AssignmentError, where, "", "offload.host", f"that of {costs.topology.name} ({host and plain(host.to_json())})",
                          record.get("host"), "it was made for another host: place again")
    check(record.get("loads"), _Loads, AssignmentError, where, "", "offload.loads")
    users = dict[int, set[int]]()
    for t, v in zip(graph.edge_tensor.tolist(), graph.targets.tolist(), strict=True):
        users.setdefault(t, set()).add(v)
    loads, taken = [], set[tuple[int, int]]()
    for i, (t, d, consumers) in enumerate(record["loads"]):
        pairs = {(t, v) for v in consumers}
        if (t >= graph.num_tensors or d >= costs.num_devices or not users.get(t, set()) >= set(consumers) or taken & pairs
                or len(pairs) < len(consumers) or any(assignment.device[v] != d for v in consumers)):
            raise field_error(AssignmentError, where, f"load {i}", "offload.loads", "a tensor, a device, and consumers of it there, each "
                              "once", record["loads"][i], "it was made for another graph or other devices: place again")
        taken |= pairs
        loads.append(Load(t, d, tuple(consumers)))
    plan = Offload(tuple(loads), np.empty((0, 2), np.int32))
    made, wide, planned = offloaded(graph, costs, replace(assignment, offload=plan))
    plan = replace(plan, after=after_from_json(record.get("after"), made, wide, planned.device, where, "offload.after"))
    if record.get("digest") != (digest := _digest(replace(assignment, offload=plan))):
        raise field_error(AssignmentError, where, "", "offload.digest", f"{digest[:12]}..., of device, loads and after",
                          record.get("digest"), "the plan was changed after it was made, and may not keep limits any more: place again")
    return plan


def after_from_json(record: object, graph: DataflowGraph, costs: CostModel, device: np.ndarray, where: str,
                    name: str = "after") -> np.ndarray:
    """int32 [K, 2]: pairs of events.

    Raises:
      AssignmentError: they are none, or events would wait for each other in a circle.
    """
    check(record, _Pairs, AssignmentError, where, "", name)
    pairs = np.array(record, np.int64).reshape(-1, 2)
    transfers = plan_transfers(graph, costs, device)
    events = graph.num_vertices + len(transfers.tensor)
    wrong = np.flatnonzero(((pairs >= events) | np.isin(pairs, np.flatnonzero(graph.is_input))).any(axis=1))
    if wrong.size:
        raise field_error(AssignmentError, where, f"pair {wrong[0]}", name, f"vertices that are not inputs, and transfers, below {events}",
                          pairs[wrong[0]].tolist(), "it was made for another graph or other devices: place again")
    moved = transfers.of_edge >= 0
    number = graph.num_vertices + transfers.of_edge
    first = np.concatenate([pairs[:, 0], np.where(moved, number, graph.sources), transfers.producer])
    then = np.concatenate([pairs[:, 1], graph.targets, graph.num_vertices + np.arange(len(transfers.tensor))])
    if (longest_paths(first, then, events) < 0).any():
        raise field_error(AssignmentError, where, "", name, "pairs by which nothing waits for itself", "a circle", "place again")
    return pairs.astype(np.int32)
