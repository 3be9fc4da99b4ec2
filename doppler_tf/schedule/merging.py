"""Vertices that a device runs one after the other become one call, so that fewer calls have to be handed over.

A run costs some tens of microseconds for each call, and operations within one call are fused by TensorFlow. But a call takes all its
inputs at its start and gives all its outputs at its end. So vertices are merged where no device waits longer for that by simulation.
What results is a graph like any other: it is simulated, run and traced by the same parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler_tf.errors import DeadlockError, GraphError
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import MERGED, TOKEN, DataflowGraph, Kernel, Operand
from doppler_tf.graph.rules import check_structure
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace

# So many pairs in a row that cannot be joined end the search, and so many simulated vertices in all.
_IN_VAIN, _SIMULATED = 8, 100_000
# Sums in another order differ by so much.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Merged:
    """An assignment in larger calls.

    Attributes:
      graph, costs, assignment: what runs.
      vertex: int32 [N], the vertex of `graph` that stands for each vertex of the original.
      tensor: int32 [T], the tensor of `graph` that is each tensor of the original, -1 where it does not leave a call.
      trace: the simulated run.
    """

    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    vertex: np.ndarray
    tensor: np.ndarray
    trace: Trace

    @property
    def makespan_s(self) -> float:
        """Simulated."""
        return self.trace.makespan_s


def merge_calls(graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int] = ()) -> Merged:
    """The assignment in as few calls as do not make it slower by simulation.

    A vertex with operands that come from another device begins a call unless they are there by then, and one whose output another device
    needs ends a call. Neighbours on a device are then joined where nobody waits longer for it than the simulated run leaves room for, many
    at a time. Devices that run several vertices at once, and such where memory may run out, keep their vertices apart. Of several vertices
    a call saves all but one time the seconds that a device takes for a kernel without work (`launch_s`).

    Args: fetch: tensors that are wanted, whoever takes them. Those that hold results of a captured function are wanted anyway.
    """
    trace = Simulator().execute(graph, costs, assignment)
    merger = _Merger(graph, costs, assignment, frozenset(fetch) | _results(graph))
    calls = _by_messages(graph, costs, assignment, trace)
    best, apart = merger.tried(calls), [[v] for call in calls for v in call]
    if best is None or not _as_fast(best.makespan_s, trace.makespan_s):
        calls, best = apart, merger.tried(apart)
    refused: set[tuple[int, int]] = set()
    pairs = [] if best is None else merger.pairs(calls, best, refused)
    at_once, in_vain, simulated = len(pairs), 0, 0
    while pairs and in_vain < _IN_VAIN and simulated < _SIMULATED:
        at_once = min(at_once, len(pairs))
        joined = _joined(calls, pairs[:at_once])
        found, simulated = merger.tried(joined), simulated + len(joined)
        if found is not None and _as_fast(found.makespan_s, best.makespan_s):
            calls, best, at_once, in_vain = joined, found, 2 * at_once, 0
        elif at_once > 1:
            at_once //= 2
            continue
        else:
            refused.add((calls[pairs[0][0]][-1], calls[pairs[0][1]][0]))
            in_vain += 1
        pairs = merger.pairs(calls, best, refused)
    if best is None or len(calls) == len(apart) or not _as_fast(best.makespan_s, trace.makespan_s):
        return Merged(graph, costs, assignment, np.arange(graph.num_vertices, dtype=np.int32),
                      np.arange(graph.num_tensors, dtype=np.int32), trace)
    return merger.merged(calls, _lone(calls, best.trace) if costs.topology.shared_cores else ())


def _joined(calls: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The calls, each second one of a pair behind the first."""
    second = dict(pairs)
    return [[*call, *calls[second[i]]] if i in second else list(call) for i, call in enumerate(calls) if i not in second.values()]


