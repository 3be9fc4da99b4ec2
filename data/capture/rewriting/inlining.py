"""Calls of functions are replaced by what the functions do; loops and branches stay calls of theirs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from data.capture.operations import CALLS
from data.capture.program import Node, Tensor, in_order, needed, parse_inputs, unique
from data.capture.rewriting.scopes import Scopes
from data.capture.rewriting.switches import Whole, with_whole_control_flow
from doppler_tf.errors import ConfigError


class Inliner:
    """The operations so far, under names that are unique: those of a function called as `f` begin with `f/`."""

    def __init__(self, library: tf.compat.v1.GraphDef, where: str):
        """Args: library: gets a function for each conditional or loop of TensorFlow 1; where: the function captured, as errors call it."""
        self.nodes: dict[str, Node] = {}
        self._functions = {f.signature.name: f for f in library.library.function}
        self._bodies: dict[str, tuple] = {}
        self._library, self._where, self._scopes = library, where, Scopes(self._functions)

    def expand(self, graph: tf.compat.v1.GraphDef, returned: Collection[Tensor], prefix: str = "", function: str | None = None,
               arguments: Mapping[str, Tensor] | None = None, controls: Sequence[str] = (), scope: str = "") -> _Names:
        """Adds the operations of one graph.

        Args:
          returned: the tensors that it returns.
          function: its name in the library.
          arguments: what stands for its placeholders; without it they are kept.
          controls: what must have run before any of them.
          scope: the device text of the call.

        Raises:
          ConfigError: a function is damaged, or operations wait for each other in a circle.
        """
        local: dict[str, Node] = {}
        whole = with_whole_control_flow(graph, self._library, returned)
        if whole.calls:  # of new functions
            self._functions |= {f.signature.name: f for f in self._library.library.function}
        records = {record.name: record for record in whole.graph.node}
        for record in whole.graph.node:
            local[record.name] = Node(record.name, record.op, *parse_inputs(record.input), record.attr,
                                      (function, whole.calls.get(record.name, record.name)), self._scopes.of(record, scope))
        for node in local.values():  # functions in a file may be damaged
            absent = next((name for name in needed(node) if name not in local and name not in (arguments or {})), None)
            if absent is not None:
                raise ConfigError(f"{self._where}: operation {prefix + node.name!r} ({node.op}): expected inputs that the function makes, "
                                  f"got {absent!r}; export the model again")
        ordered = in_order(local)
        if ordered is None:
            raise ConfigError(f"{self._where}: {function or 'graph'}: expected operations in an order, got some that wait for each other "
                              "in a circle; export the model again")
        names = _Names(dict(arguments or {}), whole)
        for node in ordered.values():
            if node.name in names.tensors:
                continue
            inputs = [names.tensor(x) for x in node.inputs]
            before = [*controls, *(name for c in node.controls for name in names.after(c))]
            if node.op in CALLS and node.name not in whole.calls:
                names.calls[node.name] = self._call(prefix + node.name, node.attr["f"].func.name, inputs, before,
                                                    self._scopes.merged(records[node.name], scope))
            else:
                fresh = unique(prefix + node.name, self.nodes)
                names.names[node.name] = fresh
                self.nodes[fresh] = Node(fresh, node.op, inputs, before, node.attr, node.origin, node.scopes)
        return names

    def _call(self, name: str, called: str, inputs: list[Tensor], controls: list[str], scope: str) -> tuple[list[Tensor], list[str]]:
        """The tensors that a call returns, and the operations after which it has ended."""
        definition = self._functions[called]
        if called not in self._bodies:
            self._bodies[called] = function_def_to_graph.function_def_to_graph_def(definition)
        body, flat = self._bodies[called]
        returned = [flat.get(definition.ret.get(arg.name)) for arg in definition.signature.output_arg]
        if len(inputs) != len(definition.signature.input_arg) or None in returned:
            raise ConfigError(f"{self._where}: operation {name!r}: expected a function of {len(inputs)} inputs that makes all that it "
                              f"returns, got {called!r}, which does not; export the model again")
        returned = parse_inputs(returned)[0]
        if controls:  # one for all: operations in the body are many
            gate = unique(f"{name}/begin", self.nodes)
            self.nodes[gate] = Node(gate, "NoOp", [], controls, {}, (None, name))
            controls = [gate]
        arguments = dict(zip((arg.name for arg in definition.signature.input_arg), inputs, strict=True))
        inner = self.expand(body, returned, f"{name}/", called, arguments, controls, scope)
        tensors = list(map(inner.tensor, returned))
        ends = [end for control in definition.control_ret.values() for end in inner.after(control)]
        return tensors, list(dict.fromkeys([*controls, *ends, *(producer for producer, _ in tensors)]))


class _Names:
    """What the names of one graph mean in the whole."""

    def __init__(self, tensors: dict[str, Tensor], whole: Whole):
        self.tensors, self.names, self._whole = tensors, dict[str, str](), whole
        self.calls: dict[str, tuple[list[Tensor], list[str]]] = {}

    def tensor(self, x: Tensor) -> Tensor:
        """The tensor of the whole."""
        name, k = self._whole.moved.get(x, x)
        if name in self.tensors:
            return self.tensors[name]
        return self.calls[name][0][k] if name in self.calls else (self.names[name], k)

    def after(self, name: str) -> list[str]:
        """The operations of the whole that have ended when this one has."""
        name = self._whole.inside.get(name, name)
        if name in self.tensors:
            return [self.tensors[name][0]]
        return self.calls[name][1] if name in self.calls else [self.names[name]]
