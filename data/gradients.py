"""Gradients of einsum programs as steps of the same program: the chain rule from the output back, without a tape.

The gradient of an einsum is an einsum, with one operand and the output exchanged (Tang et al., ICML 2023, arXiv 2306.00088).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce

from data.einsum_program import EinsumProgram
from data.gradient_rules import operand_gradient
from data.steps import Expression, Pad, Step, View
from data.terms import Labels, Term, Writer
from doppler_tf.errors import GraphError, field_error


def gradients(program: EinsumProgram, output: str, wrt: Sequence[str], constants: Collection[str] = (),
              prefix: str = "d_") -> EinsumProgram:
    """The program that computes an output and the gradients of the sum of its elements, `d_NAME` for each NAME in `wrt`.

    What the program computes is used again. Inputs all stay, so that they are drawn alike; steps that no result needs do not. A maximum and
    a minimum over labels share the gradient evenly among equals. `maximum` and `minimum` of two tensors give it to the first of two equals.

    Args:
      output: a tensor that an expression computes.
      wrt: inputs and other tensors, on which the output depends.
      constants: tensors through which no gradient passes.
      prefix: of the gradients' names, for gradients of gradients.

    Raises:
      GraphError: a tensor is unknown, or the output does not depend on it.
    """
    writer = Writer(program)
    writer.reserve(f"{prefix}{name}" for name in wrt)
    for name, gradient in backward(writer, output, wrt, constants).items():
        writer.name(gradient, writer.term(name), f"{prefix}{name}")
    return writer.program(tuple(dict.fromkeys((output, *(f"{prefix}{name}" for name in wrt)))))


def backward(writer: Writer, output: str, wrt: Sequence[str], constants: Collection[str] = ()) -> dict[str, Term]:
    """Writes the steps behind the gradients and returns these as terms by tensor. Args and raises: as `gradients`."""
    for what, name in (("output", output), *(("wrt", name) for name in wrt), *(("constants", name) for name in constants)):
        if name not in writer.labels:
            raise field_error(GraphError, "gradients", "", what, f"one of {', '.join(writer.labels)}", name)
    depends = set(wrt)
    steps = tuple(writer.steps)
    for step in steps:
        if step.name not in constants and not depends.isdisjoint(step.reads):
            depends.add(step.name)
    found: dict[str, list[Term]] = {output: [Term()]} if output in depends else {}
    reached = {output}
    for step in reversed(steps):
        if step.name in reached and step.name in depends and step.name not in constants:
            reached |= step.reads & depends
            gradient = _sum(writer, step.name, found.get(step.name, []))
            if gradient.factor == 0:
                continue
            found[step.name] = [gradient]
            for tensor, labels, term in _passed(writer, step, gradient, depends):
                if term.factor != 0:
                    found.setdefault(tensor, []).append(_relabelled(term, labels, writer.labels[tensor]))
    for name in wrt:
        if name not in reached:
            raise field_error(GraphError, "gradients", f"output {output!r}", "wrt", "a tensor on which it depends", name)
    return {name: _sum(writer, name, found.get(name, [])) for name in wrt}


def _passed(writer: Writer, step: Step, gradient: Term, depends: Collection[str]) -> list[tuple[str, Labels, Term]]:
    """What a step passes back: (operand, labels of its axes, gradient over these)."""
    passed = []
    for k, tensor in enumerate([step.tensor] if isinstance(step, View) else [use.tensor for use in step.operands]):
        if tensor in depends:
            writer.stem, writer.source = f"d_{tensor}", step.name
            if isinstance(step, Expression):
                passed.append((tensor, step.operands[k].labels, operand_gradient(writer, step, gradient, k)))
            elif isinstance(step, Pad):
                passed.append((tensor, step.operand.labels, _cut(writer, step, gradient)))
            else:
                passed.append((tensor, writer.labels[tensor], _uncut(writer, step, gradient)))
    return passed


def _sum(writer: Writer, tensor: str, terms: Sequence[Term]) -> Term:
    """All terms added: those of one factor first, so that it multiplies once, and small ones first."""
    writer.stem, writer.source = f"d_{tensor}", tensor

    def added(some: Iterable[Term]) -> Term:
        return reduce(lambda one, other: writer.plus(one, other, writer.labels[tensor]), sorted(some, key=lambda term: len(term.labels)),
                      Term(0.0))

    return added(added(term for term in terms if abs(term.factor) == factor) for factor in dict.fromkeys(abs(t.factor) for t in terms))


def _relabelled(term: Term, labels: Labels, own: Labels) -> Term:
    """The term with a tensor's own labels in place of those of one use."""
    name = dict(zip(labels, own, strict=True))
    return Term(term.factor, term.tensor, tuple(name[label] for label in term.labels))


def _uncut(writer: Writer, view: View, gradient: Term) -> Term:
    """The gradient of a view in zeros, over the labels of the tensor behind it. Labels that the gradient lacks stay out, unless cut."""
    own = writer.labels[view.tensor]
    axis = {label: i for i, label in enumerate(view.labels)}
    is_cut = {label for label, whole in zip(view.labels, own, strict=True) if writer.sizes[label] != writer.sizes[whole]}
    if not is_cut <= {*gradient.labels}:
        gradient = writer.whole(gradient, Term(1.0, view.name, view.labels))
    labels = tuple(own[axis[label]] for label in gradient.labels)
    if not is_cut:
        return Term(gradient.factor, gradient.tensor, labels)
    writer.source = view.tensor
    return writer.pad(gradient, labels, tuple(view.start[axis[label]] for label in gradient.labels))


def _cut(writer: Writer, step: Pad, gradient: Term) -> Term:
    """The box of a pad's gradient, over the labels of the pad's operand."""
    axes = [step.labels.index(label) for label in gradient.labels]
    labels = tuple(step.operand.labels[i] for i in axes)
    if all(writer.sizes[step.operand.labels[i]] == writer.sizes[step.labels[i]] for i in axes):
        return Term(gradient.factor, gradient.tensor, labels)
    return writer.view(gradient, labels, tuple(step.start[i] for i in axes))
