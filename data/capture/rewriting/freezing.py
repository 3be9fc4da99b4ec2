"""Variables that are only read, and large constants, are weights: what depends on them alone is computed now, norms join convolutions.

TensorFlow's own optimizer does the same inside of one function. Here it is done before the function is cut into pieces, so that a batch
norm and its convolution are not parted.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import tensorflow as tf

from data.capture.program import SHAPES, Node, Program, Tensor, Variable, constant, shape_attr, type_attr, unique
from data.capture.rewriting.effects import Effects
from data.capture.rewriting.folding import MOST_BYTES as MOST_CONSTANT_BYTES
from data.capture.rewriting.folding import foldable, values_of

# Beyond this, functions cannot hold their weights as constants.
MOST_BYTES = 1 << 31
# A result of as many bytes, or integers of which TensorFlow may infer shapes, are written as a constant; others are weights of their own.
_SMALL_BYTES = 1 << 10
_NORMS = frozenset(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"))
_CONVOLUTIONS = frozenset(("Conv2D", "Conv3D", "DepthwiseConv2dNative"))


def freeze(program: Program, effects: Effects, handles: Mapping[str, tf.Tensor]) -> tuple[Program, Effects]:
    """The program with frozen variables, or as it is where they are too large.

    Args: handles: the resources of variables, by name.
    """
    touched = {variable for versions in (*effects.takes.values(), *effects.writes.values()) for variable, _ in versions}
    fixed = {key: v for key, v in program.variables.items() if v.name not in touched and not v.open_shape and v.name in handles}
    read, their_effects = _with_constants_as_weights(program, effects)
    variables = {**read.variables, **{key: replace(v, frozen=True) for key, v in fixed.items()}}
    if sum(v.size_bytes for v in variables.values() if v.frozen) >= MOST_BYTES:
        return program, effects
    values = {v.name: tf.raw_ops.ReadVariableOp(resource=handles[v.name], dtype=v.dtype) for v in fixed.values()}
    return _without_norms(*fold_weights(replace(read, variables=variables, weights={**read.weights, **values}), their_effects))


def _with_constants_as_weights(program: Program, effects: Effects) -> tuple[Program, Effects]:
    """Arrays that the function closes over, as large as weights, so that they count as memory and can leave a device.

    TensorFlow makes one for each use; equal ones become one weight. Those that are returned stay constants.
    """
    rewriter, made = _Rewriter(program, effects), dict[bytes, Tensor]()
    for name, node in program.nodes.items():
        x = name, 0
        if node.op != "Const" or x in program.outputs or _stays_constant(*_type_of(node.attr["value"].tensor)):
            continue
        content = hashlib.sha256(node.attr["value"].SerializeToString(deterministic=True)).digest()
        if content not in made:
            made[content] = rewriter.made(unique(f"{name}/value", program.nodes), rewriter.value(x), node)
        rewriter.instead[x] = made[content]
    return rewriter.finished(())


def fold_weights(program: Program, effects: Effects) -> tuple[Program, Effects]:
    """Operations on frozen variables and constants alone, by what they give."""
    frozen = {v.name for v in program.variables.values() if v.frozen}
    if not frozen:
        return program, effects
    reads = {name: program.weights[variable] for name, (variable, _) in effects.reads.items() if variable in frozen}
    constants = {name for name, node in program.nodes.items() if node.op == "Const"}
    folded, wanted = foldable(program, constants | reads.keys(), program.imported())
    if not folded:
        return program, effects
    rewriter = _Rewriter(program, effects)
    for x, value in zip(wanted, values_of(program, wanted, reads), strict=True):
        rewriter.replace(x, value)
    return rewriter.finished(folded)


def _without_norms(program: Program, effects: Effects) -> tuple[Program, Effects]:
    """Batch norms with known moments, behind a convolution that nobody else takes, become its filters and a bias.

    Where filters are less exact than moments, as in mixed precision, a norm stays: rounding would change results.
    """
    norms = [name for name, node in program.nodes.items() if node.op in _NORMS]
    if not norms:
        return program, effects
    users = Counter([x for node in program.nodes.values() for x in node.inputs] + list(program.outputs))
    graph, rewriter = program.imported(), _Rewriter(program, effects)
    for name in norms:
        node, norm = program.nodes[name], graph.get_operation_by_name(name)
        if norm.get_attr("is_training") or any(users[name, k] for k in range(1, 6)):
            continue
        linear, bias, layouts = program.nodes[node.inputs[0][0]], None, {_layout(norm)}
        if linear.op == "BiasAdd" and users[linear.name, 0] == 1:
            layouts.add(_layout(graph.get_operation_by_name(linear.name)))
            bias, linear = rewriter.value(linear.inputs[1]), program.nodes[linear.inputs[0][0]]
            if bias is None:
                continue
        if linear.op not in _CONVOLUTIONS or users[linear.name, 0] > 1:
            continue
        layouts.add(_layout(graph.get_operation_by_name(linear.name)))
        filters = rewriter.value(linear.inputs[1])
        scale, offset, mean, variance = moments = [rewriter.value(x) for x in node.inputs[1:]]
        if len(layouts) > 1 or any(x is None for x in (filters, *moments)) or filters.dtype != scale.dtype:
            continue
        factor = scale / tf.sqrt(variance + norm.get_attr("epsilon"))
        shift = offset - mean * factor + (0 if bias is None else bias * factor)
        by_filter = tf.reshape(factor, filters.shape[2:]) if linear.op == "DepthwiseConv2dNative" else factor
        rewriter.feed(linear.name, 1, filters * by_filter)
        attr = {"T": linear.attr["T"], "data_format": tf.compat.v1.AttrValue(s=_layout(norm))}
        rewriter.become(Node(name, "BiasAdd", [(linear.name, 0)], [], attr, node.origin, node.scopes), shift)
    return rewriter.finished(())


def _layout(op: tf.Operation) -> bytes:
    """Where an operation has its channels, as BiasAdd calls it."""
    return b"NCHW" if op.get_attr("data_format").startswith(b"NC") else b"NHWC"


def _type_of(value: tf.compat.v1.TensorProto) -> tuple[list[int], tf.DType]:
    return [each.size for each in value.tensor_shape.dim], tf.as_dtype(value.dtype)


def _stays_constant(shape: Iterable[int], dtype: tf.DType) -> bool:
    """Whether a value is no weight: it is small, or its type is one of which variables are not."""
    size = math.prod(shape) * dtype.size
    number = dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool
    return size <= _SMALL_BYTES or not number or (dtype.is_integer and size <= MOST_CONSTANT_BYTES)


class _Rewriter:
    """Changes operations and what they read, as long as it is collected. Attributes: instead: what is taken in place of a tensor."""

    def __init__(self, program: Program, effects: Effects):
        self._program, self._effects = program, effects
        self._nodes, self._reads = dict(program.nodes), dict(effects.reads)
        self._variables, self._weights = dict(program.variables), dict(program.weights)
        self.instead: dict[Tensor, Tensor] = {}

    def value(self, x: Tensor) -> tf.Tensor | None:
        """What a tensor is known to be."""
        node = self._program.nodes[x[0]]
        if node.op == "Const":
            return tf.constant(tf.make_ndarray(node.attr["value"].tensor))
        return self._weights.get(self._reads[x[0]][0]) if x[0] in self._reads else None

    def replace(self, x: Tensor, value: tf.Tensor) -> None:
        """Who takes the tensor takes this value."""
        self.instead[x] = self.made(f"{x[0]}/folded_{x[1]}", value, self._program.nodes[x[0]])

    def feed(self, name: str, position: int, value: tf.Tensor) -> None:
        """The operation takes this value at this position."""
        node = self._nodes[name]
        inputs = list(node.inputs)
        inputs[position] = self.made(f"{name}/folded_{position}", value, node)
        self._nodes[name] = replace(node, inputs=inputs)

    def become(self, node: Node, last: tf.Tensor) -> None:
        """An operation is replaced by one of the same name, whose last input is this value."""
        made = self.made(f"{node.name}/folded_{len(node.inputs)}", last, node)
        self._nodes[node.name] = replace(node, inputs=[*node.inputs, made])

    def finished(self, gone) -> tuple[Program, Effects]:
        """Args: gone: names of the operations that are not needed any more."""
        if self._nodes == self._program.nodes:
            return self._program, self._effects
        nodes = {name: node for name, node in self._nodes.items() if name not in gone}
        program = self._program.with_nodes(nodes, self.instead)
        return replace(program, variables=self._variables, weights=self._weights), replace(self._effects, reads=self._reads)

    def made(self, name: str, value: tf.Tensor, of: Node) -> Tensor:
        """A constant or a weight of this value. Args: of: the operation that stands for its place in the user's program."""
        before = {}
        if _stays_constant(value.shape, value.dtype):
            before[name] = constant(name, np.asarray(value), value.dtype, of.origin)
        else:
            placeholder, shape = f"{name}/variable", tuple(value.shape)
            attr = {"dtype": type_attr(value.dtype), SHAPES: shape_attr([shape])}
            before[placeholder] = Node(placeholder, "Placeholder", [], [], {"dtype": type_attr(tf.resource)}, of.origin)
            before[name] = Node(name, "ReadVariableOp", [(placeholder, 0)], [], attr, of.origin)
            self._variables[placeholder] = Variable(name, placeholder, shape, value.dtype, frozen=True)
            self._weights[name], self._reads[name] = value, (name, 0)
        self._nodes = before | self._nodes
        return name, 0
