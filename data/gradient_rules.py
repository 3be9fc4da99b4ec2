"""The derivatives of all functions and aggregates: what an expression passes back to each of its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from data.steps import Expression
from data.terms import Labels, Term, Writer


@dataclass(frozen=True)
class Point:
    """An expression before its aggregation: a function of its operands at every point of `space`.

    Attributes:
      gradient: of the output with respect to the points, over labels of `space`.
    """

    writer: Writer
    expression: Expression
    gradient: Term

    @property
    def space(self) -> Labels:
        """The labels of the points."""
        return self.expression.space

    @cached_property
    def operands(self) -> tuple[Term, ...]:
        """The operands as terms."""
        return tuple(Term(1.0, use.tensor, use.labels) for use in self.expression.operands)

    @property
    def value(self) -> Term:
        """The points themselves. They are the output where nothing is aggregated, and an operand where the function is none."""
        return _points(self.writer, self.expression)

    def times(self, slope: Term, k: int) -> Term:
        """The gradient times a slope, summed to the labels of operand k."""
        return self.through("mul", slope, k)

    def through(self, fn: str, tensor: Term, k: int) -> Term:
        """The gradient times a slope that `fn`, which takes both, finds in a tensor; summed to the labels of operand k."""
        return self.writer.join(fn, self.gradient, tensor, self.operands[k].labels, self.space)

    def taken(self, mask: Term, k: int) -> Term:
        """The gradient where a mask is 1, and 0 elsewhere, even if the gradient is infinite there; summed to the labels of operand k."""
        return self.times(mask, k) if self.gradient.tensor is None else self.through("where", mask, k)

    def apply(self, fn: str, *operands: Term, **params: float) -> Term:
        """A function of terms without factors, at all points that they have."""
        read = {label for operand in operands for label in operand.labels}
        return self.writer.write(fn, operands, tuple(label for label in self.space if label in read), **params)


def operand_gradient(writer: Writer, expression: Expression, gradient: Term, k: int) -> Term:
    """The gradient with respect to operand k, over the labels of that use.

    Args:
      gradient: with respect to the expression, over its labels.
    """
    if expression.aggregate is not None:
        gradient = _AGGREGATES[expression.aggregate](writer, expression, gradient)
    return _FUNCTIONS[expression.fn](Point(writer, expression, gradient), k)


def _points(writer: Writer, e: Expression) -> Term:
    if e.aggregate is None:
        return Term(1.0, e.name, e.labels)
    if e.fn == "identity":
        return Term(1.0, e.operands[0].tensor, e.operands[0].labels)
    return writer.write(e.fn, [Term(1.0, use.tensor, use.labels) for use in e.operands], e.space, **e.params)


def _extreme(writer: Writer, e: Expression, gradient: Term) -> Term:
    """Shared evenly among all points that reach the extreme: that of these very points, as others may be rounded differently."""
    points = _points(writer, e)
    reached = Term(1.0, e.name, e.labels) if e.fn == "identity" else writer.write("identity", (points,), e.labels, e.aggregate)
    mask = writer.write("greater_equal", (points, reached) if e.aggregate == "max" else (reached, points), e.space)
    share = writer.join("div", gradient, writer.total(mask, e.labels, e.space), e.labels, e.labels)
    return writer.join("mul", share, mask, e.space, e.space)


def _product(writer: Writer, e: Expression, gradient: Term) -> Term:
    """The product of all other points, also where points are zero: zeros count as one, and a point with another zero gets nothing."""
    points = _points(writer, e)
    zero = writer.write("is_zero", (points,), e.space)
    filled = writer.write("add", (points, zero), e.space)
    product = writer.write("identity", (filled,), e.labels, "prod")
    others = writer.write("sub", (writer.write("identity", (zero,), e.labels, "sum"), zero), e.space)
    alone = writer.write("is_zero", (others,), e.space)
    rest = writer.write("mul", (writer.write("div", (product, filled), e.space), alone), e.space)
    return writer.join("mul", gradient, rest, e.space, e.space)


_AGGREGATES: dict[str, Callable[[Writer, Expression, Term], Term]] = {
    "sum": lambda writer, e, gradient: gradient, "max": _extreme, "min": _extreme, "prod": _product,
}


def _none(p: Point, k: int) -> Term:
    return Term(0.0)


def _relu(p: Point, k: int) -> Term:
    """The output is positive where the operand is, and later steps hold it anyway."""
    return p.through("relu_gradient", p.operands[0] if p.expression.aggregate else p.value, k)


def _sqrt_gradient(p: Point, k: int) -> Term:
    """1 / 2y, and -(x / 2y) / y."""
    y = p.operands[1]
    return p.times(p.apply("div", p.value, y).times(-1.0), 1) if k else p.through("div", y.times(2.0), 0)


def _rsqrt_gradient(p: Point, k: int) -> Term:
    """-3/2 x y^2."""
    x, y = p.operands
    return p.times(p.apply("mul", x, p.apply("square", y)).times(-1.5), 1) if k else p.through("rsqrt_gradient", y, 0)


def _sigmoid_gradient(p: Point, k: int) -> Term:
    """x (1 - 2 y)."""
    x, y = p.operands
    return p.times(p.apply("mul", x, p.apply("scale", y, factor=-2.0, offset=1.0)), 1) if k else p.through("sigmoid_gradient", y, 0)


def _silu_gradient(p: Point, k: int) -> Term:
    """x s (1 - s) (2 + y (1 - 2 s)) with s = sigmoid(y)."""
    x, y = p.operands
    if k == 0:
        return p.through("silu_gradient", y, 0)
    s = p.apply("sigmoid", y)
    turn = p.apply("scale", p.apply("mul", y, p.apply("scale", s, factor=-2.0, offset=1.0)), factor=1.0, offset=2.0)
    return p.times(p.apply("mul", x, p.apply("sigmoid_gradient", turn, s)), 1)


def _rotate_half(p: Point, k: int) -> Term:
    """The quarter turn back, which is minus the quarter turn. The turned axis must be there, and last."""
    labels, g = p.expression.labels, p.gradient
    if labels[-1] not in g.labels:
        g = p.writer.whole(g, Term(1.0, p.expression.name, labels))
    elif g.labels[-1] != labels[-1]:
        g = p.apply("identity", g).times(g.factor)
    return p.writer.write("rotate_half", (g,), g.labels).times(-g.factor)


def _div(p: Point, k: int) -> Term:
    """1 / y, and -(x / y) / y. The sum over labels that y lacks comes before its division."""
    x, y = p.operands
    if k == 0:
        return p.through("div", y, 0)
    inner = p.times(p.value, 1) if p.expression.aggregate is None else p.writer.join("div", p.times(x, 1), y, y.labels, y.labels)
    return p.writer.join("div", inner, y, y.labels, y.labels).times(-1.0)


def _larger(p: Point, k: int) -> Term:
    """All to the first where both are equal, as in TensorFlow."""
    x, y = p.operands
    return p.taken(p.apply("greater", y, x) if k else p.apply("greater_equal", x, y), k)


def _smaller(p: Point, k: int) -> Term:
    """All to the first where both are equal, as in TensorFlow."""
    x, y = p.operands
    return p.taken(p.apply("greater", x, y) if k else p.apply("greater_equal", y, x), k)


# The gradient with respect to operand k, given that with respect to the points.
_FUNCTIONS: dict[str, Callable[[Point, int], Term]] = {
    "identity": lambda p, k: p.times(Term(), k),
    "square": lambda p, k: p.times(p.operands[0].times(2.0), k),
    "relu": _relu,
    "exp": lambda p, k: p.times(p.value, k),
    "log": lambda p, k: p.through("div", p.operands[0], k),
    "sqrt": lambda p, k: p.through("sqrt_gradient", p.value, k),
    "rsqrt": lambda p, k: p.through("rsqrt_gradient", p.value, k),
    "sigmoid": lambda p, k: p.through("sigmoid_gradient", p.value, k),
    "silu": lambda p, k: p.through("silu_gradient", p.operands[0], k),
    "relu_gradient": lambda p, k: Term(0.0) if k else p.through("relu_gradient", p.operands[1], 0),
    "sqrt_gradient": _sqrt_gradient, "rsqrt_gradient": _rsqrt_gradient,
    "sigmoid_gradient": _sigmoid_gradient, "silu_gradient": _silu_gradient,
    "scale": lambda p, k: p.times(Term(p.expression.params["factor"]), k),
    "rotate_half": _rotate_half,
    "add": lambda p, k: p.times(Term(), k),
    "sub": lambda p, k: p.times(Term(-1.0 if k else 1.0), k),
    "add_scaled": lambda p, k: p.times(Term(p.expression.params["factor"] if k else 1.0), k),
    "mul": lambda p, k: p.times(p.operands[1 - k], k),
    "div": _div, "maximum": _larger, "minimum": _smaller,
    "spread": lambda p, k: Term(0.0) if k else p.times(Term(), k),
    "where": lambda p, k: Term(0.0) if k else p.through("where", p.operands[1], k),
    "fill": _none, "is_zero": _none, "greater": _none, "greater_equal": _none,
}
