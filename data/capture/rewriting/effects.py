"""Which operations touch variables or the world outside, and in which order: each variable's value has versions, each update makes one."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from data.capture.kinds import TAKEN, Kind, kind_of
from data.capture.operations import BRANCHES, CONTROL_FLOW, READERS
from data.capture.program import Node, Program, library_functions
from doppler_tf.errors import ConfigError

EVERYTHING = "*"
RESOURCE = tf.resource.as_datatype_enum
# A variable's name and how often it has been updated before.
Version = tuple[str, int]


@dataclass(frozen=True)
class Effects:
    """What the operations of a program do beside making tensors.

    Attributes:
      reads: the version whose value a ReadVariableOp makes.
      takes: the versions that an operation finds in the variables whose resources it takes.
      writes: the versions that it leaves there.
      writer: the operation that makes a version; none makes version 0.
      last: the version of each variable at the end, where that is not 0.
      ordered: operations that draw random numbers, print, assert or more, in the order in which they must run.
      lasting: operations that run even if nobody takes their outputs.
      seeded: operations that go on with a sequence of random numbers which a seed begins.
    """

    reads: dict[str, Version] = field(default_factory=dict)
    takes: dict[str, list[Version]] = field(default_factory=dict)
    writes: dict[str, list[Version]] = field(default_factory=dict)
    writer: dict[Version, str] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    ordered: list[str] = field(default_factory=list)
    lasting: list[str] = field(default_factory=list)
    seeded: list[str] = field(default_factory=list)


# What passes a resource on inside of a function.
_PASSES = frozenset(("Identity", "Switch", "Enter", "Exit", "NextIteration"))
# Kinds that need no place in the order of all that is stateful.
_UNORDERED = frozenset((Kind.PURE, Kind.CHECK, Kind.VARIABLE, Kind.CALL))
# Kinds that are as well left out if nobody takes their outputs.
_PASSING = frozenset((Kind.PURE, Kind.RANDOM, Kind.VARIABLE, Kind.CALL))
# Attributes that hold a seed; 0 in all of them stands for none.
_SEEDS = ("seed", "seed2")


class Library:
    """What the functions that loops and branches call do to the variables that they are given, and which operations they hold."""

    def __init__(self, graph: tf.compat.v1.GraphDef):
        self._functions = {f.signature.name: f for f in graph.library.function}
        self._operations: dict[str, dict[str, Kind]] = {}
        self._written: dict[str, set[int]] = {}

    def operations(self, node: Node) -> dict[str, Kind]:
        """The operations in the functions that an operation calls, however deep, and what each does."""
        return {op: kind for name in library_functions(node.attr) for op, kind in self._operations_of(name).items()}

    def seeded(self, node) -> bool:
        """Whether an operation, or one in the functions that it calls, draws random numbers from a seed of its own."""
        return (kind_of(node.op, node.attr) is Kind.RANDOM and any(node.attr[key].i for key in _SEEDS if key in node.attr)) or any(
            self.seeded(inner) for name in library_functions(node.attr) for inner in self._functions[name].node_def)

    def written(self, node: Node) -> set[int]:
        """Positions among the inputs of a loop or branch of the variables that it may update."""
        skipped = 1 if node.op in BRANCHES else 0  # the condition
        return {i + skipped for name in library_functions(node.attr) for i in self._written_by(name)}

    def _operations_of(self, function: str) -> dict[str, Kind]:
        if function not in self._operations:
            found = self._operations[function] = {}
            for node in self._functions[function].node_def:
                kind = kind_of(node.op, node.attr)
                found[node.op] = kind if kind not in TAKEN else found.get(node.op, kind)
                for name in library_functions(node.attr):
                    found.update(self._operations_of(name))
        return self._operations[function]

    def _written_by(self, function: str) -> set[int]:
        if function in self._written:
            return self._written[function]
        self._written[function] = set()
        definition = self._functions[function]
        resources = {arg.name: {i} for i, arg in enumerate(definition.signature.input_arg) if arg.type == RESOURCE}
        everything, written, known = set().union(*resources.values()), set(), -1
        while len(resources) > known:  # operations stand in any order
            known = len(resources)
            for node in definition.node_def:
                sources = [text.partition(":")[0] for text in node.input if not text.startswith("^")]
                taken = [(k, resources[source]) for k, source in enumerate(sources) if source in resources]
                if not taken or node.op in READERS:
                    continue
                if node.op in _PASSES:
                    resources[node.name] = taken[0][1]
                    continue
                called = library_functions(node.attr)
                skipped = 1 if node.op in BRANCHES else 0
                inner = {i + skipped for name in called for i in self._written_by(name)}
                for k, which in taken:
                    if not called or k in inner:
                        written |= which
                # What comes out of it may be any of the variables.
                resources[node.name] = everything
        self._written[function] = written
        return written


def check_operations(program: Program, library: Library, where: str, allow: Collection[str]) -> None:
    """Raises ConfigError for the first operation that a capture does not take, unless `allow` names it."""
    for node in program.nodes.values():
        for op, kind in {**library.operations(node), node.op: kind_of(node.op, node.attr)}.items():
            if kind not in TAKEN and (kind is Kind.REFERENCE or (op not in allow and EVERYTHING not in allow)):
                inside = "" if op == node.op else f" (inside {node.op})"
                does, remedy = kind.value
                raise ConfigError(f"{where}: operation {node.name!r}{program.line(node)}: expected one that computes from its inputs and "
                                  f"variables, got {op}{inside}, which {does}; {remedy}")


def find_effects(program: Program, library: Library, where: str) -> Effects:
    """Follows the operations in their order.

    Raises:
      ConfigError: an operation takes a resource that is no variable.
    """
    effects, version = Effects(), dict.fromkeys((v.name for v in program.variables.values()), 0)
    for node in program.nodes.values():
        names = [(k, program.variables[x].name) for k, (x, _) in enumerate(node.inputs) if x in program.variables]
        if node.op == "ReadVariableOp" and names:
            effects.reads[node.name] = (names[0][1], version[names[0][1]])
            continue
        chosen = next((node.inputs[k][0] for k in _variables_taken(node.op) if node.inputs[k][0] not in program.variables), None)
        if chosen is not None:
            raise ConfigError(f"{where}: operation {node.name!r} ({node.op}){program.line(node)}: expected a variable of the function, got "
                              f"one that {chosen!r} chooses while the function runs; take each variable by itself")
        if names:
            effects.takes[node.name] = [(name, version[name]) for name in dict.fromkeys(name for _, name in names)]
            written = library.written(node) if node.op in CONTROL_FLOW else () if node.op in READERS else [k for k, _ in names]
            for name in dict.fromkeys(name for k, name in names if k in written):
                version[name] += 1
                effects.writes.setdefault(node.name, []).append((name, version[name]))
                effects.writer[name, version[name]] = node.name
        kinds = {kind_of(node.op, node.attr), *library.operations(node).values()}
        if kinds - _UNORDERED:
            effects.ordered.append(node.name)
        if kinds - _PASSING:
            effects.lasting.append(node.name)
        if library.seeded(node):
            effects.seeded.append(node.name)
    effects.last.update({name: count for name, count in version.items() if count})
    return effects


@functools.cache
def _variables_taken(op: str) -> tuple[int, ...]:
    """Positions of the variables among the inputs of an operation that reads or updates them."""
    if kind_of(op, {}) is not Kind.VARIABLE:
        return ()
    return tuple(k for k, arg in enumerate(op_def_registry.get(op).input_arg) if arg.type == RESOURCE)


def control_edges(effects: Effects) -> dict[str, list[str]]:
    """For each operation, those that must have run before it, beside those whose tensors it takes."""
    after: dict[str, list[str]] = {}
    users: dict[Version, list[str]] = {}
    for name, version in effects.reads.items():
        users.setdefault(version, []).append(name)
        if version in effects.writer:
            after.setdefault(name, []).append(effects.writer[version])
    for name, versions in effects.takes.items():
        for version in versions:
            users.setdefault(version, []).append(name)
            if version in effects.writer:
                after.setdefault(name, []).append(effects.writer[version])
    for (variable, count), writer in effects.writer.items():
        after.setdefault(writer, []).extend(name for name in users.get((variable, count - 1), ()) if name != writer)
    for first, second in zip(effects.ordered, effects.ordered[1:], strict=False):
        after.setdefault(second, []).append(first)
    return after
