"""Calls of functions are replaced by what the functions do; loops and branches stay calls of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from data.capture.operations import CALLS
from data.capture.program import Node, Tensor, in_order, parse_inputs
from data.capture.scopes import Scopes
from doppler_tf.errors import ConfigError


class Inliner:
    """The operations so far, under names that are unique: those of a function called as `f` begin with `f/`."""

    def __init__(self, library: tf.compat.v1.GraphDef, where: str):
        """Args: where: the function captured, as errors call it."""
        self.nodes: dict[str, Node] = {}
        self._functions = {f.signature.name: f for f in library.library.function}
        self._bodies: dict[str, tuple] = {}
        self._where, self._scopes = where, Scopes(self._functions)

    def expand(self, graph: tf.compat.v1.GraphDef, prefix: str = "", function: str | None = None,
               arguments: Mapping[str, Tensor] | None = None, controls: Sequence[str] = (), scope: str = "") -> _Names:
        """Adds the operations of one graph.

        Args:
          function: its name in the library.
          arguments: what stands for its placeholders; without it they are kept.
          controls: what must have run before any of them.
          scope: the device text of the call.

        Raises:
          ConfigError: the graph goes round in a circle, as loops of TensorFlow 1 do.
        """
        local: dict[str, Node] = {}
        records = {record.name: record for record in graph.node}
        for record in graph.node:
            local[record.name] = Node(record.name, record.op, *parse_inputs(record.input), record.attr, (function, record.name),
                                      self._scopes.of(record, scope))
        ordered = in_order(local)
        if ordered is None:
            raise ConfigError(f"{self._where}: expected loops of TensorFlow 2 (While), got a graph with loops of TensorFlow 1 (Enter, "
                              "NextIteration); trace the function anew with tf.function")
        names = _Names(dict(arguments or {}))
        for node in ordered.values():
            if node.name in names.tensors:
                continue
            inputs = [names.tensor(x) for x in node.inputs]
            before = [*controls, *(name for c in node.controls for name in names.after(c))]
            called = self._called(node)
            if called is not None:
                names.calls[node.name] = self._call(prefix + node.name, called, inputs, before,
                                                    self._scopes.merged(records[node.name], scope))
            else:
                fresh = self._fresh(prefix + node.name)
                names.names[node.name] = fresh
                self.nodes[fresh] = Node(fresh, node.op, inputs, before, node.attr, node.origin, node.scopes)
        return names

    def _call(self, name: str, called: str, inputs: list[Tensor], controls: list[str], scope: str) -> tuple[list[Tensor], list[str]]:
        """The tensors that a call returns, and the operations after which it has ended."""
        if called not in self._bodies:
            self._bodies[called] = function_def_to_graph.function_def_to_graph_def(self._functions[called])
        body, flat = self._bodies[called]
        definition = self._functions[called]
        if controls:  # one for all: operations in the body are many
            gate = self._fresh(f"{name}/begin")
            self.nodes[gate] = Node(gate, "NoOp", [], controls, {}, (None, name))
            controls = [gate]
        arguments = dict(zip((arg.name for arg in definition.signature.input_arg), inputs, strict=True))
        inner = self.expand(body, f"{name}/", called, arguments, controls, scope)
        tensors = [inner.tensor(parse_inputs([flat[definition.ret[arg.name]]])[0][0]) for arg in definition.signature.output_arg]
        ends = [end for control in definition.control_ret.values() for end in inner.after(control)]
        return tensors, list(dict.fromkeys([*controls, *ends, *(producer for producer, _ in tensors)]))

    def _called(self, node: Node) -> str | None:
        """The function that the operation does nothing but call."""
        if node.op in CALLS:
            return node.attr["f"].func.name
        return node.op if node.op in self._functions else None

    def _fresh(self, name: str) -> str:
        unique, count = name, 0
        while unique in self.nodes:
            count += 1
            unique = f"{name}_{count}"
        return unique


class _Names:
    """What the names of one graph mean in the whole."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors, self.names = tensors, dict[str, str]()
        self.calls: dict[str, tuple[list[Tensor], list[str]]] = {}

    def tensor(self, x: Tensor) -> Tensor:
        """The tensor of the whole."""
        name, k = x
        if name in self.tensors:
            return self.tensors[name]
        return self.calls[name][0][k] if name in self.calls else (self.names[name], k)

    def after(self, name: str) -> list[str]:
        """The operations of the whole that have ended when this one has."""
        if name in self.tensors:
            return [self.tensors[name][0]]
        return self.calls[name][1] if name in self.calls else [self.names[name]]
