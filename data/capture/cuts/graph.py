"""Pieces become a DataflowGraph: vertices with kernels, costs and the user's names, edges that name the output they carry."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from data.capture.calls.concrete import Concrete
from data.capture.cuts.flops import MOVES, REDUCTIONS, Flops
from data.capture.cuts.grouping import Cost, grouped
from data.capture.cuts.pieces import Piece, Source, Value, Wiring, cut, ends, indivisible
from data.capture.operations import CONTROL_FLOW, ELEMENTWISE, VIEWS
from data.capture.program import Node, known_bytes, tensor_of
from data.capture.rewriting.scopes import common_scope, has_one_device
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records

# What inlining puts before the user's names.
_CALL = re.compile(r"(?:^|(?<=/))(?:Stateful)?PartitionedCall(?:_\d+)?/")
# A piece without outputs gives one number, so that others can wait for it.
NOTHING_BYTES = 4


def user_name(name: str) -> str:
    """An operation's name as its author knows it."""
    return _CALL.sub("", name)


def build_graph(wiring: Wiring, source: Concrete, where: str, name: str, model_folder: Path, grouping: bool) -> DataflowGraph:
    """The graph of a program.

    Raises:
      ConfigError: the function computes nothing, or an output of a vertex has no fixed shape.
    """
    return _Builder(wiring, source, where).build(name, model_folder, grouping)


