"""Kernels in NumPy. They define every operation, and the runtime's kernels are compared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from doppler_tf.errors import GraphError, field_error
from doppler_tf.graph.dataflow import Kernel

Array = np.ndarray


def _rotate_half(x: Array) -> Array:
    """(-second half, first half) of the last axis: the quarter turn of rotary embedding (Su et al., arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _unless_zero(gradient: Array, slope: Array) -> Array:
    """Their product, and 0 where the gradient is 0, whatever the slope."""
    return np.where(gradient == 0, gradient, gradient * slope)


def _silu_gradient(gradient: Array, x: Array) -> Array:
    """Times the derivative of x sigmoid(x)."""
    sigmoid = 1 / (1 + np.exp(-x))
    return gradient * sigmoid * (1 + x * (1 - sigmoid))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "identity": lambda x: x,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "is_zero": lambda x: (x == 0).astype(x.dtype),
    "fill": lambda x, value: np.full_like(x, value),
    "scale": lambda x, factor, offset: x * x.dtype.type(factor) + x.dtype.type(offset),
    "rotate_half": _rotate_half,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "add_scaled": lambda x, y, factor: x + y * y.dtype.type(factor),
    "maximum": np.maximum, "minimum": np.minimum,
    "greater": lambda x, y: (x > y).astype(x.dtype),
    "greater_equal": lambda x, y: (x >= y).astype(x.dtype),
    "relu_gradient": lambda gradient, y: gradient * (y > 0),
    "sqrt_gradient": lambda gradient, y: _unless_zero(gradient, 0.5 / y),
    "rsqrt_gradient": lambda gradient, y: _unless_zero(gradient, -0.5 * y * y * y),
    "sigmoid_gradient": lambda gradient, y: gradient * y * (1 - y),
    "silu_gradient": _silu_gradient,
    "spread": lambda x, y: np.broadcast_arrays(x, y)[0],
    "where": lambda x, y: np.where(y != 0, x, x.dtype.type(0)),
}
AGGREGATES: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def _terms(params: Mapping[str, Any]) -> tuple[list[str], str]:
    left, output = params["subscripts"].split("->")
    return left.split(","), output


def _joined(params: Mapping[str, Any], operands: Sequence[Array]) -> tuple[Array, str]:
    """fn at every point of output labels + reduced labels, and these labels. Operands are broadcast by label."""
    terms, output = _terms(params)
    space = output + "".join(letter for letter in dict.fromkeys("".join(terms)) if letter not in output)
    aligned = [x.transpose(sorted(range(x.ndim), key=lambda axis, term=term: space.index(term[axis])))
               [tuple(slice(None) if letter in term else None for letter in space)] for term, x in zip(terms, operands, strict=True)]
    extra = {key: value for key, value in params.items() if key not in ("fn", "subscripts", "aggregate")}
    return FUNCTIONS[params["fn"]](*aligned, **extra), space


def _map(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    return _joined(params, operands)[0]


def _reduce(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    """Holds fn at all points at once, so that a contraction with a join other than mul takes memory for every (output, reduced) pair."""
    points, space = _joined(params, operands)
    return AGGREGATES[params["aggregate"]](points, axis=tuple(range(len(_terms(params)[1]), len(space))))


def _einsum(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    """A sum of products of two operands by batched matrix multiplication, because np.einsum does not use BLAS with a batch label."""
    terms, output = _terms(params)
    reduced = [[letter for letter in term if letter not in output and letter not in other]
               for term, other in zip(terms, reversed(terms), strict=True)]
    left, right = (x.sum(axis=tuple(term.index(letter) for letter in alone))
                   for x, term, alone in zip(operands, terms, reduced, strict=True))
    a, b = ("".join(letter for letter in term if letter not in alone) for term, alone in zip(terms, reduced, strict=True))
    batch = [letter for letter in a if letter in b and letter in output]
    inner = [letter for letter in a if letter in b and letter not in output]
    rows, columns = ([letter for letter in term if letter in output and letter not in batch] for term in (a, b))
    x = left.transpose([a.index(letter) for letter in batch + rows + inner])
    y = right.transpose([b.index(letter) for letter in batch + inner + columns])
    extent = x.shape[:len(batch) + len(rows)] + y.shape[len(batch) + len(inner):]
    depth = int(np.prod(y.shape[len(batch):len(batch) + len(inner)], dtype=int))
    product = x.reshape(*x.shape[:len(batch)], -1, depth) @ y.reshape(*y.shape[:len(batch)], depth, -1)
    return product.reshape(extent).transpose([(batch + rows + columns).index(letter) for letter in output])


def _aggregate(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    return AGGREGATES[params["aggregate"]](np.stack(operands), axis=0)


def _assemble(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    whole = np.empty(params["shape"], operands[0].dtype)
    for box, part in zip(params["boxes"], operands, strict=True):
        whole[tuple(slice(start, stop) for start, stop in box)] = part
    return whole


def _pad(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    """Zeros, with the operand in a box. Without a box, the operand only tells the type."""
    whole = np.zeros(params["shape"], operands[0].dtype)
    if params["box"] is not None:
        whole[tuple(slice(start, stop) for start, stop in params["box"])] = operands[0]
    return whole


def _fused(params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    """Runs the steps of a fused vertex (see `data.fusing`) one after another."""
    known = list(operands)
    for step in params["steps"]:
        known.append(run_op(step["op"], step["params"], [_cut(known[o["from"]], o["slice"]) for o in step["operands"]]))
    return known[-1]


KERNELS: dict[str, Callable[[Mapping[str, Any], Sequence[Array]], Array]] = {
    "einsum": _einsum, "reduce": _reduce, "map": _map, "aggregate": _aggregate, "assemble": _assemble, "pad": _pad,
    "fused": _fused,
    "token": lambda params, operands: np.int32(0),
}


def run_op(op: str, params: Mapping[str, Any], operands: Sequence[Array]) -> Array:
    """Runs one operation on arrays that are already cut. Raises GraphError if the operation is unknown."""
    if op not in KERNELS:
        raise field_error(GraphError, "kernel", "", "op", f"one of {', '.join(KERNELS)}", op)
    return KERNELS[op](params, operands)


def run_kernel(kernel: Kernel, outputs: Sequence[Array]) -> Array:
    """Runs one kernel on the whole outputs of its operands' vertices, in operand order, and applies the operands' slices."""
    return run_op(kernel.op, kernel.params, [_cut(x, operand.slice) for operand, x in zip(kernel.operands, outputs, strict=True)])


def _cut(x: Array, box: Sequence[Sequence[int]] | None) -> Array:
    return x if box is None else x[tuple(slice(start, stop) for start, stop in box)]
