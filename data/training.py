"""Training steps as programs: a loss, its gradients, and an optimizer's updates of the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from data.einsum_program import EinsumProgram, normal
from data.gradients import backward
from data.steps import Input
from data.terms import Term, Writer
from doppler_tf.errors import ConfigError, field_error

# The defaults of Keras.
LEARNING_RATES = {"sgd": 0.01, "momentum": 0.01, "adam": 0.001}
MOMENTUM = 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


@dataclass(frozen=True)
class Training:
    """What a program is trained for.

    Attributes:
      loss: one of LOSSES, of a target that is a further input, `target`.
      of: the tensor that has the target's labels.
      data: inputs that are no weights.
      constants: tensors through which no gradient passes, such as a maximum that a softmax subtracts and divides out again; without the
        prefix "Li." of a layer.
    """

    loss: str
    of: str
    data: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingStep:
    """A training step.

    Attributes:
      program: its outputs are `loss`, and `new_NAME` of each weight and slot.
      sources: for steps of the backward pass, the step that they differentiate.
    """

    program: EinsumProgram
    sources: Mapping[str, str]


def training_step(program: EinsumProgram, training: Training, optimizer: str = "sgd") -> TrainingStep:
    """One step of an optimizer, the first: its slots are inputs of zeros.

    Raises:
      ConfigError: no such optimizer, loss or tensor; no weight, or one on which the loss does not depend. GraphError: a tensor has a name
        that the step needs.
    """
    if optimizer not in OPTIMIZERS:
        raise field_error(ConfigError, "training", "", "optimizer", f"one of {', '.join(OPTIMIZERS)}", optimizer)
    _check(program, training)
    writer, weights = Writer(program), [name for name in program.inputs if name not in training.data]
    writer.reserve(("loss", *(f"new_{name}" for name in weights)))
    constants = {step.name for step in program.steps if _short(step.name) in training.constants}
    loss, further = LOSSES[training.loss](writer, writer.term(training.of))
    loss = writer.name(loss, Term(), "loss")
    found = backward(writer, loss.tensor, weights, {*constants, *further})
    writer.source = None
    updates: dict[str, Term] = {}
    for weight, gradient in found.items():
        writer.stem = f"d_{weight}"
        if gradient.tensor is None:
            gradient = writer.whole(gradient, writer.term(weight))
        updates |= OPTIMIZERS[optimizer](writer, weight, gradient, LEARNING_RATES[optimizer])
    for name, new in updates.items():
        writer.name(new, writer.term(name), f"new_{name}")
    return TrainingStep(writer.program(("loss", *(f"new_{name}" for name in updates))), writer.sources)


def _check(program: EinsumProgram, training: Training) -> None:
    """Raises ConfigError unless all names are known, and the loss depends on all weights."""
    for what in ("data", "constants"):
        given = getattr(training, what)
        if not isinstance(given, tuple | list) or not all(isinstance(name, str) for name in given):
            remedy = f"write ({given!r},)" if isinstance(given, str) else ""
            raise field_error(ConfigError, "training", "", what, "a tuple of names", given, remedy)
    for what in ("loss", "of"):
        if not isinstance(given := getattr(training, what), str):
            raise field_error(ConfigError, "training", "", what, "a name", given)
    computed = {step.name: _short(step.name) for step in program.steps}
    named = {"loss": ((training.loss,), LOSSES), "of": ((training.of,), computed), "data": (training.data, program.inputs),
             "constants": (training.constants, dict.fromkeys(computed.values()))}
    for what, (given, known) in named.items():
        for unknown in given:
            if unknown not in known:
                raise field_error(ConfigError, "training", "", what, f"one of {', '.join(known)}", unknown)
    if program.inputs.keys() <= {*training.data}:
        raise field_error(ConfigError, "training", "", "data", "an input at least that is a weight, and not data", training.data)
    reached = {training.of}
    for step in reversed(program.steps):
        if step.name in reached and computed[step.name] not in training.constants:
            reached |= step.reads
    for name in program.inputs:
        if name not in reached and name not in training.data:
            raise field_error(ConfigError, "training", "", "weights", f"inputs on which {training.of!r} depends", name,
                              "name it in data, or take it out of the program")


def _short(name: str) -> str:
    """A tensor's name without the prefix of a layer."""
    return name.rpartition(".")[2]


