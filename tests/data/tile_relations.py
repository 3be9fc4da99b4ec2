"""The tensor relational algebra (Yuan et al., arXiv 2009.00524), naively: a relation is a dict from keys to tiles.

A key has a number for each axis. Nothing here knows of graphs, of kernels, or of how `decompose` cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from data import EinsumProgram
from data.steps import Expression, Pad, View

Relation = dict[tuple[int, ...], np.ndarray]

POINTWISE = {
    "identity": lambda x: x, "square": lambda x: x * x, "relu": lambda x: np.where(x > 0, x, 0), "exp": np.exp,
    "silu": lambda x: x / (1 + np.exp(-x)), "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "scale": lambda x, factor, offset: x * factor + offset,
    "relu_gradient": lambda x, y: np.where(y > 0, x, 0), "sqrt_gradient": lambda x, y: np.where(x == 0, 0, x / (2 * y)),
    "rsqrt_gradient": lambda x, y: np.where(x == 0, 0, -x / 2 * y**3),
    "sigmoid_gradient": lambda x, y: x * y * (1 - y),
    "silu_gradient": lambda x, y: x * (1 + y * (1 - 1 / (1 + np.exp(-y)))) / (1 + np.exp(-y)),
    "rotate_half": lambda x: np.concatenate([-x[..., x.shape[-1] // 2:], x[..., :x.shape[-1] // 2]], axis=-1),
    "is_zero": lambda x: np.where(x == 0, 1.0, 0.0), "fill": lambda x, value: np.full(x.shape, value),
    "add_scaled": lambda x, y, factor: x + factor * y, "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "maximum": np.maximum, "minimum": np.minimum, "greater": lambda x, y: np.where(x > y, 1.0, 0.0),
    "greater_equal": lambda x, y: np.where(x >= y, 1.0, 0.0), "spread": lambda x, y: x + 0 * y,
    "where": lambda x, y: np.where(y == 0, 0, x + 0 * y),
}
COMBINED = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def relation(array: np.ndarray, parts: Sequence[int]) -> Relation:
    """A tensor as a relation. Args: parts: by axis."""
    tiles: Relation = {(): array}
    for axis, count in enumerate(parts):
        tiles = {(*key, i): piece for key, tile in tiles.items() for i, piece in enumerate(np.array_split(tile, count, axis))}
    return tiles


def tensor(tiles: Relation) -> np.ndarray:
    """The tensor of a relation."""
    if () in tiles:
        return tiles[()]
    first = dict[tuple[int, ...], list]()
    for key in sorted(tiles):
        first.setdefault(key[:-1], []).append(tiles[key])
    return tensor({key: np.concatenate(row, axis=len(key)) for key, row in first.items()})


def rekey(tiles: Relation, parts: Sequence[int]) -> Relation:
    """The same tensor under other keys."""
    return relation(tensor(tiles), parts)


def join(operands: Sequence[tuple[Relation, Sequence[str]]], space: Sequence[str], compute) -> Relation:
    """A tuple for each combination of tuples whose keys agree on shared labels. Args: operands: relations, the labels of their keys."""
    joined = {}
    for tuples in itertools.product(*(tiles.items() for tiles, _ in operands)):
        number: dict[str, int] = {}
        if all(number.setdefault(label, i) == i for (key, _), (_, labels) in zip(tuples, operands, strict=True)
               for label, i in zip(labels, key, strict=True)):
            joined[tuple(number[label] for label in space)] = compute(*(tile for _, tile in tuples))
    return joined


def aggregate(tiles: Relation, keep: int, combine: np.ufunc) -> Relation:
    """One tuple for each value of the first `keep` parts of a key."""
    grouped: Relation = {}
    for key, tile in tiles.items():
        grouped[key[:keep]] = combine(grouped[key[:keep]], tile) if key[:keep] in grouped else tile
    return grouped


def evaluated(program: EinsumProgram, tensors: Mapping[str, np.ndarray], tiling: Mapping[str, Mapping[str, int]]) -> dict[str, Relation]:
    """The relation of every tensor: each step re-keys what it reads, joins it, and aggregates."""
    known = {name: {(0,) * array.ndim: array} for name, array in tensors.items()}
    for step in program.steps:
        parts = tiling.get(step.name, {})
        keyed = [parts.get(label, 1) for label in step.labels]
        if isinstance(step, View):
            known[step.name] = relation(tensor(known[step.tensor])[tuple(slice(*box) for box in program.box(step))], keyed)
        elif isinstance(step, Pad):
            whole = np.zeros(program.shapes[step.name])
            whole[tuple(slice(*box) for box in program.box(step))] = tensor(known[step.operand.tensor])
            known[step.name] = relation(whole, keyed)
        else:
            operands = [(rekey(known[use.tensor], [parts.get(label, 1) for label in use.labels]), use.labels) for use in step.operands]
            made = join(operands, step.space, lambda *tiles, step=step: _tile(step, tiles))
            known[step.name] = aggregate(made, len(step.labels), COMBINED[step.aggregate]) if step.aggregate else made
    return known


def _tile(step: Expression, tiles: Sequence[np.ndarray]) -> np.ndarray:
    """`aggregate(fn(operands))` within one tile, at every point of all labels."""
    spread = []
    for use, tile in zip(step.operands, tiles, strict=True):
        order = sorted(range(len(use.labels)), key=lambda axis, use=use: step.space.index(use.labels[axis]))
        shape = [tile.shape[use.labels.index(label)] if label in use.labels else 1 for label in step.space]
        spread.append(tile.transpose(order).reshape(shape))
    points = POINTWISE[step.fn](*spread, **step.params)
    return COMBINED[step.aggregate].reduce(points, axis=tuple(range(len(step.labels), points.ndim))) if step.aggregate else points
