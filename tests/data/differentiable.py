"""Random programs to differentiate, and their gradients by TensorFlow's tape."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from data import EinsumProgram, elementwise, normal, tensor_input, view
from data.einsum_program import pad
from data.numpy_kernels import run_op
from data.steps import AGGREGATES, FUNCTIONS, Expression, Use, View
from runtime.kernels import KERNELS

LABELS = "abcd"
PARAMS = {"scale": ({"factor": -2.0, "offset": 1.0}, {"factor": 0.5, "offset": 0.0}), "fill": ({"value": 3.0},),
          "add_scaled": ({"factor": -2.0}, {"factor": 0.5})}
# What keeps integers integers, so that equals stay equal however they are computed.
INTEGER = ("identity", "square", "relu", "relu_gradient", "is_zero", "fill", "rotate_half", "add", "sub", "mul", "maximum", "minimum",
           "greater", "greater_equal", "spread", "where")
FLAT = ("is_zero", "greater", "greater_equal", "fill")  # no gradient passes
DOMAIN = {"rsqrt": 0, "sqrt": 0, "log": 0, "div": 1}  # the operand that must be positive
POSITIVE = {"exp", "sigmoid", "fill"}
STAYS_POSITIVE = {"identity", "square", "relu", "rsqrt", "sqrt", "add", "mul", "div", "maximum", "minimum", "spread", "silu"}


@st.composite
def programs(draw, least: int = 2, most: int = 12):
    """(program, whether all values are integers). Hypothesis draws the number of steps; a generator of its seed draws the rest."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return _random_program(rng, draw(st.sampled_from(range(least, most + 1))))


def _random_program(rng: np.random.Generator, count: int) -> tuple[EinsumProgram, bool]:
    def pick(options):
        return options[rng.integers(len(options))]

    integers = rng.random() < 0.3
    sizes = {label: pick([2, 3, 1, 4]) for label in LABELS} | {"u": 1, "two": 2}
    known, positive, inputs, steps = {}, set(), {}, []
    for i in range(rng.integers(1, 4)):
        fill = _small_integers if integers else pick([_around_one, normal()])
        inputs[f"x{i}"] = tensor_input(" ".join(rng.permutation(list(LABELS))[:rng.integers(4)]), fill)
        known[f"x{i}"] = inputs[f"x{i}"].labels
        positive |= {f"x{i}"} if fill is _around_one else set()

    def add(step, is_positive=False):
        steps.append(step)
        known[step.name] = step.labels
        positive.update({step.name} if is_positive else ())

    while len(steps) < count:
        name, source = f"e{len(steps)}", next(reversed(known)) if rng.random() < 0.8 else pick(list(known))
        labels, kind = known[source], rng.random()
        cut = [k for k, label in enumerate(labels) if sizes[label] > 2]
        new = [label for label in ("u", "two") if label not in labels]
        if kind < 0.1 and cut and new:
            at, into = pick(cut), pick(new)
            add(view(name, " ".join((*labels[:at], into, *labels[at + 1:])), source,
                     **{into: int(rng.integers(sizes[labels[at]] - sizes[into] + 1))}), source in positive)
            continue
        if kind < 0.2 and labels:
            at = rng.integers(len(labels))
            new = [label for label in LABELS if label not in labels and sizes[label] >= sizes[labels[at]]]
            if new:
                into = pick(new)
                add(pad(name, f"{' '.join(labels)} -> {' '.join((*labels[:at], into, *labels[at + 1:]))}", source,
                        **{into: int(rng.integers(sizes[into] - sizes[labels[at]] + 1))}))
                continue
        fn = pick([fn for fn in FUNCTIONS if (fn in INTEGER or not integers) and (fn not in FLAT or rng.random() < 0.3)])
        tensors = [source, pick(list(known))][:FUNCTIONS[fn].arity]
        if fn in DOMAIN and tensors[DOMAIN[fn]] not in positive:
            if not positive:
                continue
            tensors[DOMAIN[fn]] = pick(sorted(positive))
        uses = [known[tensor] for tensor in tensors]
        if rng.random() < 0.5:  # other labels of the same sizes, as in attention
            moved = {label: pick([other for other in LABELS if sizes[other] == sizes[label]] or [label]) for label in uses[-1]}
            if len(set(moved.values())) == len(moved):
                uses[-1] = tuple(moved[label] for label in uses[-1])
        read = list(dict.fromkeys(label for use in uses for label in use))
        if fn == "rotate_half" and (not read or sizes[read[-1]] % 2):
            continue
        output = read
        if fn != "rotate_half" and rng.random() < 0.5:
            output = [str(label) for label in rng.permutation(read)][:rng.integers(len(read) + 1)]
        aggregate = pick(AGGREGATES) if len(output) < len(read) else None
        params = pick(PARAMS[fn]) if fn in PARAMS else {}
        operands = tuple(Use(tensor, tuple(use)) for tensor, use in zip(tensors, uses, strict=True))
        add(Expression(name, fn, operands, tuple(output), aggregate, params),
            not integers and (fn in POSITIVE or (fn in STAYS_POSITIVE and positive.issuperset(tensors))))
    read = {tensor for step in steps for tensor in step.reads}
    for step in [step for step in steps if isinstance(step, View) and step.name not in read]:
        add(elementwise(f"{step.name}_copy", "identity", f"{' '.join(step.labels)} -> {' '.join(step.labels)}", step.name))
    return EinsumProgram(sizes, inputs, tuple(steps)), integers