def _lone(calls: Sequence[Sequence[int]], trace: Trace) -> list[int]:
    """The positions of merged calls beside which no other device works."""
    start_s, end_s, device = trace.start_s, trace.end_s, trace.device
    beside = (start_s[:, None] < end_s) & (start_s < end_s[:, None]) & (device[:, None] != device)
    first = int(trace.vertex.min())
    return [i for v in trace.vertex[~beside.any(axis=1)].tolist() if len(calls[i := v - first]) > 1]


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

    def pairs(self, calls: Sequence[Sequence[int]], tried: Merged, refused: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
        """Neighbours on a device that may be joined by the room which a run leaves, no call twice, those with the most room first.

        Args:
          tried: the run of these calls.
          refused: pairs, by the last vertex of the first and the first of the second, that have been tried alone.
        """
        graph, trace, first = tried.graph, tried.trace, tried.graph.num_vertices - len(calls)
        start_s, end_s, device = np.zeros(len(calls)), np.zeros(len(calls)), np.zeros(len(calls), np.int32)
        start_s[trace.vertex - first], end_s[trace.vertex - first], device[trace.vertex - first] = trace.start_s, trace.end_s, trace.device
        arrived_s = dict(zip(zip(trace.tensor(graph).tolist(), trace.destination.tolist(), strict=True), trace.transfer_end_s.tolist(),
                             strict=True))
        arrives: list[dict[int, float]] = [{} for _ in calls]  # by call what it waits for, and when that is there
        for e in graph.work_edges.tolist():
            u, v = int(graph.sources[e]) - first, int(graph.targets[e]) - first
            at_s = end_s[u] if device[u] == device[v] else arrived_s[int(graph.edge_tensor[e]), int(device[v])]
            arrives[v][u] = max(at_s, arrives[v].get(u, 0.0))
        order = np.lexsort((np.argsort(graph.topological_order)[first:], start_s)).tolist()
        behind: dict[int, int] = {}
        last: dict[int, int] = {}
        for i in order:
            if device[i] in last:
                behind[last[device[i]]] = i
            last[device[i]] = i
        # The latest end of a call, and what others leave for it beside the call behind it.
        latest_s, others_s = np.zeros(len(calls)), np.full(len(calls), trace.makespan_s)
        for i in reversed(order):
            latest_s[i] = others_s[i]
            if i in behind:
                latest_s[i] = min(latest_s[i], latest_s[behind[i]] - (end_s[behind[i]] - start_s[behind[i]]))
            for u, at_s in arrives[i].items():
                if behind.get(u) != i:
                    others_s[u] = min(others_s[u], latest_s[i] - (end_s[i] - start_s[i]) - (at_s - end_s[u]))
        found = []
        for i, j in behind.items():
            if (calls[i][-1], calls[j][0]) in refused or not self.may_merge(calls[i], calls[j]):
                continue
            begins_s = max([start_s[i], *(at_s for u, at_s in arrives[j].items() if u != i)])
            ends_s = begins_s + end_s[i] - start_s[i] + end_s[j] - start_s[j] - self._launch_s[device[i]]
            room_s = min(others_s[i], latest_s[j]) - ends_s
            if room_s >= -_ROUNDING * trace.makespan_s:
                found.append((room_s, i, j))
        pairs, taken = [], set()
        for _, i, j in sorted(found, reverse=True):
            if not taken & {i, j}:
                pairs.append((i, j))
                taken |= {i, j}
        return pairs

    def tried(self, calls: Sequence[Sequence[int]]) -> Merged | None:
        """As `merged`, without kernels."""
        return self._made(calls, (), kernels=False)

    def merged(self, calls: Sequence[Sequence[int]], lone: Collection[int] = ()) -> Merged | None:
        """The graph of these calls, in order of time; None where they would wait for each other, or for memory.

        Args: lone: positions of calls that use the cores of all devices.
        """
        return self._made(calls, lone, kernels=True)

    def _made(self, calls: Sequence[Sequence[int]], lone: Collection[int], kernels: bool) -> Merged | None:
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
        made = self._built(groups, number, tensor, kept, {len(given) + i for i in lone}, kernels)
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
            return Merged(made, costs, assignment, number, tensor, Simulator().execute(made, costs, assignment))
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
               kept: Sequence[Sequence[int]], lone: Collection[int], kernels: bool) -> DataflowGraph:
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
            kernel=tuple(self._kernel(group, number, tensor, kept[i], first, i in lone) if kernels else None
                         for i, group in enumerate(groups)),
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
