"""Writes steps of a program as sums and products of terms, each a factor times a tensor, so that no step multiplies by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from data.einsum_program import EinsumProgram
from data.steps import Expression, Pad, Step, Use, View
from doppler_tf.errors import GraphError, field_error

Labels = tuple[str, ...]
_COMMUTATIVE = ("add", "mul")


@dataclass(frozen=True)
class Term:
    """`factor` times a tensor, the same along all labels that the tensor lacks. Without a tensor it is `factor` everywhere."""

    factor: float = 1.0
    tensor: str | None = None
    labels: Labels = ()

    @property
    def use(self) -> Use:
        """The tensor as an operand."""
        return Use(self.tensor, self.labels)

    def times(self, factor: float) -> Term:
        """The term times a number."""
        return replace(self, factor=self.factor * factor)


class Writer:
    """Steps added to those of a program. A step that is there already is not written again.

    Attributes:
      labels: of each tensor.
      stem: how the next steps are called, with a number if the name is taken.
      source: the step whose gradient the next steps belong to, if any.
      sources: the source of each step that was written under one.
    """

    def __init__(self, program: EinsumProgram):
        self.sizes, self.inputs, self.steps = program.sizes, dict(program.inputs), list(program.steps)
        self.labels = {name: tensor.labels for name, tensor in self.inputs.items()} | {step.name: step.labels for step in self.steps}
        self.stem, self.source, self.sources = "step", None, dict[str, str]()
        self._made = {_key(step): step.name for step in self.steps if isinstance(step, Expression)}
        # Tensors that keep their names, names that are kept for outputs, and the names of tensors that get others.
        self._fixed, self._reserved, self._renamed = set(self.labels), set[str](), dict[str, str]()
        self._numbers: dict[str, itertools.count] = {}

    def term(self, tensor: str) -> Term:
        """A tensor over its own labels."""
        return Term(1.0, tensor, self.labels[tensor])

    def write(self, fn: str, operands: Sequence[Term], labels: Labels, aggregate: str | None = None, **params: float) -> Term:
        """A step, or the one that computes the same already. The factors of the operands are not looked at."""
        uses = tuple(operand.use for operand in operands)
        made = Expression("", fn, uses, labels, aggregate, params)
        known = self._made.get(_key(made)) or (fn in _COMMUTATIVE and self._made.get(_key(replace(made, operands=uses[::-1]))))
        return Term(1.0, known or self._add(made), labels)

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for `name`, where other steps might take them before."""
        self._reserved.update(names)

    def add_input(self, name: str, tensor) -> Term:
        """A further input, once. Args: tensor: an Input. Raises GraphError: another tensor has this name."""
        if self.inputs.get(name) == tensor:
            return self.term(name)
        self._check_free(name)
        self.inputs[name], self.labels[name] = tensor, tensor.labels
        self._fixed.add(name)
        return self.term(name)

    def pad(self, operand: Term, labels: Labels, start: tuple[int, ...]) -> Term:
        """The operand put into zeros."""
        return Term(operand.factor, self._add(Pad("", operand.use, labels, start)), labels)

    def view(self, operand: Term, labels: Labels, start: tuple[int, ...]) -> Term:
        """A box of the operand."""
        name = self._add(View("", operand.tensor, labels, start))
        self._fixed.add(name)
        return Term(operand.factor, name, labels)

    def total(self, term: Term, keep: Labels, space: Iterable[str]) -> Term:
        """The sum of a term over the labels of `space` that are not in `keep`."""
        factor = term.factor * self.points(label for label in space if label not in keep and label not in term.labels)
        kept = tuple(label for label in dict.fromkeys(keep) if label in term.labels)
        if len(kept) == len(term.labels):
            return replace(term, factor=factor)
        return self.write("identity", (term,), kept, "sum").times(factor)

    def join(self, fn: str, left: Term, right: Term, keep: Labels, space: Labels) -> Term:
        """The sum of a product over the labels of `space` that are not in `keep`.

        Args:
          fn: `mul`; or what multiplies the left by a function of the right: `div`, or `where` or a gradient, whose right has no factor.
        """
        factor = left.factor * right.factor if fn == "mul" else left.factor / right.factor
        if right.tensor is None:
            return self.total(replace(left, factor=factor), keep, space)
        if left.tensor is None:
            if fn == "mul":
                return self.total(replace(right, factor=factor), keep, space)
            left = self.write("fill", (right,), right.labels, value=1.0)
        read = {*left.labels, *right.labels}
        factor *= self.points(label for label in space if label not in keep and label not in read)
        # What only one operand has is summed before, which saves flops.
        left = self.total(replace(left, factor=1.0), (*keep, *right.labels), left.labels)
        if fn == "mul":
            right = self.total(replace(right, factor=1.0), (*keep, *left.labels), right.labels)
        kept = tuple(label for label in keep if label in read)
        aggregate = "sum" if {*left.labels, *right.labels} - {*kept} else None
        return self.write(fn, (left, right), kept, aggregate).times(factor)

    def plus(self, left: Term, right: Term, order: Labels) -> Term:
        """The sum of two terms. Args: order: all labels, in the order of the result."""
        if left.factor == 0 or right.factor == 0:
            return left if right.factor == 0 else right
        if (left.tensor, left.labels) == (right.tensor, right.labels):
            factor = left.factor + right.factor
            return replace(left, factor=factor) if factor else Term(0.0)
        if left.tensor is None or (right.tensor is not None and left.factor == -right.factor < 0):
            left, right = right, left
        labels = tuple(label for label in order if label in left.labels or label in right.labels)
        if right.tensor is None:
            return self.write("scale", (left,), labels, factor=left.factor, offset=right.factor)
        if abs(left.factor) == abs(right.factor):
            return self.write("add" if left.factor == right.factor else "sub", (left, right), labels).times(left.factor)
        if abs(right.factor) == 1:
            left, right = right, left
        return self.write("add_scaled", (left, right), labels, factor=right.factor / left.factor).times(left.factor)

    def whole(self, term: Term, like: Term) -> Term:
        """The term as a tensor with the labels of another, without a factor."""
        labels = like.labels
        if term.tensor is None:
            return self.write("fill", (like,), labels, value=term.factor)
        if term.factor != 1:
            kept = tuple(label for label in labels if label in term.labels)
            term = self.write("scale", (term,), kept, factor=term.factor, offset=0.0)
        if {*term.labels} != {*labels}:
            return self.write("spread", (term, like), labels)
        return term if term.labels == labels else self.write("identity", (term,), labels)

    def name(self, term: Term, like: Term, name: str) -> Term:
        """Makes the term, whole, the tensor of this name in `program`, and returns it. Raises GraphError: another tensor has this name."""
        self._check_free(name)
        self.reserve((name,))
        self.stem = name
        tensor = self.whole(term, like).tensor
        if tensor in self._fixed or tensor in self._renamed:
            tensor = self._add(Expression("", "identity", (Use(tensor, like.labels),), like.labels))
        self._renamed[tensor] = name
        return Term(1.0, tensor, like.labels)

    def program(self, outputs: Sequence[str]) -> EinsumProgram:
        """The program of these outputs, with what they need and no more. Inputs all stay."""
        names = self._renamed
        needed, steps = set(outputs), list[Step]()
        for step in reversed(self.steps):
            step = renamed(step, names)
            if step.name in needed:
                needed |= step.reads
                steps.append(step)
        self.sources = {names.get(name, name): names.get(source, source) for name, source in self.sources.items()}
        return EinsumProgram(self.sizes, self.inputs, tuple(reversed(steps)), tuple(outputs))

    def _check_free(self, name: str) -> None:
        if name in self.labels:
            raise field_error(GraphError, "program", f"tensor {name!r}", "name", "one that gradients and training do not need", name,
                              "rename it")

    def points(self, labels: Iterable[str]) -> int:
        """How many elements a tensor over these labels has."""
        return math.prod(self.sizes[label] for label in labels)

    def _add(self, step: Step) -> str:
        """Names a step and adds it."""
        name, number = self.stem, self._numbers.setdefault(self.stem, itertools.count(2))
        while name in self.labels or name in self._reserved:
            name = f"{self.stem}_{next(number)}"
        step = replace(step, name=name)
        self.steps.append(step)
        self.labels[name] = step.labels
        if isinstance(step, Expression):
            self._made.setdefault(_key(step), name)
        if self.source is not None:
            self.sources[name] = self.source
        return name


def _key(step: Expression) -> tuple:
    return step.fn, step.operands, step.labels, step.aggregate, tuple(sorted(step.params.items()))


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """The step under other names of tensors, where it has them."""
    name = names.get(step.name, step.name)
    if isinstance(step, View):
        return replace(step, name=name, tensor=names.get(step.tensor, step.tensor))
    uses = tuple(Use(names.get(use.tensor, use.tensor), use.labels) for use in step.operands)
    return replace(step, name=name, operand=uses[0]) if isinstance(step, Pad) else replace(step, name=name, operands=uses)
