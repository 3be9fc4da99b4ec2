"""The kernels of the graphs in TensorFlow: operation name -> function of parameters and operands. They run eagerly and when traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from doppler_tf.errors import ExecutionError, field_error
from doppler_tf.graph.dataflow import Kernel


def _rotate_half(x: tf.Tensor) -> tf.Tensor:
    """(-second half, first half) of the last axis: the quarter turn of rotary embedding."""
    first, second = tf.split(x, 2, axis=-1)
    return tf.concat([-second, first], axis=-1)


def _silu_gradient(gradient: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Times the derivative of x sigmoid(x)."""
    sigmoid = tf.sigmoid(x)
    return gradient * sigmoid * (1 + x * (1 - sigmoid))


FUNCTIONS: dict[str, Callable[..., tf.Tensor]] = {
    "identity": tf.identity, "square": tf.square, "relu": tf.nn.relu, "exp": tf.exp, "silu": tf.nn.silu, "rsqrt": tf.math.rsqrt,
    "scale": lambda x, factor, offset: x * tf.cast(factor, x.dtype) + tf.cast(offset, x.dtype),
    "rotate_half": _rotate_half,
    "sqrt": tf.sqrt, "log": tf.math.log, "sigmoid": tf.sigmoid,
    "is_zero": lambda x: tf.cast(x == 0, x.dtype),
    "fill": lambda x, value: tf.fill(x.shape, tf.cast(value, x.dtype)),
    "greater": lambda x, y: tf.cast(x > y, x.dtype), "greater_equal": lambda x, y: tf.cast(x >= y, x.dtype),
    "relu_gradient": lambda gradient, y: gradient * tf.cast(y > 0, gradient.dtype),
    "sqrt_gradient": lambda gradient, y: tf.math.multiply_no_nan(0.5 / y, gradient),
    "rsqrt_gradient": lambda gradient, y: tf.math.multiply_no_nan(-0.5 * y * y * y, gradient),
    "sigmoid_gradient": lambda gradient, y: gradient * y * (1 - y),
    "silu_gradient": _silu_gradient,
    "spread": lambda x, y: tf.broadcast_to(x, tf.broadcast_static_shape(x.shape, y.shape)),
    "where": lambda x, y: tf.where(y != 0, x, tf.zeros([], x.dtype)),
    "add_scaled": lambda x, y, factor: x + y * tf.cast(factor, y.dtype),
    "add": tf.add, "sub": tf.subtract, "mul": tf.multiply, "div": tf.divide, "maximum": tf.maximum, "minimum": tf.minimum,
}
REDUCTIONS: dict[str, Callable[..., tf.Tensor]] = {
    "sum": tf.reduce_sum, "max": tf.reduce_max, "min": tf.reduce_min, "prod": tf.reduce_prod,
}
PAIRWISE: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "sum": tf.add, "max": tf.maximum, "min": tf.minimum, "prod": tf.multiply,
}


@functools.cache
def _alignment(subscripts: str) -> tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[int, ...]]:
    """Per operand the axes' order and the axes to insert so that all range over output + reduced labels; and the reduced axes."""
    left, output = subscripts.split("->")
    space = output + "".join(letter for letter in dict.fromkeys(left.replace(",", "")) if letter not in output)
    operands = tuple((tuple(term.index(letter) for letter in space if letter in term),
                      tuple(axis for axis, letter in enumerate(space) if letter not in term)) for term in left.split(","))
    return operands, tuple(range(len(output), len(space)))


def _aligned(x: tf.Tensor, order: tuple[int, ...], inserted: tuple[int, ...]) -> tf.Tensor:
    if order != tuple(range(len(order))):
        x = tf.transpose(x, order)
    if inserted:
        extent = x.shape.as_list()
        for axis in inserted:
            extent.insert(axis, 1)
        x = tf.reshape(x, extent)
    return x