class _Builder:
    def __init__(self, wiring: Wiring, source: Concrete, where: str):
        self.wiring, self.source, self.where = wiring, source, where
        self.program, self.effects = wiring.program, wiring.effects
        self.graph = self.program.imported()
        flops = Flops(self.program.library)
        self.flops = {op: flops(self.graph.get_operation_by_name(op)) for op in self.wiring.core}

    def build(self, name: str, model_folder: Path, grouping: bool) -> DataflowGraph:
        if not self.wiring.core:
            raise ConfigError(f"{self.where}: expected a function that computes, got one that only returns arguments, variables and "
                              "constants; there is nothing to place: call it as it is")
        self._check_outputs()
        groups = indivisible(self.wiring, self.graph)
        if grouping:
            costs = [self._cost(group, kept) for group, kept in zip(groups, self._state(groups), strict=True)]
            joined = grouped(self._after(groups), costs)
            groups = [[op for g in members for op in groups[g]] for members in joined]
        groups = self._sorted(groups)
        pieces = cut(self.wiring, groups)
        return self._graph(pieces, groups, name, model_folder)

    def _graph(self, pieces: Sequence[Piece], groups: Sequence[Sequence[str]], name: str, model_folder: Path) -> DataflowGraph:
        results, updates = ends(self.wiring, groups)
        used = {where for piece in pieces for (kind, where), _ in piece.inputs.values() if kind == "weight"}
        used |= {name for piece in pieces for name in piece.weights.values()}
        used |= {where for _, (kind, where), _ in [*results, *updates] if kind == "weight"}
        nodes, ids = [], dict[Source, int]()
        arguments = {argument.placeholder: argument for argument in self.source.arguments}
        weights = {variable.name: variable for variable in self.program.variables.values() if variable.name in used}
        for kind, table in (("argument", arguments), ("weight", weights)):
            for key, x in table.items():
                ids[kind, key] = len(nodes)
                nodes.append({"id": len(nodes), "name": x.name, "kind": "weight" if kind == "weight" else "input", "input": True,
                              "output_bytes": math.prod(x.shape) * x.dtype.size})
        for g in range(len(pieces)):
            ids["piece", g] = len(nodes) + g
        state, edges = self._state(groups), []
        for g, piece in enumerate(pieces):
            nodes.append(self._node(ids["piece", g], piece, ids, pieces, state[g]))
            edges += self._edges(g, piece, ids, pieces)

        def place(source: Source, value: Value) -> dict:
            return {"vertex": ids[source], "output": self._output(source, value, pieces)}

        captured = {
            "model": str(model_folder.absolute()), "function": self.where,
            "inputs": [{"vertex": ids["argument", a.placeholder], "name": a.name, "tensor": f"{a.placeholder}:0", "shape": list(a.shape),
                        "dtype": a.dtype.name} for a in arguments.values()],
            "weights": [{"vertex": ids["weight", v.name], "variable": v.name, "shape": list(v.shape), "dtype": v.dtype.name,
                         **({"frozen": True} if v.frozen else {})} for v in weights.values()],
            "outputs": [{**output.record, **place(source, value), "tensor": f"{x[0]}:{x[1]}"}
                        for output, (x, source, value) in zip(self.source.outputs, results, strict=True)],
            "updates": [{"variable": variable, **place(source, value)} for variable, source, value in updates],
            "in_order": [ids["piece", g] for g, piece in enumerate(pieces) if not self._ordered.isdisjoint(piece.core)]}
        return graph_from_records(nodes, edges, {"name": name, "captured": captured}, self.where)

    def _node(self, key: int, piece: Piece, ids: dict[Source, int], pieces: Sequence[Piece], colocate: str | None) -> dict:
        main = max(reversed(piece.core), key=self.flops.__getitem__)
        label = user_name(main)
        sizes = [self._bytes(value) for value in piece.outputs] or [NOTHING_BYTES]
        operands = []
        for source, value in piece.inputs.values():
            output = self._output(source, value, pieces)
            operands.append({"vertex": ids[source], **({"output": output} if output else {})})
        return {"id": key, "name": label, "kind": self.program.nodes[main].op, "flops": sum(self.flops[op] for op in piece.core),
                "output_bytes": sizes[0] if len(sizes) == 1 else sizes,
                **({"meta_op": label.rpartition("/")[0]} if "/" in label else {}),
                **({"colocate": colocate} if colocate is not None else {}),
                **({"pin": pin} if (pin := self._pin(piece.core)) else {}),
                "kernel": {"op": "captured", "operands": operands,
                           "params": {"nodes": list(piece.nodes), "inputs": list(piece.inputs), "outputs": list(piece.outputs),
                                      **({"weights": dict(piece.weights)} if piece.weights else {}),
                                      **({} if set(self.effects.seeded).isdisjoint(piece.core) else {"seeded": True})}}}

    def _edges(self, g: int, piece: Piece, ids: dict[Source, int], pieces: Sequence[Piece]) -> list[dict]:
        """One edge for each tensor, and one without bytes from each vertex that must only have run before."""
        edges: dict[tuple[int, int], dict] = {}
        for source, value in piece.inputs.values():
            output = self._output(source, value, pieces)
            edges.setdefault((ids[source], output), {"source": ids[source], "target": ids["piece", g],
                                                     **({"output": output} if output else {}), "bytes": self._bytes(value)})
        for name in piece.weights.values():
            u, size = ids["weight", name], self._bytes(f"variable:{name}")
            edges[u, 0] = {"source": u, "target": ids["piece", g], "bytes": size}
        for name in piece.core:
            for before in self.wiring.after[name]:
                u = ids["piece", self._piece[before]]
                if self._piece[before] != g and all(source != u for source, _ in edges):
                    edges[u, 0] = {"source": u, "target": ids["piece", g], "bytes": 0}
        return list(edges.values())

    def _output(self, source: Source, value: Value, pieces: Sequence[Piece]) -> int:
        return pieces[source[1]].outputs.index(value) if source[0] == "piece" else 0

    def _bytes(self, value: Value) -> int:
        """The size of an output. Raises ConfigError where it is not fixed."""
        if value.startswith("variable:"):
            variable = next(v for v in self.program.variables.values() if v.name == value.removeprefix("variable:"))
            return variable.size_bytes
        name, _, k = value.rpartition(":")
        tensor = tensor_of(self.graph, (name, int(k)))
        if not tensor.shape.is_fully_defined():
            node = self._origin(name)
            raise field_error(ConfigError, self.where, f"operation {user_name(node.name)!r} ({node.op}){self.program.line(node)}", "shape",
                              "one that is fixed by the shapes of the inputs", str(tensor.shape),
                              "pad to a fixed size (tf.where, tf.ensure_shape), or give --input and --batch")
        return known_bytes(tensor)

    def _check_outputs(self) -> None:
        for output, (name, k) in zip(self.source.outputs, self.program.outputs, strict=True):
            shape = tensor_of(self.graph, (name, k)).shape
            if not shape.is_fully_defined():
                node, of = self._origin(name), f" of a {output.composite}" if output.composite else ""
                raise field_error(ConfigError, self.where, f"output {output.name!r}{of}: operation {user_name(node.name)!r} ({node.op})"
                                  f"{self.program.line(node)}", "shape", "one that is fixed by the shapes of the inputs", str(shape),
                                  "return a dense tensor of a fixed size (tf.where, tf.sparse.to_dense, r.to_tensor(shape=...))" if of
                                  else "pad it to a fixed size (tf.where), or where it always has one, name it (tf.ensure_shape)")

    def _origin(self, name: str) -> Node:
        """The operation that first makes a tensor without a fixed shape, of those that lead to this one."""
        for x in self.program.nodes[name].inputs:
            if not tensor_of(self.graph, x).shape.is_fully_defined():
                return self._origin(x[0])
        return self.program.nodes[name]

    def _state(self, groups: Sequence[Sequence[str]]) -> list[str | None]:
        """For each group, the name of the state that it changes, if another changes it, too.

        Variables that one operation updates together are one state.
        """
        root: dict[str, str] = {}

        def find(key: str) -> str:
            while root.setdefault(key, key) != key:
                key = root[key]
            return key

        keys, ordered = [], self._ordered
        for group in groups:
            mine = [f"variables:{variable}" for name in group if name in self.effects.writes
                    for variable, _ in self.effects.takes.get(name, ())]
            # What has a device of its own needs no company to stay there.
            mine += ["stateful"] if any(name in ordered for name in group) and not has_one_device(self._pin(group)) else []
            keys.append(mine)
            for key in mine[1:]:
                root[find(key)] = find(mine[0])
        names = [find(mine[0]) if mine else None for mine in keys]
        count = Counter(names)
        return [name if count[name] > 1 else None for name in names]

    def _pin(self, group: Sequence[str]) -> str:
        """The text of the device of a group, "" if it has none. Raises ConfigError: its scopes contradict each other."""
        scopes: dict[str, str] = {}
        for name in group:
            for scope in self.program.nodes[name].scopes:
                scopes.setdefault(scope, name)
                if common_scope(scopes) is None:
                    node = self.program.nodes[name]
                    found = ", ".join(f"{each} ({user_name(of)})" for each, of in scopes.items())
                    raise ConfigError(f"{self.where}: operation {user_name(name)!r} ({node.op}){self.program.line(node)}: tf.device: "
                                      "expected one device for all in a vertex (a loop or branch; operations between which tensors cannot "
                                      f"leave a device), got {found}; use one scope there, or capture without --keep-devices")
        return common_scope(scopes) or ""

    @property
    def _ordered(self) -> set[str]:
        return set(self.effects.ordered)

    def _sorted(self, groups: Sequence[Sequence[str]]) -> list[list[str]]:
        """Groups in an order in which each stands behind what it takes from."""
        position = {op: i for i, op in enumerate(self.wiring.core)}
        groups = [sorted(group, key=position.__getitem__) for group in groups]
        groups.sort(key=lambda group: position[group[-1]])
        self._piece = {op: g for g, group in enumerate(groups) for op in group}
        return groups

    def _after(self, groups: Sequence[Sequence[str]]) -> list[set[int]]:
        number = {op: g for g, group in enumerate(groups) for op in group}
        return [{number[before] for op in group for before in self.wiring.after[op]} - {g} for g, group in enumerate(groups)]

    def _cost(self, group: Sequence[str], colocate: str | None) -> Cost:
        operations = [self.graph.get_operation_by_name(name) for name in group]
        inside = set(group)
        moving = [op for op in operations if op.type not in VIEWS]
        return Cost(
            flops=sum(self.flops[name] for name in group),
            moved_bytes=sum(known_bytes(x) for op in moving for x in [*op.inputs, *op.outputs]),
            taken_bytes=sum(known_bytes(x) for op in operations for x in op.inputs
                            if x.op.name in self.wiring.after and x.op.name not in inside),
            made_bytes=sum(known_bytes(x) for op in operations for x in op.outputs if x.consumers()),
            light=all(map(_passes_over, operations)),
            colocate=colocate, pin=self._pin(group), solid=any(op.type in CONTROL_FLOW for op in operations))


def _passes_over(op: tf.Operation) -> bool:
    """Whether an operation does little with each element of its tensors; normalisation does if its moments are known before."""
    return (op.type in ELEMENTWISE or op.type in MOVES or op.type in REDUCTIONS or op.type.startswith("ResourceApply")
            or (op.type == "FusedBatchNormV3" and not op.get_attr("is_training")))

