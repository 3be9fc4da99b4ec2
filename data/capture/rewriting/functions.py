"""The functions that loops and branches call: those that are used, named after their content, so that equal ones have one name anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from data.capture.program import Node, library_functions
from doppler_tf.errors import ConfigError


def call_by_operation(graph: tf.compat.v1.GraphDef) -> None:
    """Where the kind of an operation is the name of a function, an operation that calls it stands afterwards."""
    functions = {f.signature.name: f for f in graph.library.function}
    _call_in(graph.node, functions)
    for function in functions.values():
        moved = _call_in(function.node_def, functions)
        for key in [key for key, text in function.ret.items() if text in moved]:
            function.ret[key] = moved[function.ret[key]]
        for node in function.node_def:
            node.input[:] = [moved.get(text, text) for text in node.input]


def _call_in(nodes: Iterable[tf.compat.v1.NodeDef], functions: Mapping) -> dict[str, str]:
    """Returns what the outputs of such operations are called in a function now."""
    moved = {}
    for node in nodes:
        if node.op in functions:
            definition = functions[node.op]
            node.attr["f"].func.name, types = node.op, (definition.signature.input_arg, definition.signature.output_arg)
            for key, arguments in zip(("Tin", "Tout"), types, strict=True):
                node.attr[key].list.type.extend(arg.type for arg in arguments)
            node.op = "StatefulPartitionedCall"
            moved |= {f"{node.name}:{arg.name}:0": f"{node.name}:output:{k}" for k, arg in enumerate(definition.signature.output_arg)}
    return moved


def check_functions(graph: tf.compat.v1.GraphDef, where: str) -> None:
    """Raises ConfigError for a function that is called, however deep, and is absent or calls itself, and for damaged constants."""
    functions = {f.signature.name: f for f in graph.library.function}
    done, open_ = set[str](), list[str]()

    def visit(nodes: Iterable[tf.compat.v1.NodeDef]) -> None:
        for node in nodes:
            if node.op == "Const" and node.attr["value"].tensor.dtype != node.attr["dtype"].type:  # TensorFlow would crash
                raise ConfigError(f"{where}: operation {node.name!r}: expected a constant of the type that it says, got another; export "
                                  "the model again")
            for name in library_functions(node.attr):
                if name in open_ or name not in functions:
                    problem = "calls itself" if name in open_ else "the graph does not hold"
                    raise ConfigError(f"{where}: operation {node.name!r} ({node.op}): expected a function that the graph holds and that "
                                      f"ends, got {name!r}, which {problem}; write it as a loop, or export the model again")
                if name not in done:
                    open_.append(name)
                    visit(functions[name].node_def)
                    done.add(open_.pop())

    visit(graph.node)


def named_by_content(nodes: Iterable[Node], library: tf.compat.v1.GraphDef) -> tuple[dict[str, Node], tf.compat.v1.GraphDef]:
    """The operations with the new names of what they call, and a library of just these functions.

    A function ends when its effects have ended, as those that `tf.function` makes: TensorFlow inlines functions, and what waits for a loop
    or branch would else not wait for the updates inside.

    TensorFlow numbers functions as it traces them, and a process holds one of each name. So names from a file could mean something else.
    Attributes of functions go, but that which keeps TensorFlow from inlining: among them are pointers to implementations for other
    devices and to gradients.
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
        for value in node.attr.values():
            for function in [value.func] if value.HasField("func") else value.list.func:
                function.name = self._name(function.name)

    def _name(self, old: str) -> str:
        if old not in self._names:
            function = type(self._functions[old])()
            function.CopyFrom(self._functions[old])
            function.signature.name = ""
            whole = function.attr["_noinline"].b
            function.attr.clear()
            if whole:
                function.attr["_noinline"].b = True
            function.arg_attr.clear()
            for node in function.node_def:
                node.device = ""
                node.ClearField("experimental_debug_info")
                self.rename(node)
            _end_with_effects(function)
            name = f"captured_{hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:24]}"
            if name not in self._names.values():
                function.signature.name = name
                self._kept.library.function.append(function)
            self._names[old] = name
        return self._names[old]


def _end_with_effects(function) -> None:
    """Makes stateful operations outputs of control, where TensorFlow inlines the function."""
    if "_noinline" in function.attr:  # TensorFlow 1's control flow, in which some never run
        return
    for node in function.node_def:
        definition = op_def_registry.get(node.op)
        if definition is not None and definition.is_stateful and node.name not in function.control_ret.values():
            function.control_ret[node.name] = node.name
            function.signature.control_output.append(node.name)
