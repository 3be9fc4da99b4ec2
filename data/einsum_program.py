"""Einsum programs: tensors over named labels, expressions `aggregate(fn(operands))` that compute them, and views that only cut."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from doppler_tf.errors import GraphError, field_error


@dataclass(frozen=True)
class Function:
    """An elementwise function: operands, flops per element, required parameters, and whether it needs its last axis whole."""

    arity: int
    flops: int
    params: tuple[str, ...] = ()
    whole_last_axis: bool = False


# Flops of transcendental functions are those of the usual polynomial implementations, rounded.
FUNCTIONS: dict[str, Function] = {
    "identity": Function(1, 0), "square": Function(1, 1), "relu": Function(1, 1), "exp": Function(1, 8), "silu": Function(1, 10),
    "rsqrt": Function(1, 4), "scale": Function(1, 2, ("factor", "offset")), "rotate_half": Function(1, 1, (), True),
    "add": Function(2, 1), "sub": Function(2, 1), "mul": Function(2, 1), "div": Function(2, 4),
    "maximum": Function(2, 1), "minimum": Function(2, 1),
}
AGGREGATES = ("sum", "max", "min", "prod")


@dataclass(frozen=True)
class Use:
    """One expression's use of a tensor: a label for each of its axes, in order."""

    tensor: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Expression:
    """A tensor over `labels`: `fn` of the operands at every point, aggregated over the operands' labels that are not in `labels`."""

    name: str
    fn: str
    operands: tuple[Use, ...]
    labels: tuple[str, ...]
    aggregate: str | None = None
    params: Mapping[str, float] = field(default_factory=dict)

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


