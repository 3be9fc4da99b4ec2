"""The functions that loops and branches call: those that are used, named after their content, so that equal ones have one name anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import tensorflow as tf

from data.capture.program import Node, library_functions


def named_by_content(nodes: Iterable[Node], library: tf.compat.v1.GraphDef) -> tuple[dict[str, Node], tf.compat.v1.GraphDef]:
    """The operations with the new names of what they call, and a library of just these functions.

    TensorFlow numbers functions as it traces them, and a process holds one of each name. So names from a file could mean something else.
    Attributes of functions go: among them are pointers to implementations for other devices and to gradients.
    """
    kept = tf.compat.v1.GraphDef(versions=library.versions)
    renaming = _Renaming(library, kept)
    renamed = {}
    for node in nodes:
        if library_functions(node.attr):
            record = tf.compat.v1.NodeDef(attr=dict(node.attr))
            renaming.rename(record)
            node.attr = record.attr
        renamed[node.name] = node
    return renamed, kept


class _Renaming:
    def __init__(self, library: tf.compat.v1.GraphDef, kept: tf.compat.v1.GraphDef):
        self._functions = {f.signature.name: f for f in library.library.function}
        self._kept, self._names = kept, dict[str, str]()

    def rename(self, node: tf.compat.v1.NodeDef) -> None:
        """Gives all functions that a NodeDef names their new names."""
        if node.op in self._functions:
            node.op = self._name(node.op)
        for value in node.attr.values():
            for function in [value.func] if value.HasField("func") else value.list.func:
                function.name = self._name(function.name)

    def _name(self, old: str) -> str:
        if old not in self._names:
            self._names[old] = old  # a function that calls itself keeps its name
            function = type(self._functions[old])()
            function.CopyFrom(self._functions[old])
            function.signature.name = ""
            function.attr.clear()
            function.arg_attr.clear()
            for node in function.node_def:
                node.device = ""
                node.ClearField("experimental_debug_info")
                self.rename(node)
            name = f"captured_{hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:24]}"
            if name not in self._names.values():
                function.signature.name = name
                self._kept.library.function.append(function)
            self._names[old] = name
        return self._names[old]
