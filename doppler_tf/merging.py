"""Vertices that a device runs one after the other become one call, so that fewer calls have to be handed over.

A run costs some tens of microseconds for each call, and operations within one call are fused by TensorFlow. But a call takes all its
inputs at its start and gives all its outputs at its end. So vertices are merged where no device waits longer for that by simulation.
What results is a graph like any other: it is simulated, run and traced by the same parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import DeadlockError, GraphError
from doppler_tf.graph import MERGED, TOKEN, DataflowGraph, Kernel, Operand
from doppler_tf.graph_rules import check_structure
from doppler_tf.simulator import Simulator, simulate
from doppler_tf.trace import Trace

# So many joins are tried.
_TRIALS = 400
# Sums in another order differ by so much.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Merged:
    """An assignment in larger calls.

    Attributes:
      graph, costs, assignment: what runs.
      vertex: int32 [N], the vertex of `graph` that stands for each vertex of the original.
      tensor: int32 [T], the tensor of `graph` that is each tensor of the original, -1 where it does not leave a call.
      makespan_s: simulated.
    """

    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    vertex: np.ndarray
    tensor: np.ndarray
    makespan_s: float


def merge_calls(graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int] = ()) -> Merged:
    """The assignment in as few calls as do not make it slower by simulation.

    A vertex with operands that come from another device begins a call unless they are there by then, and one whose output another device
    needs ends a call. Neighbours on a device are then joined where the simulated makespan does not grow. Devices that run several
    vertices at once, and such where memory may run out, keep their vertices apart. Of several vertices a call saves all but one time
    the seconds that a device takes for a kernel without work (`launch_s`).

    Args: fetch: tensors that are wanted, whoever takes them. Those that hold results of a captured function are wanted anyway.
    """
    trace = Simulator().execute(graph, costs, assignment)
    merger = _Merger(graph, costs, assignment, frozenset(fetch) | _results(graph))
    calls = _by_messages(graph, costs, assignment, trace)
    best, improved, trials = merger.merged(calls), True, 0
    if best is None or not _as_fast(best.makespan_s, trace.makespan_s):
        calls = [[v] for call in calls for v in call]
        best = Merged(graph, costs, assignment, np.arange(graph.num_vertices, dtype=np.int32),
                      np.arange(graph.num_tensors, dtype=np.int32), trace.makespan_s)
    while improved:
        improved, at = False, 0
        while at + 1 < len(calls) and trials < _TRIALS:
            d = assignment.device[calls[at][0]]
            beside = next((i for i in range(at + 1, len(calls)) if assignment.device[calls[i][0]] == d), None)
            if beside is not None and merger.may_merge(calls[at], calls[beside]):
                trials += 1
                tried = [*calls[:at], [*calls[at], *calls[beside]], *calls[at + 1:beside], *calls[beside + 1:]]
                found = merger.merged(tried)
                if found is not None and _as_fast(found.makespan_s, best.makespan_s):
                    calls, best, improved = tried, found, True
                    continue
            at += 1
    lone = _lone(best) if costs.topology.shared_cores else ()
    return merger.merged(calls, lone) if lone else best


def _lone(merged: Merged) -> frozenset[int]:
    """The merged calls beside which no other device works."""
    graph, trace = merged.graph, Simulator().execute(merged.graph, merged.costs, merged.assignment)
    start_s, end_s, device = trace.start_s, trace.end_s, trace.device
    beside = (start_s[:, None] < end_s) & (start_s < end_s[:, None]) & (device[:, None] != device)
    alone = trace.vertex[~beside.any(axis=1)].tolist()
    return frozenset(v for v in alone if graph.kernel[v] is not None and graph.kernel[v].op == MERGED)


def _results(graph: DataflowGraph) -> set[int]:
    """The tensors of which the graph's record of a capture tells."""
    record, index = graph.attributes.get("captured", {}), {key: v for v, key in enumerate(graph.ids)}
    if "batches" in graph.attributes:  # of several calls `Batches` knows the results
        return set()
    return {int(graph.tensor_ptr[index[x["vertex"]]]) + x.get("output", 0) for key in ("outputs", "updates") for x in record.get(key, ())}


def _as_fast(makespan_s: float, than_s: float) -> bool:
    return makespan_s <= than_s * (1.0 + _ROUNDING)


