"""Operations become pieces, each the work of one vertex: which operations cannot be parted, what a piece takes and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import tensorflow as tf

from data.capture.operations import IN_PLACE
from data.capture.program import Program, Tensor, inseparable, tensor_of
from data.capture.rewriting.effects import Effects, Version

# Tensors of these types stay in the piece that makes them.
_KEPT = (tf.variant, tf.string, tf.resource)
# What an output is called: "op:k" or "variable:NAME".
Value = str
# Where a value is made: a piece's number, or an argument's placeholder or a variable's name.
Source = tuple[str, int | str]


@dataclass(frozen=True)
class Piece:
    """The work of one vertex.

    Attributes:
      core: the operations that compute, in order.
      nodes: these and the constants and reads of variables that they need, in order.
      inputs: the values that it takes, and where each is made and as what.
      outputs: the values that others take from it.
      weights: the frozen variables whose values are a part of it, by what they are called inside.
    """

    core: tuple[str, ...]
    nodes: tuple[str, ...]
    inputs: Mapping[Value, tuple[Source, Value]]
    outputs: tuple[Value, ...]
    weights: Mapping[Value, str]


class Wiring:
    """Which operation needs which other, through tensors, variables and the order of effects.

    Attributes:
      core: the operations that compute, in order; a constant is among them where the function returns it.
      after: for each, the operations that must have run before.
    """

    def __init__(self, program: Program, effects: Effects):
        self.program, self.effects = program, effects
        returned = {name for name, _ in program.outputs if program.nodes[name].op == "Const"}
        self.core = [name for name, node in program.nodes.items()
                     if node.op not in ("Const", "Placeholder", "ReadVariableOp") or name in returned]
        previous = dict(zip(effects.ordered[1:], effects.ordered, strict=False))
        self.after = {name: self._needs(name) | ({previous[name]} if name in previous else set()) for name in self.core}

    def _needs(self, name: str) -> set[str]:
        nodes = self.program.nodes
        found = {self.effects.writer.get(version) for version in self.effects.takes.get(name, ())}
        for x, _ in nodes[name].inputs:
            if nodes[x].op == "ReadVariableOp" and x in self.effects.reads:
                found.add(self.effects.writer.get(self.effects.reads[x]))
            elif nodes[x].op not in ("Const", "Placeholder"):
                found.add(x)
        return found - {None}


def indivisible(wiring: Wiring, graph: tf.Graph) -> list[list[str]]:
    """The operations in groups, as few together as can be.

    Two are together if a tensor between them cannot leave a device (a list of tensors, a text, a resource) or has a shape that depends on
    data, if one looks into a variable that the other has updated, or if a third changes it where it lies. All that lies on a path
    between two that are together is with them.
    """
    joined = nx.Graph()
    for name in wiring.core:
        for x, k in wiring.program.nodes[name].inputs:
            tensor = tensor_of(graph, (x, k))
            if x in wiring.after and (tensor.dtype in _KEPT or not tensor.shape.is_fully_defined()):
                joined.add_edge(x, name)
        if wiring.program.nodes[name].op in IN_PLACE:
            changed = wiring.program.nodes[name].inputs[0]
            users = (user for user in wiring.core if changed in wiring.program.nodes[user].inputs or user == changed[0])
            joined.add_edges_from((user, name) for user in users)
        if name not in wiring.effects.writes:
            writers = map(wiring.effects.writer.get, wiring.effects.takes.get(name, ()))
            joined.add_edges_from((writer, name) for writer in writers if writer is not None)
    return inseparable(wiring.after, joined)


def cut(wiring: Wiring, groups: Sequence[Sequence[str]]) -> list[Piece]:
    """The pieces: one for each group, in the same order."""
    return _Cutter(wiring, groups).pieces()


class _Cutter:
    def __init__(self, wiring: Wiring, groups: Sequence[Sequence[str]]):
        self._program, self._effects, self._groups = wiring.program, wiring.effects, groups
        self._position = {name: i for i, name in enumerate(wiring.program.nodes)}
        self._piece = {name: g for g, group in enumerate(groups) for name in group}
        self._left = [{variable: count for name in sorted(group, key=self._position.__getitem__)
                       for variable, count in self._effects.writes.get(name, ())} for group in groups]
        self._frozen = {v.name for v in wiring.program.variables.values() if v.frozen}
        self._reads = {version: name for name, version in self._effects.reads.items()}
        self._given: list[dict[Value, None]] = [{} for _ in groups]

    def pieces(self) -> list[Piece]:
        parts = [self._part(g) for g in range(len(self._groups))]
        for _, source, value in self.results():
            self._give(source, value)
        for _, source, value in self.updates():
            self._give(source, value)
        made = []
        for g, (core, nodes, inputs, weights) in enumerate(parts):
            extra = {value.rpartition(":")[0] for value in self._given[g] if not value.startswith("variable:")} - set(core)
            nodes = sorted({*nodes, *extra}, key=self._position.__getitem__)
            made.append(Piece(tuple(core), tuple(nodes), inputs, tuple(self._given[g]), weights))
        return made

    def results(self) -> Iterable[tuple[Tensor, Source, Value]]:
        """The tensors that the function returns, and where each is made and as what."""
        for x in self._program.outputs:
            yield x, *self._origin(x)

    def updates(self) -> Iterable[tuple[str, Source, Value]]:
        """The variables that the function updates, and where each is made and as what."""
        for variable, count in self._effects.last.items():
            yield variable, *self._version((variable, count))

    def _part(self, g: int) -> tuple[list[str], set[str], dict[Value, tuple[Source, Value]], dict[Value, str]]:
        core = sorted(self._groups[g], key=self._position.__getitem__)
        nodes, inputs, weights = set(core), dict[Value, tuple[Source, Value]](), dict[Value, str]()
        for name in core:
            for version in self._effects.takes.get(name, ()):
                value = f"variable:{version[0]}"
                if value not in inputs and self._piece.get(self._effects.writer.get(version)) != g:
                    inputs[value] = self._version(version)
            for x in self._program.nodes[name].inputs:
                node = self._program.nodes[x[0]]
                if node.op == "Const":
                    nodes.add(x[0])
                elif x[0] in self._program.variables or self._piece.get(x[0]) == g:
                    continue
                elif x[0] in self._effects.reads and self._piece.get(self._effects.writer.get(self._effects.reads[x[0]])) == g:
                    nodes.add(x[0])
                elif x[0] in self._effects.reads and self._effects.reads[x[0]][0] in self._frozen:
                    weights[f"{x[0]}:{x[1]}"] = self._effects.reads[x[0]][0]
                else:
                    inputs[f"{x[0]}:{x[1]}"] = self._origin(x)
        for source, value in inputs.values():
            self._give(source, value)
        return core, nodes, inputs, weights

    def _give(self, source: Source, value: Value) -> None:
        if source[0] == "piece":
            self._given[source[1]].setdefault(value)

    def _origin(self, x: Tensor) -> tuple[Source, Value]:
        if x[0] in self._effects.reads:
            return self._version(self._effects.reads[x[0]])
        if x[0] in self._piece:
            return ("piece", self._piece[x[0]]), f"{x[0]}:{x[1]}"
        return ("argument", x[0]), f"{x[0]}:0"

    def _version(self, version: Version) -> tuple[Source, Value]:
        """A version that its piece updates again is given as what a read has found."""
        variable, _ = version
        writer = self._effects.writer.get(version)
        if writer is None:
            return ("weight", variable), f"variable:{variable}"
        g = self._piece[writer]
        last = (variable, self._left[g][variable]) == version
        return ("piece", g), f"variable:{variable}" if last else f"{self._reads[version]}:0"


def ends(wiring: Wiring, groups: Sequence[Sequence[str]]) -> tuple[list, list]:
    """What the function returns and updates, each with the source and the value there."""
    cutter = _Cutter(wiring, groups)
    return list(cutter.results()), list(cutter.updates())
