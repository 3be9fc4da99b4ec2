"""What a function holds beside variables and constants (a lookup table, an iterator, a summary writer) is named by what is done with it."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from data.capture.kinds import TAKEN, Kind, kind_of
from data.capture.operations import BRANCHES
from data.capture.program import library_functions

_PASSES = frozenset(("Identity", "Switch", "Enter"))


def first_use(graph: tf.compat.v1.GraphDef, placeholder: str) -> tuple[str, str, Kind] | None:
    """The first operation, however deep in functions, that takes a tensor and is refused: its name, what it is called, and its kind."""
    functions = {f.signature.name: f for f in graph.library.function}

    def follow(nodes: Iterable[tf.compat.v1.NodeDef], name: str, seen: frozenset[str]) -> tuple[str, str, Kind] | None:
        for node in nodes:
            for k in (k for k, text in enumerate(node.input) if text.partition(":")[0] == name):
                called = [f for f in [*library_functions(node.attr), node.op] if f in functions and f not in seen]
                found, kind = None, kind_of(node.op, node.attr)
                if kind not in TAKEN and node.op not in functions:
                    return node.name, node.op, kind
                if node.op in _PASSES:
                    found = follow(nodes, node.name, seen)
                for function in called:
                    definition, position = functions[function], k - (node.op in BRANCHES)
                    if found is None and 0 <= position < len(definition.signature.input_arg):
                        found = follow(definition.node_def, definition.signature.input_arg[position].name, seen | {function})
                if found is not None:
                    return found
        return None

    return follow(graph.node, placeholder, frozenset())