@dataclass(frozen=True)
class View:
    """A tensor that is a box of another: `labels` give its size, `start` its corner. It is never computed, only cut."""

    name: str
    tensor: str
    labels: tuple[str, ...]
    start: tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input tensor: its labels and how its values are drawn, `fill(rng, shape)`."""

    labels: tuple[str, ...]
    fill: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(std: float = 1.0, mean: float = 0.0) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    """A fill: independent normal values."""
    return lambda rng, shape: rng.normal(mean, std, shape)


def tensor_input(labels: str, fill=None) -> Input:
    """An input over space-separated labels; standard normal unless `fill` is given."""
    return Input(tuple(labels.split()), fill or normal())


def contract(name: str, pattern: str, left: str, right: str, join: str = "mul", aggregate: str = "sum") -> Expression:
    """A contraction, e.g. `contract("AB", "i k, k j -> i j", "A", "B")`. Other joins and aggregates work too (add, max: max-plus)."""
    return _expression(name, join, pattern, (left, right), aggregate, {})


def elementwise(name: str, fn: str, pattern: str, *tensors: str, **params: float) -> Expression:
    """A map, e.g. `elementwise("y", "add", "i j, j -> i j", "x", "bias")`. Operands are broadcast by label."""
    return _expression(name, fn, pattern, tensors, None, params)


def reduction(name: str, aggregate: str, pattern: str, tensor: str) -> Expression:
    """A reduction, e.g. `reduction("m", "max", "i j -> i", "x")`."""
    return _expression(name, "identity", pattern, (tensor,), aggregate, {})


def view(name: str, labels: str, tensor: str, **start: int) -> View:
    """A cut, e.g. `view("last", "one c", "x", one=T - 1)`. Args: labels: by axis of `tensor`; start: by label, 0 if not given."""
    axes = tuple(labels.split())
    if set(start) - set(axes):
        raise field_error(GraphError, "program", f"view {name!r}", "start", f"labels among {axes}", sorted(set(start) - set(axes)))
    return View(name, tensor, axes, tuple(start.get(label, 0) for label in axes))


def _expression(name: str, fn: str, pattern: str, tensors: tuple[str, ...], aggregate: str | None, params: Mapping) -> Expression:
    left, arrow, output = pattern.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(tensors):
        raise field_error(GraphError, "program", f"expression {name!r}", "pattern",
                          f"{len(tensors)} operand(s) and an output, like 'i k, k j -> i j'", pattern)
    uses = tuple(Use(tensor, tuple(term.split())) for tensor, term in zip(tensors, terms, strict=True))
    return Expression(name, fn, uses, tuple(output.split()), aggregate, dict(params))


@dataclass(frozen=True)
class EinsumProgram:
    """Sizes by label, input tensors, and steps (expressions and views), each of which reads only inputs and earlier steps.

    RULES, checked at construction (GraphError): names are unique; a step reads known tensors, with one label per axis and
    sizes that agree; every output label is read; an expression has an aggregate exactly if it reduces labels; a view fits its tensor.
    """

    sizes: Mapping[str, int]
    inputs: Mapping[str, Input]
    steps: tuple[Expression | View, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for label, size in self.sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise field_error(GraphError, "program", f"label {label!r}", "size", "an integer >= 1", size)
        shapes = {name: self._extent(f"input {name!r}", tensor.labels) for name, tensor in self.inputs.items()}
        for step in self.steps:
            what = f"{'view' if isinstance(step, View) else 'expression'} {step.name!r}"
            if step.name in shapes:
                raise field_error(GraphError, "program", what, "name", "unique names", step.name)
            (self._check_view if isinstance(step, View) else self._check_expression)(what, step, shapes)
            shapes[step.name] = self._extent(what, step.labels)
        if not self.expressions:
            raise field_error(GraphError, "program", "", "steps", "at least one expression", self.steps)
        for tensor in self.views:
            if tensor in self._unread:
                raise field_error(GraphError, "program", f"view {tensor!r}", "readers", "an expression that reads it", "none",
                                  "copy it with elementwise(..., 'identity', ...) to make it an output")
        object.__setattr__(self, "shapes", shapes)

    @cached_property
    def expressions(self) -> tuple[Expression, ...]:
        """The steps that compute."""
        return tuple(step for step in self.steps if isinstance(step, Expression))

    @cached_property
    def views(self) -> dict[str, View]:
        """The steps that only cut, by name."""
        return {step.name: step for step in self.steps if isinstance(step, View)}

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that no step reads, in order."""
        return tuple(e.name for e in self.expressions if e.name in self._unread)

    @cached_property
    def _unread(self) -> set[str]:
        read = {use.tensor for e in self.expressions for use in e.operands} | {view.tensor for view in self.views.values()}
        return {step.name for step in self.steps} - read

    def flops(self, expression: Expression) -> int:
        """Flops of one unsharded expression: flops per point times points."""
        return expression.flops_per_point * math.prod(self.sizes[label] for label in expression.space)

    def draw_inputs(self, seed: int, dtype=np.float32) -> dict[str, np.ndarray]:
        """Values of every input. Each tensor has its own random stream and is drawn in float64, so that all dtypes see the same values."""
        return {name: np.asarray(tensor.fill(np.random.default_rng([seed, i]), self.shapes[name]), dtype)
                for i, (name, tensor) in enumerate(self.inputs.items())}

    def _extent(self, what: str, labels: tuple[str, ...]) -> tuple[int, ...]:
        unknown = [label for label in labels if label not in self.sizes]
        if unknown or len(set(labels)) < len(labels):
            raise field_error(GraphError, "program", what, "labels", f"different labels among {', '.join(self.sizes)}", labels)
        return tuple(self.sizes[label] for label in labels)

    def _check_view(self, what: str, step: View, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if step.tensor not in shapes:
            raise field_error(GraphError, "program", what, "tensor", f"one of {', '.join(shapes)}", step.tensor)
        whole, extent = shapes[step.tensor], self._extent(what, step.labels)
        fits = len(whole) == len(extent) and all(a >= 0 and a + n <= size
                                                 for a, n, size in zip(step.start, extent, whole, strict=True))
        if not fits:
            box = [[a, a + n] for a, n in zip(step.start, extent, strict=True)]
            raise field_error(GraphError, "program", what, "box", f"a box inside {step.tensor!r} of shape {whole}", box)

    def _check_expression(self, what: str, step: Expression, shapes: Mapping[str, tuple[int, ...]]) -> None:
        function = FUNCTIONS.get(step.fn)
        if function is None:
            raise field_error(GraphError, "program", what, "fn", f"one of {', '.join(FUNCTIONS)}", step.fn)
        if function.arity != len(step.operands) or set(function.params) != set(step.params):
            raise field_error(GraphError, "program", what, step.fn, f"{function.arity} operand(s) and parameters {function.params}",
                              (len(step.operands), tuple(step.params)))
        for use in step.operands:
            if use.tensor not in shapes:
                raise field_error(GraphError, "program", what, "operand", f"one of {', '.join(shapes)}", use.tensor)
            if self._extent(what, use.labels) != shapes[use.tensor]:
                raise field_error(GraphError, "program", what, f"labels of {use.tensor!r}",
                                  f"labels of sizes {shapes[use.tensor]}", {label: self.sizes[label] for label in use.labels})
        absent = [label for label in step.labels if all(label not in use.labels for use in step.operands)]
        if absent:
            raise field_error(GraphError, "program", what, "output labels", "labels of the operands", absent)
        if step.aggregate not in (AGGREGATES if step.reduced else (None,)):
            expected = f"one of {', '.join(AGGREGATES)} over {step.reduced}" if step.reduced else "none, as no label is reduced"
            raise field_error(GraphError, "program", what, "aggregate", expected, step.aggregate)
        if function.whole_last_axis and (step.operands[0].labels != step.labels or self.sizes[step.labels[-1]] % 2):
            raise field_error(GraphError, "program", what, step.fn, "the operand's labels kept, the last one of even size", step.labels)
