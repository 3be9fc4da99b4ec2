"""Einsum programs: inputs and the steps that compute tensors from them, and functions that write steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from data.python_files import user_code
from data.steps import AGGREGATES, FUNCTIONS, Expression, Input, Pad, Step, Use, View
from doppler_tf.errors import GraphError, field_error


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


def pad(name: str, pattern: str, tensor: str, **start: int) -> Pad:
    """Zeros with a tensor in a box, e.g. `pad("y", "one c -> t c", "x", t=T - 1)`. Args: start: by label of the output, 0 if not given."""
    operand, _, output = pattern.partition("->")
    labels = tuple(output.split())
    if set(start) - set(labels):
        raise field_error(GraphError, "program", f"pad {name!r}", "start", f"labels among {labels}", sorted(set(start) - set(labels)))
    return Pad(name, Use(tensor, tuple(operand.split())), labels, tuple(start.get(label, 0) for label in labels))


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
    """Sizes by label, input tensors, and steps, each of which reads only inputs and earlier steps.

    RULES, checked at construction (GraphError): names are unique; a step reads known tensors, with one label per axis and
    sizes that agree; every output label is read; an expression has an aggregate exactly if it reduces labels; a view fits its tensor,
    and a pad holds its operand; outputs are computed; every step is read or an output.

    Attributes:
      outputs: the tensors that the program is for; None: those that no step reads, in order.
    """

    sizes: Mapping[str, int]
    inputs: Mapping[str, Input]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for label, size in self.sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise field_error(GraphError, "program", f"label {label!r}", "size", "an integer >= 1", size)
        shapes = {name: self._extent(f"input {name!r}", tensor.labels) for name, tensor in self.inputs.items()}
        for step in self.steps:
            what = f"{type(step).__name__.lower()} {step.name!r}"
            if not isinstance(step.name, str):
                raise field_error(GraphError, "program", what, "name", "a text", step.name)
            if step.name in shapes:
                raise field_error(GraphError, "program", what, "name", "unique names", step.name)
            _CHECKS[type(step)](self, what, step, shapes)
            shapes[step.name] = self._extent(what, step.labels)
        if not self.expressions:
            raise field_error(GraphError, "program", "", "steps", "at least one expression", self.steps)
        read = {tensor for step in self.steps for tensor in step.reads}
        unread = dict.fromkeys(step.name for step in self.steps if step.name not in read)
        outputs = dict.fromkeys(unread if self.outputs is None else self.outputs)
        for tensor in outputs | unread:
            if tensor in self.views and tensor in unread:
                raise field_error(GraphError, "program", f"view {tensor!r}", "readers", "an expression that reads it", "none",
                                  "copy it with elementwise(..., 'identity', ...) to make it an output")
            if tensor in self.views or tensor in self.inputs or tensor not in shapes:
                raise field_error(GraphError, "program", "", "outputs", "tensors that an expression computes", tensor)
            if tensor not in outputs:
                raise field_error(GraphError, "program", f"expression {tensor!r}", "readers", "a step that reads it", "none",
                                  "make it an output, or leave it out")
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "outputs", tuple(outputs))

    @cached_property
    def expressions(self) -> tuple[Expression | Pad, ...]:
        """The steps that compute."""
        return tuple(step for step in self.steps if not isinstance(step, View))

    @cached_property
    def views(self) -> dict[str, View]:
        """The steps that only cut, by name."""
        return {step.name: step for step in self.steps if isinstance(step, View)}

    def box(self, step: View | Pad) -> tuple[tuple[int, int], ...]:
        """[start, stop) by axis: what a view cuts from its tensor, or where a pad puts its operand."""
        extent = self.shapes[step.name if isinstance(step, View) else step.operand.tensor]
        return tuple((start, start + size) for start, size in zip(step.start, extent, strict=True))

    def kernel(self, step: Expression | Pad) -> tuple[str, dict]:
        """(op, params) of the kernel that computes the whole tensor."""
        if isinstance(step, Pad):
            return "pad", {"shape": list(self.shapes[step.name]), "box": [list(interval) for interval in self.box(step)]}
        return step.kernel

    def flops(self, expression: Expression | Pad) -> int:
        """Flops of one unsharded expression: flops per point times points."""
        return expression.flops_per_point * math.prod(self.sizes[label] for label in expression.space)

    def draw_inputs(self, seed: int, dtype=np.float32) -> dict[str, np.ndarray]:
        """Values of every input. Each tensor has its own random stream and is drawn in float64, so that all dtypes see the same values.

        Raises:
          ConfigError: a fill fails. GraphError: it returns no numbers, or another shape.
        """
        return {name: self._drawn(name, np.random.default_rng([seed, i]), dtype) for i, name in enumerate(self.inputs)}

    def _drawn(self, name: str, rng: np.random.Generator, dtype) -> np.ndarray:
        shape = self.shapes[name]
        with user_code(f"program: input {name!r}", f"a fill that returns numbers of shape {shape}"):
            values = np.asarray(self.inputs[name].fill(rng, shape), dtype)
        if values.shape != shape:
            raise field_error(GraphError, "program", f"input {name!r}", "fill", f"values of shape {shape}", values.shape,
                              "return as many as the shape that it is given")
        return values

    def _extent(self, what: str, labels: tuple[str, ...]) -> tuple[int, ...]:
        unknown = [label for label in labels if label not in self.sizes]
        if unknown or len(set(labels)) < len(labels):
            raise field_error(GraphError, "program", what, "labels", f"different labels among {', '.join(self.sizes)}", labels)
        return tuple(self.sizes[label] for label in labels)

    def _check_view(self, what: str, step: View, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if step.tensor not in shapes:
            raise field_error(GraphError, "program", what, "tensor", f"one of {', '.join(shapes)}", step.tensor)
        _check_box(what, step.start, self._extent(what, step.labels), repr(step.tensor), shapes[step.tensor])

    def _check_pad(self, what: str, step: Pad, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._check_use(what, step.operand, shapes)
        _check_box(what, step.start, shapes[step.operand.tensor], "it", self._extent(what, step.labels))

    def _check_use(self, what: str, use: Use, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if use.tensor not in shapes:
            raise field_error(GraphError, "program", what, "operand", f"one of {', '.join(shapes)}", use.tensor)
        if self._extent(what, use.labels) != shapes[use.tensor]:
            raise field_error(GraphError, "program", what, f"labels of {use.tensor!r}",
                              f"labels of sizes {shapes[use.tensor]}", {label: self.sizes[label] for label in use.labels})

    def _check_expression(self, what: str, step: Expression, shapes: Mapping[str, tuple[int, ...]]) -> None:
        function = FUNCTIONS.get(step.fn)
        if function is None:
            raise field_error(GraphError, "program", what, "fn", f"one of {', '.join(FUNCTIONS)}", step.fn)
        if function.arity != len(step.operands) or set(function.params) != set(step.params):
            raise field_error(GraphError, "program", what, step.fn, f"{function.arity} operand(s) and parameters {function.params}",
                              (len(step.operands), tuple(step.params)))
        for key, value in step.params.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise field_error(GraphError, "program", what, key, "an int or a float", value)
        for use in step.operands:
            self._check_use(what, use, shapes)
        if step.after is not None and (step.after not in shapes or step.after in self.inputs or step.after in self.views):
            raise field_error(GraphError, "program", what, "after", "a tensor that an expression before it computes", step.after)
        absent = [label for label in step.labels if all(label not in use.labels for use in step.operands)]
        if absent:
            raise field_error(GraphError, "program", what, "output labels", "labels of the operands", absent)
        if step.aggregate not in (AGGREGATES if step.reduced else (None,)):
            expected = f"one of {', '.join(AGGREGATES)} over {step.reduced}" if step.reduced else "none, as no label is reduced"
            raise field_error(GraphError, "program", what, "aggregate", expected, step.aggregate)
        if function.whole_last_axis and (step.operands[0].labels != step.labels or self.sizes[step.labels[-1]] % 2):
            raise field_error(GraphError, "program", what, step.fn, "the operand's labels kept, the last one of even size", step.labels)


def _check_box(what: str, start: tuple[int, ...], extent: tuple[int, ...], name: str, whole: tuple[int, ...]) -> None:
    fits = len(whole) == len(extent) == len(start) and all(isinstance(a, int) and a >= 0 and a + n <= size
                                                           for a, n, size in zip(start, extent, whole, strict=True))
    if not fits:
        box = [[a, a + n] for a, n in zip(start, extent, strict=False)]
        raise field_error(GraphError, "program", what, "box", f"a box inside {name} of shape {whole}", box)


_CHECKS = {Expression: EinsumProgram._check_expression, View: EinsumProgram._check_view, Pad: EinsumProgram._check_pad}
