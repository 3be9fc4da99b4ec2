"""The graph of an assignment in larger calls: each call is a vertex, a graph like any other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from doppler_tf.errors import DeadlockError, GraphError
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import MERGED, DataflowGraph, Kernel, Operand
from doppler_tf.graph.rules import check_structure
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace


@dataclass(frozen=True, eq=False)
class Merged:
    """An assignment in larger calls.

    Attributes:
      graph, costs, assignment: what runs.
      vertex: int32 [N], the vertex of `graph` that stands for each vertex of the original.
      tensor: int32 [T], the tensor of `graph` that is each tensor of the original, -1 where it does not leave a call.
      trace: the simulated run.
      lone: the vertices of `graph` that take the cores of all devices: devices share cores, and no other works beside them. Each with the
        part of its time on one core that it then takes.
    """

    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    vertex: np.ndarray
    tensor: np.ndarray
    trace: Trace
    lone: Mapping[int, float] = field(default_factory=dict)

    @property
    def makespan_s(self) -> float:
        """Simulated."""
        return self.trace.makespan_s


class MergedGraphs:
    """The graphs of an assignment in larger calls."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int]):
        """Args: fetch: tensors that are wanted, whoever takes them."""
        self._graph, self._costs, self._assignment, self._fetch = graph, costs, assignment, fetch
        self._launch_s = np.array([device.launch_s for device in costs.topology.devices])
        self._inputs = np.flatnonzero(graph.is_input).tolist()
        self._bare = any(graph.kernel[v] is None for v in graph.work_vertices.tolist())
        self._first, device, work = graph.tensor_ptr.tolist(), assignment.device, graph.work_vertices
        able = costs.allowed.copy()
        able[work, device[work]] = True
        self._exec_s = np.where(able, costs.exec_s, np.inf)
        self._inside_s = np.maximum(self._exec_s - self._launch_s, 0.0)  # what a vertex adds to a larger call
        self._transfer_s = costs.transfer_s(np.arange(graph.num_edges), device[graph.sources], device[graph.targets])
        self._takers: list[list[int]] = [[] for _ in range(graph.num_tensors)]
        for tensor, v in zip(graph.edge_tensor.tolist(), graph.targets.tolist(), strict=True):
            self._takers[tensor].append(v)

    def made(self, calls: Sequence[Sequence[int]], lone: Collection[int] = (), kernels: bool = True) -> Merged | None:
        """The graph of these calls, in order of time; None where they would wait for each other, or for memory.

        Args: lone: positions of calls beside which no other device works; kernels: False for a graph that is only simulated.
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
        shared = self._costs.topology.shared_cores
        on_all_cores = {len(given) + i: self._part_on_all(calls[i]) for i in lone} if shared else {}
        made = self._built(groups, number, tensor, kept, on_all_cores, kernels)
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
            return Merged(made, costs, assignment, number, tensor, Simulator().execute(made, costs, assignment), on_all_cores)
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
               kept: Sequence[Sequence[int]], on_all_cores: Mapping[int, float], kernels: bool) -> DataflowGraph:
        graph, last = self._graph, [group[-1] for group in groups]
        largest = [max(group, key=lambda v: self._costs.mean_exec_s[v]) for group in groups]
        exec_s = np.array([self._seconds(group) for group in groups])
        for i, part in on_all_cores.items():
            exec_s[i] *= part
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
            kernel=tuple(self._kernel(group, number, tensor, kept[i], first) if kernels else None for i, group in enumerate(groups)),
            pin=(None,) * len(groups), colocate=np.full(len(groups), -1, np.int32), groups=(), sources=source, targets=edges["target"],
            edge_output=(output - first[source]).astype(np.int32), edge_bytes=edges["bytes"], transfer_s=edges["transfer_s"],
            attributes=self._attributes(number, tensor, first, last), edge_notes={},
            vertex_notes={i: {"calls": [graph.names[v] for v in group]} for i, group in enumerate(groups) if len(group) > 1})

    def _seconds(self, group: Sequence[int]) -> np.ndarray:
        """float64 [D]: of a call on one core."""
        return self._exec_s[group[0]] if len(group) == 1 else (
            self._inside_s[group].sum(axis=0) + np.minimum(self._exec_s[group].max(axis=0), self._launch_s))

    def _part_on_all(self, group: Sequence[int]) -> float:
        """Of the time that a call takes on one core, the part that it takes on all: its heaviest path, or an even share of everything."""
        exec_s, path_s = self._inside_s[:, self._assignment.device[group[0]]], {}
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
                first: np.ndarray) -> Kernel | None:
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
        params = {"steps": steps, "outputs": [list(place[t]) for t in kept]}
        return Kernel(MERGED, tuple(map(outer, operands)), params)

    def _attributes(self, number: np.ndarray, tensor: np.ndarray, first: np.ndarray, last: Sequence[int]) -> dict:
        """The graph's own fields, whose records name vertices."""
        graph, index = self._graph, self._graph.vertex_of

        def moved(record: dict) -> dict:
            v = index[record["vertex"]]
            t = int(tensor[self._first[v] + record.get("output", 0)])
            return {**record, "vertex": graph.ids[last[number[v]]], "output": t - int(first[number[v]])}

        attributes = {**graph.attributes, "results": [moved(graph.record_of(t)) for t in graph.results]}
        if "captured" in attributes and "batches" not in attributes:
            captured = attributes["captured"]
            alone = {graph.ids[v] for v in self._inputs if np.count_nonzero(number == number[v]) == 1}
            in_order = [graph.ids[last[number[index[key]]]] for key in captured.get("in_order", ())]
            attributes["captured"] = {**captured, **{key: list(map(moved, captured[key])) for key in ("outputs", "updates")},
                                      "weights": [x for x in captured.get("weights", ()) if x["vertex"] in alone],
                                      "in_order": list(dict.fromkeys(in_order))}
        return attributes
