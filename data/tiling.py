"""Tilings (the number of parts into which each expression cuts each label), and the arithmetic of boxes and grids of tiles."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from data.einsum_program import EinsumProgram
from doppler_tf.errors import ConfigError, field_error

Box = tuple[tuple[int, int], ...]  # [start, stop) by axis
Tiling = Mapping[str, Mapping[str, int]]  # parts by expression and label; labels without an entry stay whole


def bounds(size: int, parts: int) -> tuple[int, ...]:
    """The parts + 1 boundaries that cut `size` into nearly equal parts, the larger ones first (as np.array_split)."""
    small, larger = divmod(size, parts)
    return tuple(part * small + min(part, larger) for part in range(parts + 1))


def check_tiling(program: EinsumProgram, tiling: Tiling) -> None:
    """Raises ConfigError unless expressions and labels are known, 1 <= parts <= size, and axes that must stay whole are not cut."""
    expressions = {expression.name: expression for expression in program.expressions}
    for name, parts in tiling.items():
        if name not in expressions:
            raise field_error(ConfigError, "tiling", "", "expression", f"one of {', '.join(expressions)}", name)
        expression = expressions[name]
        for label, count in parts.items():
            if label not in expression.space:
                raise field_error(ConfigError, "tiling", f"expression {name!r}", "label", f"one of {', '.join(expression.space)}", label)
            most = 1 if label in expression.whole else program.sizes[label]
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
                raise field_error(ConfigError, "tiling", f"expression {name!r}", f"parts of {label!r}", f"an integer from 1 to {most}",
                                  count)


def shape(box: Box) -> tuple[int, ...]:
    """The box's extent along each axis."""
    return tuple([stop - start for start, stop in box])


def volume(box: Box) -> int:
    """The box's number of elements."""
    return math.prod(shape(box))


def overlap(one: Box, other: Box) -> Box:
    """The intersection of two overlapping boxes."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def relative(box: Box, frame: Box) -> Box:
    """The box in coordinates relative to the frame's corner."""
    return tuple((start - origin, stop - origin) for (start, stop), (origin, _) in zip(box, frame, strict=True))


@dataclass(frozen=True)
class Grid:
    """The tiles of a tensor: boundaries by axis, tiles in row-major order."""

    bounds: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis."""
        return tuple(len(axis) - 1 for axis in self.bounds)

    @property
    def size(self) -> int:
        """The number of tiles."""
        return math.prod(self.counts)

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Every tile's index, row-major."""
        return itertools.product(*(range(count) for count in self.counts))

    def box(self, index: tuple[int, ...]) -> Box:
        """The box of one tile."""
        return tuple([(axis[i], axis[i + 1]) for axis, i in zip(self.bounds, index, strict=True)])

    def shifted(self, by: tuple[int, ...]) -> Grid:
        """The grid moved by `by`."""
        return Grid(tuple(tuple(bound + d for bound in axis) for axis, d in zip(self.bounds, by, strict=True)))

    def holder(self, box: Box) -> Box | None:
        """The tile that contains `box`; None if there is none."""
        at = tuple(bisect_right(axis, start) - 1 for axis, (start, _) in zip(self.bounds, box, strict=True))
        inside = all(0 <= i < len(axis) - 1 and stop <= axis[i + 1] for i, axis, (_, stop) in zip(at, self.bounds, box, strict=True))
        return self.box(at) if inside else None

    def meeting(self, box: Box) -> list[tuple[int, ...]]:
        """Indices of the tiles that overlap `box`, row-major."""
        return list(itertools.product(*(range(bisect_right(axis, start) - 1, bisect_left(axis, stop))
                                        for axis, (start, stop) in zip(self.bounds, box, strict=True))))


def grid(program: EinsumProgram, tiling: Tiling, expression: str, labels: tuple[str, ...]) -> Grid:
    """The grid over `labels` that the tiling gives to an expression."""
    parts = tiling.get(expression, {})
    return Grid(tuple(bounds(program.sizes[label], parts.get(label, 1)) for label in labels))


def extended(program: EinsumProgram, tiling: Tiling, sources: Mapping[str, str]) -> Tiling:
    """The tiling with the steps that it lacks, whose labels keep their cuts.

    A step is cut as its source, if it has one: the step that it differentiates. Others are cut as what they read, the largest first.
    """
    labels = {step.name: step.labels for step in program.steps}
    parts = {e.name: tiling[e.name] for e in program.expressions if e.name in tiling}
    for e in program.expressions:
        if e.name in parts:
            continue
        cuts = dict(parts.get(sources.get(e.name), {}))
        if not cuts:
            for use in sorted(e.operands, key=lambda use: -math.prod(program.shapes[use.tensor])):
                for label, made in zip(use.labels, labels.get(use.tensor, ()), strict=False):
                    cuts.setdefault(label, parts.get(use.tensor, {}).get(made, 1))
        parts[e.name] = {label: min(cuts[label], program.sizes[label]) for label in e.space if label in cuts and label not in e.whole}
    return parts