def _by_messages(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[list[int]]:
    """Calls in order of time, cut where a device needs something of another, and where another needs something of it."""
    device, arrived_s = assignment.device, {}
    for tensor, to, at_s in zip(trace.tensor(graph).tolist(), trace.destination.tolist(), trace.transfer_end_s.tolist(), strict=True):
        arrived_s[tensor, to] = at_s
    needs_s, sends = np.zeros(graph.num_vertices), np.zeros(graph.num_vertices, bool)
    for e in graph.work_edges.tolist():
        u, v = graph.sources[e], graph.targets[e]
        if device[u] != device[v]:
            sends[u] = True
            needs_s[v] = max(needs_s[v], arrived_s[int(graph.edge_tensor[e]), int(device[v])])
    calls: list[list[int]] = []
    last: dict[int, tuple[list[int], float]] = {}  # by device: the open call and its start
    position = np.argsort(graph.topological_order)
    rows = np.lexsort((position[trace.vertex], trace.start_s))
    apart = _apart(costs)
    for v, start_s in zip(trace.vertex[rows].tolist(), trace.start_s[rows].tolist(), strict=True):
        d = int(device[v])
        call, since_s = last.get(d, (None, 0.0))
        token = _is_token(graph, v)
        if call is None or apart[d] or needs_s[v] > since_s or token:
            call, since_s = [], start_s
            calls.append(call)
        call.append(v)
        if sends[v] or token:
            last.pop(d, None)
        else:
            last[d] = call, since_s
    return calls


def _apart(costs: CostModel) -> list[bool]:
    """The devices whose vertices stay apart: what a merged call holds inside is not counted, and it runs nothing side by side."""
    return ((costs.slots > 1) | (costs.tensor_bytes.sum() > costs.memory_bytes)).tolist()


def _is_token(graph: DataflowGraph, v: int) -> bool:
    """Whether a vertex says that a batch is done. Calls of several batches stay apart."""
    return graph.kernel[v] is not None and graph.kernel[v].op == TOKEN


class _Merger:
    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int]):
        self._graph, self._costs, self._assignment, self._fetch = graph, costs, assignment, fetch
        self._launch_s = np.array([device.launch_s for device in costs.topology.devices])
        self._apart, self._inputs = _apart(costs), np.flatnonzero(graph.is_input).tolist()
        self._bare = any(graph.kernel[v] is None for v in graph.work_vertices.tolist())
        self._first, device, work = graph.tensor_ptr.tolist(), assignment.device, graph.work_vertices
        able = costs.allowed.copy()
        able[work, device[work]] = True
        self._exec_s = np.where(able, costs.exec_s, np.inf)
        self._transfer_s = costs.transfer_s(np.arange(graph.num_edges), device[graph.sources], device[graph.targets])
        self._takers: list[list[int]] = [[] for _ in range(graph.num_tensors)]
        for tensor, v in zip(graph.edge_tensor.tolist(), graph.targets.tolist(), strict=True):
            self._takers[tensor].append(v)

    def may_merge(self, call: Sequence[int], behind: Sequence[int]) -> bool:
        return not self._apart[self._assignment.device[call[0]]] and not _is_token(self._graph, call[0]) and (
            not _is_token(self._graph, behind[0]))

    def merged(self, calls: Sequence[Sequence[int]], lone: Collection[int] = ()) -> Merged | None:
        """The graph of these calls, in order of time; None where they would wait for each other, or for memory.

        Args: lone: vertices of that graph that use the cores of all devices.
        """
        graph, number = self._graph, np.full(self._graph.num_vertices, -1, np.int32)
        for i, call in enumerate(calls):
            number[call] = i
        given = self._given(number)
        number += len(given) * (number >= 0)
        groups = [*given, *calls]
        for i, group in enumerate(given):
            number[group] = i
        kept = [self._first[group[0]:group[0] + 1] if i < len(given) else self._leaving(group, number) for i, group in enumerate(groups)]
        tensor = np.full(graph.num_tensors, -1, np.int32)
        tensor[[t for tensors in kept for t in tensors]] = np.arange(sum(map(len, kept)))
        for group in given:
            tensor[[self._first[v] for v in group]] = tensor[self._first[group[0]]]
        made = self._built(groups, number, tensor, kept, lone)
        try:
            check_structure(made, graph.name)
        except GraphError:  # a circle
            return None
        costs = build_costs(made, self._costs.topology)
        device = np.full(made.num_vertices, -1, np.int32)
        device[len(given):] = [self._assignment.device[call[0]] for call in calls]
        priority = np.arange(made.num_vertices, dtype=np.float64)
        assignment = replace(self._assignment, device=device, order=None, dispatch="order", priority=priority, proven_bound_s=0.0)
        try:
            return Merged(made, costs, assignment, number, tensor, simulate(made, costs, assignment).makespan_s)
        except DeadlockError:  # another device is short of memory when tensors come in another order
            return None

    def _given(self, number: np.ndarray) -> list[list[int]]:
        """The inputs. Those that are a part of the kernels of the same calls are one."""
        groups: dict[tuple, list[int]] = {}
        for v in self._inputs:
            users = tuple(sorted({int(number[w]) for w in self._takers[self._first[v]]}))
            alone = v in self._graph.taken_inputs or self._bare
            groups.setdefault((alone, v) if alone else (alone, *users), []).append(v)
        return list(groups.values())

    def _leaving(self, group: Sequence[int], number: np.ndarray) -> list[int]:
        """The tensors that others take from a call, or that are to be kept; at least one."""
        tensors = [t for v in group for t in range(self._first[v], self._first[v + 1])]
        mine = number[group[0]]
        found = [t for t in tensors if t in self._fetch or not self._takers[t] or any(number[v] != mine for v in self._takers[t])]
        return found or tensors[-1:]

    def _built(self, groups: Sequence[Sequence[int]], number: np.ndarray, tensor: np.ndarray,
               kept: Sequence[Sequence[int]], lone: Collection[int]) -> DataflowGraph:
        graph, last = self._graph, [group[-1] for group in groups]
        largest = [max(group, key=lambda v: self._costs.mean_exec_s[v]) for group in groups]
        exec_s = np.array([self._exec_s[group].sum(axis=0) for group in groups])
        saved_s = np.outer([len(group) - 1 for group in groups], self._launch_s)
        exec_s = np.maximum(exec_s - saved_s, [self._exec_s[group].max(axis=0) for group in groups])
        for i in lone:
            exec_s[i] *= self._part_on_all(groups[i])
        edges = self._edges(number, tensor)
        source, output = number[graph.tensor_producer[edges["tensor"]]], tensor[edges["tensor"]]
        first = np.cumsum([0, *map(len, kept)]).astype(np.int32)
        return replace(
            graph, ids=tuple(graph.ids[v] for v in last), kinds=tuple(graph.kinds[v] for v in largest),
            names=tuple(graph.names[group[0]] if len(group) == 1 else f"{graph.names[group[0]]} .. {graph.names[group[-1]]}"
                        for group in groups),
            meta_op=tuple(graph.meta_op[v] for v in largest), role=tuple(graph.role[v] for v in largest),
            flops=np.array([graph.flops[group].sum() for group in groups]), tensor_ptr=first,
            tensor_bytes=np.array([self._bytes(t, groups[i]) for i, tensors in enumerate(kept) for t in tensors]), exec_s=exec_s,
            is_input=graph.is_input[last],
            kernel=tuple(self._kernel(group, number, tensor, kept[i], first, i in lone) for i, group in enumerate(groups)),
            pin=(None,) * len(groups), colocate=np.full(len(groups), -1, np.int32), groups=(), sources=source, targets=edges["target"],
            edge_output=(output - first[source]).astype(np.int32), edge_bytes=edges["bytes"], transfer_s=edges["transfer_s"],
            attributes=self._attributes(number, tensor, first, last), edge_notes={},
            vertex_notes={i: {"calls": [graph.names[v] for v in group]} for i, group in enumerate(groups) if len(group) > 1})

    def _part_on_all(self, group: Sequence[int]) -> float:
        """Of the time that a call takes on one core, the part that it takes on all: its heaviest path, or an even share of everything."""
        exec_s, path_s = self._exec_s[:, self._assignment.device[group[0]]], {}
        before = self._graph.predecessors
        for v in group:
            path_s[v] = exec_s[v] + max((path_s.get(u, 0.0) for u in before.vertex[before.ptr[v]:before.ptr[v + 1]].tolist()), default=0.0)
        total_s = exec_s[group].sum()
        return max(max(path_s.values()) / total_s, 1.0 / self._costs.num_devices) if total_s else 1.0

    def _bytes(self, tensor: int, group: Sequence[int]) -> float:
        """Of a tensor, or of all inputs that are one."""
        inputs = self._graph.is_input[group[0]]
        return float(self._costs.tensor_bytes[[self._first[v] for v in group] if inputs else tensor].sum())

    def _edges(self, number: np.ndarray, tensor: np.ndarray) -> dict[str, np.ndarray]:
        """One for each tensor and call that takes it, the costliest of those that become one."""
        graph = self._graph
        outside = np.flatnonzero(number[graph.sources] != number[graph.targets])
        order = np.lexsort((-self._transfer_s[outside], number[graph.targets[outside]], tensor[graph.edge_tensor[outside]]))
        rows = outside[order]
        pairs = np.stack([tensor[graph.edge_tensor[rows]], number[graph.targets[rows]]])
        rows = rows[np.any(pairs != np.roll(pairs, 1, axis=1), axis=0) | (np.arange(rows.size) == 0)]
        return {"tensor": graph.edge_tensor[rows], "target": number[graph.targets[rows]], "bytes": graph.edge_bytes[rows],
                "transfer_s": graph.transfer_s[rows]}

    def _kernel(self, group: Sequence[int], number: np.ndarray, tensor: np.ndarray, kept: Sequence[int],
                first: np.ndarray, alone: bool) -> Kernel | None:
        graph = self._graph

        def outer(t: int) -> Operand:
            source = int(number[graph.tensor_producer[t]])
            return Operand(source, None, int(tensor[t] - first[source]))

        if len(group) == 1:
            kernel = graph.kernel[group[0]]
            return None if kernel is None else replace(kernel, operands=tuple(
                replace(outer(self._first[o.vertex] + o.output), slice=o.slice) for o in kernel.operands))
        kernels = [graph.kernel[v] for v in group]
        if any(kernel is None for kernel in kernels):
            return None
        taken = [[(self._first[o.vertex] + o.output, o.slice) for o in kernel.operands] for kernel in kernels]
        mine = number[group[0]]
        operands = list(dict.fromkeys(t for each in taken for t, _ in each if number[graph.tensor_producer[t]] != mine))
        place = {t: (i, 0) for i, t in enumerate(operands)}
        place |= {t: (len(operands) + i, k) for i, v in enumerate(group) for k, t in enumerate(range(self._first[v], self._first[v + 1]))}
        steps = [{"name": graph.names[v], "op": kernel.op, "params": kernel.params,
                  "operands": [{"from": place[t][0], "output": place[t][1], "slice": box} for t, box in each]}
                 for v, kernel, each in zip(group, kernels, taken, strict=True)]
        params = {"steps": steps, "outputs": [list(place[t]) for t in kept], **({"alone": True} if alone else {})}
        return Kernel(MERGED, tuple(map(outer, operands)), params)

    def _attributes(self, number: np.ndarray, tensor: np.ndarray, first: np.ndarray, last: Sequence[int]) -> dict:
        """The graph's own fields, whose records name vertices."""
        graph, index = self._graph, {key: v for v, key in enumerate(self._graph.ids)}

        def moved(record: dict) -> dict:
            v = index[record["vertex"]]
            t = int(tensor[self._first[v] + record.get("output", 0)])
            return {**record, "vertex": graph.ids[last[number[v]]], "output": t - int(first[number[v]])}

        attributes = dict(graph.attributes)
        if "captured" in attributes and "batches" not in attributes:
            captured = attributes["captured"]
            alone = {graph.ids[v] for v in self._inputs if np.count_nonzero(number == number[v]) == 1}
            in_order = [graph.ids[last[number[index[key]]]] for key in captured.get("in_order", ())]
            attributes["captured"] = {**captured, **{key: list(map(moved, captured[key])) for key in ("outputs", "updates")},
                                      "weights": [x for x in captured.get("weights", ()) if x["vertex"] in alone],
                                      "in_order": list(dict.fromkeys(in_order))}
        return attributes