def softmax_cross_entropy(writer: Writer, logits: Term) -> tuple[Term, tuple[str, ...]]:
    """The mean over rows of -sum(target log softmax(logits)); the last label has the classes. The largest logit is subtracted before.

    Raises ConfigError: the logits have no label.
    """
    if not logits.labels:
        raise field_error(ConfigError, "training", "", "of", "logits, with classes along their last label", f"{logits.tensor}, a number")
    labels, rows = logits.labels, logits.labels[:-1]
    target = writer.add_input("target", Input(labels, _one_hot))
    largest = _written(writer, "loss_max", "identity", (logits,), rows, "max")
    shifted = _written(writer, "loss_shifted", "sub", (logits, largest), labels)
    total = _written(writer, "loss_total", "identity", (_written(writer, "loss_exp", "exp", (shifted,), labels),), rows, "sum")
    surprise = _written(writer, "surprise", "sub", (_written(writer, "loss_log", "log", (total,), rows), shifted), labels)
    return _mean_product(writer, target, surprise, writer.points(rows)), (largest.tensor,)


def mean_squared_error(writer: Writer, predicted: Term) -> tuple[Term, tuple[str, ...]]:
    """The mean of (predicted - target)^2 over all elements."""
    target = writer.add_input("target", Input(predicted.labels, normal()))
    missed = _written(writer, "missed", "sub", (predicted, target), predicted.labels)
    return _mean_product(writer, missed, missed, writer.points(predicted.labels)), ()


# The loss of a tensor, and further tensors through which no gradient passes.
LOSSES: dict[str, Callable[[Writer, Term], tuple[Term, tuple[str, ...]]]] = {
    "softmax_cross_entropy": softmax_cross_entropy, "mean_squared_error": mean_squared_error,
}


def sgd(writer: Writer, weight: str, gradient: Term, rate: float) -> dict[str, Term]:
    """w - rate g."""
    return {weight: _plus(writer, writer.term(weight), gradient.times(-rate))}


def momentum(writer: Writer, weight: str, gradient: Term, rate: float) -> dict[str, Term]:
    """v <- MOMENTUM v - rate g, then w + v (Keras's SGD with momentum)."""
    speed = _plus(writer, _slot(writer, f"velocity_{weight}", weight).times(MOMENTUM), gradient.times(-rate))
    return {f"velocity_{weight}": speed, weight: _plus(writer, writer.term(weight), speed)}


def adam(writer: Writer, weight: str, gradient: Term, rate: float) -> dict[str, Term]:
    """Adam (Kingma and Ba, arXiv 1412.6980) with epsilon as in Keras: w - rate sqrt(c2) / c1 * m / (sqrt(v) + EPSILON).

    The corrections c = 1 - BETA^t of step t are running means of one, c <- BETA c + (1 - BETA), so that they lose no digits. All weights
    share them.
    """
    new = {}
    for name, beta in (("correction_1", BETA_1), ("correction_2", BETA_2)):
        new[name] = writer.write("scale", (writer.add_input(name, Input((), _zeros)),), (), factor=beta, offset=1 - beta)
    mean = _plus(writer, _slot(writer, f"mean_{weight}", weight).times(BETA_1), gradient.times(1 - BETA_1))
    square = writer.write("square", (gradient,), gradient.labels).times(gradient.factor**2)
    spread = _plus(writer, _slot(writer, f"square_{weight}", weight).times(BETA_2), square.times(1 - BETA_2))
    spread = writer.whole(spread, writer.term(weight))
    below = writer.write("scale", (writer.write("sqrt", (spread,), spread.labels),), spread.labels, factor=1.0, offset=EPSILON)
    correction = writer.write("div", (writer.write("sqrt", (new["correction_2"],), ()), new["correction_1"]), ())
    move = writer.join("mul", writer.join("div", mean, below, below.labels, below.labels), correction, below.labels, below.labels)
    return {**new, f"mean_{weight}": mean, f"square_{weight}": spread, weight: _plus(writer, writer.term(weight), move.times(-rate))}


# New values by tensor, given a weight and its gradient.
OPTIMIZERS: dict[str, Callable[[Writer, str, Term, float], dict[str, Term]]] = {"sgd": sgd, "momentum": momentum, "adam": adam}


def _mean_product(writer: Writer, left: Term, right: Term, count: int) -> Term:
    """The sum of all products, divided by a count. Each row is summed first: one long float32 sum would lose digits."""
    rows = left.labels[:-1] if writer.points(left.labels[:-1]) > 1 else ()
    writer.stem = "loss_rows"
    by_row = writer.join("mul", left, right, rows, left.labels)
    writer.stem = "loss_sum"
    return writer.total(by_row, (), rows).times(1 / count)


def _written(writer: Writer, stem: str, *step) -> Term:
    writer.stem = stem
    return writer.write(*step)


def _plus(writer: Writer, old: Term, change: Term) -> Term:
    writer.stem = f"{old.tensor}_update"
    return writer.plus(old, change, writer.labels[old.tensor])


def _slot(writer: Writer, name: str, weight: str) -> Term:
    return writer.add_input(name, Input(writer.labels[weight], _zeros))


def _zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape)


def _one_hot(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One class, drawn for each row."""
    return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