def _small_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-2, 3, shape)


def _around_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape)


def dependent(program: EinsumProgram, output: str) -> list[str]:
    """The tensors, inputs first, from which a path leads to the output."""
    reached = {output}
    for step in reversed(program.steps):
        reached |= step.reads if step.name in reached else set()
    return [name for name in program.shapes if name in reached]


def all_values(program: EinsumProgram, tensors, run=run_op, cut=lambda x, box: x[tuple(slice(*interval) for interval in box)]) -> dict:
    """The values of all tensors."""
    known = dict(tensors)
    for step in program.steps:
        known[step.name] = (cut(known[step.tensor], program.box(step)) if isinstance(step, View)
                            else run(*program.kernel(step), [known[use.tensor] for use in step.operands]))
    return known


def tape_gradients(program: EinsumProgram, output: str, wrt, tensors) -> dict[str, np.ndarray]:
    """The gradients of the sum of an output by `tf.GradientTape`, by tensor."""
    with tf.GradientTape() as tape:
        def watched(x):
            tape.watch(x)
            return x

        given = {name: watched(tf.constant(x)) for name, x in tensors.items()}
        known = all_values(program, given, lambda op, params, operands: watched(KERNELS[op](params, operands)),
                           lambda x, box: watched(tf.slice(x, [a for a, _ in box], [b - a for a, b in box])))
        total = tf.reduce_sum(known[output])
    return {name: x.numpy() for name, x in zip(wrt, tape.gradient(total, [known[name] for name in wrt],
                                                                 unconnected_gradients="zero"), strict=True)}


def is_smooth(program: EinsumProgram, values) -> bool:
    """Whether no two values that a step compares are nearly equal. They may be equal where they are zero or the same number."""
    for step in program.expressions:
        fn, aggregate = getattr(step, "fn", None), step.aggregate
        if aggregate in ("max", "min"):
            points = run_op("map", {"fn": fn, "subscripts": _pointwise(step), **step.params}, [values[use.tensor] for use in step.operands])
            extreme = values[step.name].reshape(values[step.name].shape + (1,) * (points.ndim - values[step.name].ndim))
            gap = np.abs(points - extreme)
            ties = (gap == 0).sum(axis=tuple(range(values[step.name].ndim, points.ndim)), keepdims=True) > 1
            if ((gap > 0) & (gap < 1e-7)).any() or (ties & (extreme != 0)).any():
                return False
        if fn in ("maximum", "minimum", "greater", "greater_equal"):
            one, other = (use.tensor for use in step.operands)
            gap = run_op("map", {"fn": "sub", "subscripts": _pointwise(step)}, [values[one], values[other]])
            zero = run_op("map", {"fn": "maximum", "subscripts": _pointwise(step)}, [np.abs(values[one]), np.abs(values[other])]) == 0
            if ((np.abs(gap) < 1e-7) & ~zero & ((gap != 0) | (one != other))).any():
                return False
        if fn in ("relu", "relu_gradient", "is_zero") or aggregate == "prod":
            x = np.abs(values[step.operands[-1].tensor])
            if ((x > 0) & (x < 1e-7)).any():
                return False
    return True


def _pointwise(step: Expression) -> str:
    return step.subscripts.partition("->")[0] + "->" + "".join(
        dict(zip(step.space, "abcdefghijkl", strict=False))[label] for label in step.space)
