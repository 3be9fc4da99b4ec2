"""The steps of einsum programs: expressions `aggregate(fn(operands))` over named labels, boxes put into zeros, and views that only cut."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Function:
    """An elementwise function: operands, flops per element, required parameters, and whether it needs its last axis whole."""

    arity: int
    flops: int
    params: tuple[str, ...] = ()
    whole_last_axis: bool = False


# Flops of transcendental functions are those of the usual polynomial implementations, rounded. `is_zero`, `greater` and `greater_equal` are
# 1 or 0. `add_scaled` adds factor times its second operand to the first. `f_gradient` is its first operand times the derivative of f: at
# the second operand if f is `silu`, else where f has the value of the second operand. Those of `sqrt` and `rsqrt` are 0 where the first
# operand is, as TensorFlow's are. `spread` is its first operand at all points of both, and
# `where` is that where the second operand is not 0, else 0.
FUNCTIONS: dict[str, Function] = {
    "identity": Function(1, 0), "square": Function(1, 1), "relu": Function(1, 1), "exp": Function(1, 8), "silu": Function(1, 10),
    "rsqrt": Function(1, 4), "scale": Function(1, 2, ("factor", "offset")), "rotate_half": Function(1, 1, (), True),
    "sqrt": Function(1, 4), "log": Function(1, 8), "sigmoid": Function(1, 9), "is_zero": Function(1, 1), "fill": Function(1, 0, ("value",)),
    "add": Function(2, 1), "add_scaled": Function(2, 2, ("factor",)), "sub": Function(2, 1), "mul": Function(2, 1), "div": Function(2, 4),
    "maximum": Function(2, 1), "minimum": Function(2, 1), "greater": Function(2, 1), "greater_equal": Function(2, 1),
    "relu_gradient": Function(2, 1), "sqrt_gradient": Function(2, 5), "rsqrt_gradient": Function(2, 4), "sigmoid_gradient": Function(2, 3),
    "silu_gradient": Function(2, 14), "spread": Function(2, 0), "where": Function(2, 1),
}
AGGREGATES = ("sum", "max", "min", "prod")


@dataclass(frozen=True)
class Use:
    """One expression's use of a tensor: a label for each of its axes, in order."""

    tensor: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Expression:
    """A tensor over `labels`: `fn` of the operands at every point, aggregated over the operands' labels that are not in `labels`.

    Attributes:
      after: a tensor for which it waits, though it takes nothing from it. Fingerprints of programs do not show it.
    """

    name: str
    fn: str
    operands: tuple[Use, ...]
    labels: tuple[str, ...]
    aggregate: str | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    after: str | None = field(default=None, repr=False)

    @property
    def reads(self) -> set[str]:
        """The tensors that it reads, and the one for which it waits."""
        return {use.tensor for use in self.operands} | ({self.after} - {None})

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The labels that are aggregated away, in order of appearance."""
        read = dict.fromkeys(label for use in self.operands for label in use.labels)
        return tuple(label for label in read if label not in self.labels)

    @cached_property
    def space(self) -> tuple[str, ...]:
        """All labels: those of the output, then the reduced."""
        return self.labels + self.reduced

    @cached_property
    def subscripts(self) -> str:
        """The pattern in einsum's letters: "ac,cb->ab"."""
        letter = dict(zip(self.space, string.ascii_letters, strict=False))
        terms = ("".join(letter[label] for label in labels) for labels in (*(use.labels for use in self.operands), self.labels))
        *operands, output = terms
        return f"{','.join(operands)}->{output}"

    @cached_property
    def kernel(self) -> tuple[str, dict]:
        """(op, params) of the kernel that computes one tile: `einsum`, `reduce` or `map`."""
        if (self.fn, self.aggregate) == ("mul", "sum"):
            return "einsum", {"subscripts": self.subscripts}
        params = {"fn": self.fn, "subscripts": self.subscripts, **self.params}
        return ("reduce", {**params, "aggregate": self.aggregate}) if self.aggregate else ("map", params)

    @property
    def kind(self) -> str:
        """The name of its shards in reports: `matmul`, a function, an aggregation, or both ("add.max")."""
        if self.kernel[0] == "einsum":
            return "matmul"
        return ".".join(part for part in (self.fn, self.aggregate) if part and part != "identity") or "copy"

    @property
    def flops_per_point(self) -> int:
        """Flops at each point of `space`: those of fn, plus one for the aggregation (2 for a matmul)."""
        return FUNCTIONS[self.fn].flops + (self.aggregate is not None)

    @property
    def whole(self) -> tuple[str, ...]:
        """The labels that no tiling may cut."""
        return self.labels[-1:] if FUNCTIONS[self.fn].whole_last_axis else ()


@dataclass(frozen=True)
class View:
    """A tensor that is a box of another: `labels` give its size, `start` its corner. It is never computed, only cut."""

    name: str
    tensor: str
    labels: tuple[str, ...]
    start: tuple[int, ...]

    @property
    def reads(self) -> set[str]:
        """The tensor that it cuts."""
        return {self.tensor}


@dataclass(frozen=True)
class Pad:
    """Zeros over `labels`, and a tensor in the box at corner `start`: the adjoint of a view. Its operand has the tensor's labels."""

    name: str
    operand: Use
    labels: tuple[str, ...]
    start: tuple[int, ...]

    kind = "pad"
    flops_per_point = 0
    aggregate = None
    whole = ()

    @property
    def operands(self) -> tuple[Use]:
        """What it reads, as an expression's."""
        return (self.operand,)

    @property
    def reads(self) -> set[str]:
        """The tensor that it reads."""
        return {self.operand.tensor}

    @property
    def space(self) -> tuple[str, ...]:
        """All labels, as an expression's: those of the output."""
        return self.labels


Step = Expression | Pad | View


@dataclass(frozen=True)
class Input:
    """An input tensor: its labels and how its values are drawn, `fill(rng, shape)`."""

    labels: tuple[str, ...]
    fill: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