def _map(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """fn of the operands, broadcast by label, at every point of output + reduced labels."""
    extra = {key: value for key, value in params.items() if key not in ("fn", "subscripts", "aggregate")}
    alignments, _ = _alignment(params["subscripts"])
    return FUNCTIONS[params["fn"]](*(_aligned(x, *how) for x, how in zip(operands, alignments, strict=True)), **extra)


def _reduce(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    return REDUCTIONS[params["aggregate"]](_map(params, operands), axis=_alignment(params["subscripts"])[1])


@functools.cache
def _product(subscripts: str) -> Callable[..., tf.Tensor]:
    """A sum of products. `tf.einsum` plans anew at every call, in Python, for ten times as long as a product of matrices needs to start."""
    left, output = subscripts.split("->")
    terms = left.split(",")
    if [len(term) for term in (*terms, output)] == [2, 2, 2]:
        (row, column), summed = output, {*terms[0]} & {*terms[1]} - {*output}
        if summed and {*terms[0]} == {row, *summed} and {*terms[1]} == {column, *summed}:
            return functools.partial(_matrix_product, transpose_a=terms[0][0] in summed, transpose_b=terms[1][1] in summed)
    return lambda *operands: tf.raw_ops.Einsum(inputs=operands, equation=subscripts)


def _matrix_product(a: tf.Tensor, b: tf.Tensor, transpose_a: bool, transpose_b: bool) -> tf.Tensor:
    return tf.raw_ops.MatMul(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b)


def _einsum(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    return _product(params["subscripts"])(*operands)


def _aggregate(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    if len(operands) == 1:
        return operands[0]
    if params["aggregate"] == "sum":
        return tf.add_n(operands)  # one pass over memory, however many there are
    return functools.reduce(PAIRWISE[params["aggregate"]], operands)


def _assemble(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins a grid of boxes, axis by axis from the last: those that agree on the other axes are concatenated in order."""
    parts = {tuple(map(tuple, box)): x for box, x in zip(params["boxes"], operands, strict=True)}
    for axis in reversed(range(len(params["shape"]))):
        lines: dict[tuple, list] = {}
        for box in sorted(parts):
            lines.setdefault(box[:axis] + box[axis + 1:], []).append((box, parts[box]))
        parts = {(*rest[:axis], (line[0][0][axis][0], line[-1][0][axis][1]), *rest[axis:]):
                 tf.concat([x for _, x in line], axis) for rest, line in lines.items()}
    (whole,) = parts.values()
    return whole


def _pad(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """Zeros, with the operand in a box. Without a box, the operand only tells the type."""
    if params["box"] is None:
        return tf.zeros(params["shape"], operands[0].dtype)
    return tf.pad(operands[0], [(start, size - stop) for (start, stop), size in zip(params["box"], params["shape"], strict=True)])


def _fused(params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """The steps of a fused vertex; an operand counts the vertex's operands first, then the steps before."""
    known = list(operands)
    for step in params["steps"]:
        known.append(_run_op(step["op"], step["params"], [_cut(known[o["from"]], o["slice"]) for o in step["operands"]]))
    return known[-1]


KERNELS: dict[str, Callable[[Mapping[str, Any], Sequence[tf.Tensor]], tf.Tensor]] = {
    "einsum": _einsum, "reduce": _reduce, "map": _map, "aggregate": _aggregate, "assemble": _assemble, "pad": _pad,
    "fused": _fused,
    "token": lambda params, operands: tf.constant(0),  # of a batch that is done
}


def _run_op(op: str, params: Mapping[str, Any], operands: Sequence[tf.Tensor]) -> tf.Tensor:
    if op not in KERNELS:
        raise field_error(ExecutionError, "kernel", "", "op", f"one of {', '.join(KERNELS)}", op)
    return KERNELS[op](params, operands)


def _cut(x: tf.Tensor, box: Sequence[Sequence[int]] | None) -> tf.Tensor:
    return x if box is None else tf.slice(x, [start for start, _ in box], [stop - start for start, stop in box])


def run_kernel(kernel: Kernel, operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """Executes one kernel on the current device.

    Args:
      operands: the whole outputs of the kernel's operand vertices, in operand order; their slices are applied here.

    Raises:
      ExecutionError: the operation is unknown, or the number of operands is wrong.
    """
    if len(operands) != len(kernel.operands):
        raise field_error(ExecutionError, "kernel", kernel.op, "operands", f"{len(kernel.operands)} tensors", len(operands))
    return _run_op(kernel.op, kernel.params, [_cut(x, operand.slice) for operand, x in zip(kernel.operands, operands, strict=True)])
