"""Floating-point operations of one TensorFlow operation, estimated from its shapes. A multiplication with an addition counts two."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from data.capture.operations import BRANCHES, CALLS, LOOPS, VIEWS
from data.capture.program import library_functions

# They move data and compute nothing.
MOVES = VIEWS | {
    "Const", "Placeholder", "ReadVariableOp", "Identity", "NoOp", "ConcatV2", "Concat", "Split", "SplitV", "Pack", "Unpack", "Transpose",
    "ConjugateTranspose", "Slice", "StridedSlice", "StridedSliceGrad", "Pad", "PadV2", "MirrorPad", "Tile", "Fill", "BroadcastTo",
    "GatherV2", "GatherNd", "Cast", "Bitcast", "ReverseV2", "Range", "Shape", "AssignVariableOp", "SpaceToBatchND", "BatchToSpaceND",
    "DepthToSpace",
    "SpaceToDepth", "TensorListFromTensor", "TensorListStack", "TensorListReserve", "TensorListGetItem", "TensorListSetItem", "ZerosLike",
    "OnesLike", "InvertPermutation", "Roll"}
REDUCTIONS = frozenset(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "L2Loss", "EuclideanNorm", "BiasAddGrad",
                        "Cumsum", "Cumprod", "UnsortedSegmentSum", "SegmentSum", "TopKV2"))
# Operations for each element of the largest input.
BY_ELEMENT = {"Softmax": 5, "LogSoftmax": 5, "FusedBatchNormV3": 4, "FusedBatchNormGradV3": 10, "LRN": 10, "ResourceApplyAdam": 12,
              "ResourceApplyGradientDescent": 2, "ResourceApplyMomentum": 4, "ResourceApplyKerasMomentum": 4, "ResourceApplyAdagradV2": 6,
              "ResourceApplyRMSProp": 10, "SparseSoftmaxCrossEntropyWithLogits": 8, "SoftmaxCrossEntropyWithLogits": 8}


class Flops:
    """Estimates for the operations of a graph; the functions that its loops call are imported once."""

    def __init__(self, library: tf.compat.v1.GraphDef):
        self._definitions = {f.signature.name: f for f in library.library.function}
        self._library = library
        self._bodies: dict[tuple, float] = {}

    def __call__(self, op: tf.Operation) -> float:
        """The estimate; a loop counts its body once for each turn, where their number is known, a branch its dearest side."""
        if op.type in LOOPS:
            inside = [self._function(name, op.inputs) for name in library_functions(op.node_def.attr)]
            return sum(inside) * (self._turns(op) or 1)
        if op.type in BRANCHES:
            return max(self._function(name, op.inputs[1:]) for name in library_functions(op.node_def.attr))
        if op.type in CALLS:
            return sum(self._function(name, op.inputs) for name in library_functions(op.node_def.attr))
        if op.type in MOVES:
            return 0.0
        if op.type in PRODUCTS:
            return float(PRODUCTS[op.type](op))
        largest = max((_size(x) for x in op.inputs), default=0)
        if op.type in REDUCTIONS:
            return float(largest)
        if op.type == "AddN":
            return float((len(op.inputs) - 1) * largest)
        return float(BY_ELEMENT.get(op.type, 1) * (largest if op.type in BY_ELEMENT else sum(map(_size, op.outputs)) or largest))

    def _function(self, name: str, inputs) -> float:
        shapes = [x.shape for x in inputs]
        key = name, tuple(map(str, shapes))
        if key not in self._bodies:
            self._bodies[key] = 0.0  # a function that calls itself
            try:
                body, _ = function_def_to_graph.function_def_to_graph_def(self._definitions[name], shapes)
                body.library.CopyFrom(self._library.library)
                body.versions.CopyFrom(self._library.versions)
                with tf.Graph().as_default() as graph:
                    tf.import_graph_def(body, name="")
                self._bodies[key] = sum(self(op) for op in graph.get_operations())
            except (ValueError, KeyError):  # an estimate is no reason to fail
                self._bodies[key] = 0.0
        return self._bodies[key]

    def _turns(self, op: tf.Operation) -> int | None:
        """How often a loop turns: its condition compares a counter that starts at a constant with a constant, and the step is one."""
        condition = self._definitions[op.node_def.attr["cond"].func.name]
        places = {arg.name: i for i, arg in enumerate(condition.signature.input_arg)}
        constants = {node.name: node.attr["value"].tensor for node in condition.node_def if node.op == "Const"}

        def number(text: str) -> int | None:
            name = text.partition(":")[0]
            if name in constants:
                return _scalar(tf.make_ndarray(constants[name]))
            source = op.inputs[places[name]].op if name in places else None
            return _scalar(tf.make_ndarray(source.get_attr("value"))) if source is not None and source.type == "Const" else None

        turns = []
        for node in condition.node_def:
            if node.op == "Less":
                start, stop = map(number, node.input[:2])
                if start is not None and stop is not None:
                    turns.append(max(stop - start, 0))
        return min(turns, default=None)


def _scalar(value) -> int | None:
    return int(value) if value.ndim == 0 and value.dtype.kind in "iu" else None


def _size(tensor: tf.Tensor) -> int:
    """Elements; of an unknown axis, one."""
    if tensor.shape.rank is None or tensor.dtype in (tf.resource, tf.variant):
        return 1
    return math.prod(extent or 1 for extent in tensor.shape.as_list())


def _extents(tensor: tf.Tensor) -> list[int]:
    return [extent or 1 for extent in tensor.shape.as_list()] if tensor.shape.rank is not None else [1] * 8


def _matmul(op: tf.Operation) -> int:
    attributes = op.node_def.attr
    transposed = attributes["transpose_a" if op.type == "MatMul" else "adj_x"].b
    return 2 * _size(op.outputs[0]) * _extents(op.inputs[0])[-2 if transposed else -1]


def _einsum(op: tf.Operation) -> int:
    """Twice the points of the space of all labels."""
    left = op.get_attr("equation").decode().partition("->")[0].replace(" ", "")
    extent: dict[str, int] = {}
    for term, tensor in zip(left.split(","), op.inputs, strict=True):
        before, dots, behind = term.partition("...")
        shape = _extents(tensor)
        extent.update(zip(before, shape, strict=False))
        if dots:
            middle = shape[len(before):len(shape) - len(behind)]
            extent["..."] = max(extent.get("...", 1), math.prod(middle))
            extent.update(zip(behind, shape[len(shape) - len(behind):], strict=False))
    return (2 if len(op.inputs) > 1 else 1) * math.prod(extent.values())


def _convolution(points: Callable[[tf.Operation], tf.Tensor], kernel: Callable[[tf.Operation], list[int]]) -> Callable[[tf.Operation], int]:
    """Two for each output point and each of the kernel's weights that reach it."""
    return lambda op: 2 * _size(points(op)) * math.prod(kernel(op))


def _pooling(points: Callable[[tf.Operation], tf.Tensor]) -> Callable[[tf.Operation], int]:
    return lambda op: _size(points(op)) * math.prod(op.get_attr("ksize"))


def _first_output(op: tf.Operation) -> tf.Tensor:
    return op.outputs[0]


def _gradient(op: tf.Operation) -> tf.Tensor:
    return op.inputs[2]


# Operations that compute more than they move.
PRODUCTS: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul), "Einsum": _einsum,
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution(_first_output, lambda op: _extents(op.inputs[1])[:-1])),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _convolution(_gradient, lambda op: _extents(op.inputs[1])[:-1])),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"),
                    _convolution(_gradient, lambda op: _extents(op.outputs[0])[:-1])),
    "DepthwiseConv2dNative": _convolution(_first_output, lambda op: _extents(op.inputs[1])[:2]),
    "DepthwiseConv2dNativeBackpropInput": _convolution(_gradient, lambda op: _extents(op.inputs[1])[:2]),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(_gradient, lambda op: _extents(op.outputs[0])[:2]),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), _pooling(_first_output)),
    "MaxPoolGrad": _pooling(_gradient), "AvgPoolGrad": _pooling(lambda op: op.inputs[1]),
}
