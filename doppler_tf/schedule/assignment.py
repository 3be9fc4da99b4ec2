"""Which vertex goes to which device, in which order it was decided, and the transfers that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from doppler_tf.errors import AssignmentError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

DISPATCH_RULES = ("fifo", "b_level", "order")
# Where one rule is asked for: the fastest for each assignment.
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Assignment:
    """A device for every vertex that is not an input.

    Attributes:
      device: int32 [N], -1 for input vertices.
      order: int32 [M], the work vertices in the sequence in which they were chosen, or None.
      method: what made it.
      dispatch: the rule by which devices and links choose among what waits: `fifo`, `b_level` or `order`.
      priority: float64 [N], for the rule `order`: the smallest is taken first; values of inputs are ignored. None: the position in `order`.
      proven_bound_s: no assignment of its graph on its topology is faster, whatever its rule, as a search has proved. 0: none has.
      after: int32 [K, 2], pairs of events: the second starts after the first has ended. Event v < N is vertex v, event N + i transfer i of
        `plan_transfers`. They hold memory back for what has been planned (see `offloaded`). None: no pairs.
      offload: what is kept on the host for a while, where the graph does not fit in its devices. None: nothing.
    """

    device: np.ndarray
    order: np.ndarray | None = None
    method: str = ""
    dispatch: str = "fifo"
    priority: np.ndarray | None = None
    proven_bound_s: float = 0.0
    after: np.ndarray | None = None
    offload: Offload | None = None


class Load(NamedTuple):
    """A tensor that comes from the host: to a device for some of its consumers there, or, without consumers, to stay on the host."""

    tensor: int
    device: int
    consumers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Offload:
    """What goes to the host and comes back, and what frees the memory for it, for one assignment.

    Attributes:
      loads: load i is vertex N + i of the graph with host (see `offloaded`).
      after: as `Assignment.after`, in that graph.
    """

    loads: tuple[Load, ...]
    after: np.ndarray


def what_runs(assignment: Assignment) -> tuple:
    """Devices, rule, the priority if the rule is `order`, and what a plan adds: equal for assignments that run alike."""
    order, plan = assignment.order if assignment.priority is None else assignment.priority, assignment.offload
    return (np.asarray(assignment.device, np.int32).tobytes(), assignment.dispatch,
            order.tobytes() if assignment.dispatch == "order" and order is not None else b"",
            b"" if assignment.after is None else assignment.after.tobytes(), plan and (plan.loads, plan.after.tobytes()))


@dataclass(frozen=True, eq=False)
class Transfers:
    """The transfers that an assignment causes: each tensor once to each other device that has consumers of it.

    Attributes:
      tensor, producer, source, destination: int32 [transfers]; sorted by (tensor, destination).
      cost_s: float64 [transfers], the largest among the tensor's edges to the consumers there.
      of_edge: int32 [E], the transfer that carries an edge, -1 where none is needed.
    """

    tensor: np.ndarray
    producer: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    cost_s: np.ndarray
    of_edge: np.ndarray


def plan_transfers(graph: DataflowGraph, costs: CostModel, device: np.ndarray) -> Transfers:
    """The transfers that follow from `device` (int [N]), by the rules of time: once per destination."""
    source, target = device[graph.sources], device[graph.targets]
    crossing = np.flatnonzero(~graph.is_input[graph.sources] & (source != target))
    keys, inverse = np.unique(graph.edge_tensor[crossing].astype(np.int64) * costs.num_devices + target[crossing],
                              return_inverse=True)
    cost = np.zeros(len(keys))
    np.maximum.at(cost, inverse, costs.transfer_s(crossing, source[crossing], target[crossing]))
    of_edge = np.full(graph.num_edges, -1, np.int32)
    of_edge[crossing] = inverse
    tensor = (keys // costs.num_devices).astype(np.int32)
    producer = graph.tensor_producer[tensor]
    return Transfers(tensor, producer, device[producer].astype(np.int32), (keys % costs.num_devices).astype(np.int32), cost, of_edge)


def check_devices(graph: DataflowGraph, costs: CostModel, devices: np.ndarray) -> None:
    """Raises AssignmentError unless `devices` (int [..., N]) holds an existing device for every vertex that is not an input."""
    if np.shape(devices)[-1:] != (graph.num_vertices,) or devices.dtype.kind not in "iu":
        raise AssignmentError(f"{graph.name}: device: expected integers of shape [..., {graph.num_vertices}] (one a vertex), "
                              f"got {devices.dtype} of shape {list(np.shape(devices))}; is it made for another graph?")
    assigned = devices[..., graph.work_vertices]
    wrong = np.argwhere((assigned < 0) | (assigned >= costs.num_devices))
    if wrong.size:
        v = int(graph.work_vertices[wrong[0][-1]])
        raise AssignmentError(f"{graph.name}: vertex {graph.ids[v]!r}: device: expected 0 to {costs.num_devices - 1} "
                              f"({costs.topology.name} has {costs.num_devices} devices), got {assigned[tuple(wrong[0])]}")


def runnable(graph: DataflowGraph, costs: CostModel, devices: np.ndarray) -> np.ndarray:
    """bool [...]: whether every vertex is on a device that can run it, and links exist for all transfers. Args: devices: int [..., N]."""
    able, linked, work = np.True_, costs.topology.linked, graph.work_vertices
    if not costs.eligible.all():
        able = costs.eligible[work, devices[..., work]].all(axis=-1)
    if not linked.all():
        sources, targets = graph.sources[graph.work_edges], graph.targets[graph.work_edges]
        able = able & linked[devices[..., sources], devices[..., targets]].all(axis=-1)
    return np.broadcast_to(able, devices.shape[:-1])


def check_runnable(graph: DataflowGraph, costs: CostModel, device: np.ndarray, where: str) -> None:
    """Raises AssignmentError where `device` (int [N]) is not `runnable`."""
    names, work, edges = costs.topology.device_names, graph.work_vertices, graph.work_edges
    unable = work[~costs.eligible[work, device[work]]]
    if unable.size:
        v = int(unable[0])
        able = ", ".join(names[d] for d in np.flatnonzero(costs.eligible[v]))
        raise AssignmentError(f"{where}: vertex {graph.ids[v]!r}: device: expected one that can run it ({able}), got "
                              f"{names[device[v]]!r}, where its exec_s is null")
    missing = edges[~costs.topology.linked[device[graph.sources[edges]], device[graph.targets[edges]]]]
    if missing.size:
        u, v = int(graph.sources[missing[0]]), int(graph.targets[missing[0]])
        more = f"; {missing.size - 1:,} more edges need links that do not exist" if missing.size > 1 else ""
        raise AssignmentError(f"{where}: edge {graph.ids[u]!r} -> {graph.ids[v]!r}: device: expected devices that are linked, got "
                              f"{names[device[u]]!r} and {names[device[v]]!r}, between which {costs.topology.name} has no link in this "
                              f"direction{more}; move one of the vertices")


def assignment_from_devices(graph: DataflowGraph, costs: CostModel, devices: Sequence, order: Sequence | None = None,
                            method: str = "", where: str = "assignment") -> Assignment:
    """Checks a list of device indices in node order (None for inputs) and makes an Assignment.

    Args:
      devices: N entries; for inputs anything is ignored but must be None or an integer.
      order: the M work vertices (indices), each once and after its predecessors, or None.
      where: what messages call the source.

    Raises:
      AssignmentError: wrong length, a device that does not exist or is not an integer, a broken pin or group, a bad order.
    """
    if len(devices) != graph.num_vertices:
        raise AssignmentError(f"{where}: device: expected {graph.num_vertices} entries (one a vertex of {graph.name}), got {len(devices)}; "
                              f"is it made for another graph?")
    device = [-1] * graph.num_vertices
    for v, (d, is_input) in enumerate(zip(devices, graph.is_input.tolist(), strict=True)):
        if is_input and d is None:
            continue
        if isinstance(d, bool) or not isinstance(d, int | np.integer):
            raise field_error(AssignmentError, where, f"vertex {graph.ids[v]!r}", "device", "an integer", d,
                              "only input vertices may be null")
        if is_input:
            continue
        if not 0 <= d < costs.num_devices:
            raise AssignmentError(f"{where}: vertex {graph.ids[v]!r}: device: expected 0 to {costs.num_devices - 1} "
                                  f"({costs.topology.name} has {costs.num_devices} devices), got {d}")
        device[v] = d
    checked = np.array(device, np.int32)
    check_constraints(graph, costs, checked, where)
    return Assignment(checked, None if order is None else _check_order(graph, order, where), method)


def as_assignment(graph: DataflowGraph, costs: CostModel, given: Assignment | Sequence) -> Assignment:
    """The assignment that a caller means: itself, or a list of device indices in node order. Raises AssignmentError: it does not fit."""
    if isinstance(given, list | tuple | np.ndarray):
        return assignment_from_devices(graph, costs, given)
    if not isinstance(given, Assignment):
        raise field_error(AssignmentError, graph.name, "", "assignment", "an Assignment or a list of device indices", given,
                          "what `place` returns has one as `.assignment`")
    check_devices(graph, costs, np.asarray(given.device))
    return given


def check_constraints(graph: DataflowGraph, costs: CostModel, device: np.ndarray, where: str) -> None:
    """Raises AssignmentError where `device` (int [N]) cannot run, breaks a pin or splits a colocation group."""
    work = graph.work_vertices
    check_runnable(graph, costs, device, where)
    broken = work[~costs.allowed[work, device[work]]]
    if broken.size:
        v = int(broken[0])
        raise AssignmentError(f"{where}: vertex {graph.ids[v]!r}: device: expected one of {np.flatnonzero(costs.allowed[v]).tolist()} "
                              f"(its pin or that of its colocate group), got {device[v]}")
    members = work[costs.colocate[work] >= 0]
    group = costs.colocate[members]
    lowest, highest = np.full(len(graph.groups), costs.num_devices), np.full(len(graph.groups), -1)
    np.minimum.at(lowest, group, device[members])
    np.maximum.at(highest, group, device[members])
    split = np.flatnonzero(lowest < highest)
    if split.size:
        used = np.unique(device[members[group == split[0]]])
        raise AssignmentError(f"{where}: colocate group {graph.groups[split[0]]!r}: device: expected one device for the whole group, "
                              f"got {used.tolist()}")


def _check_order(graph: DataflowGraph, order: Sequence, where: str) -> np.ndarray:
    work = graph.work_vertices
    integers = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in order)
    if not integers or sorted(order) != work.tolist():
        raise AssignmentError(f"{where}: order: expected each of the {work.size} vertices that are not inputs once, "
                              f"got {len(order)} entries{'' if integers else ', not all of them integers'}; drop 'order' or mend it")
    order = np.asarray(order)
    position = np.full(graph.num_vertices, -1)
    position[order] = np.arange(order.size)
    bad = np.flatnonzero(position[graph.sources] > position[graph.targets])
    if bad.size:
        e = int(bad[0])
        raise AssignmentError(f"{where}: vertex {graph.ids[graph.targets[e]]!r}: order: expected it after its predecessor "
                              f"{graph.ids[graph.sources[e]]!r}, got it before")
    return order.astype(np.int32)
