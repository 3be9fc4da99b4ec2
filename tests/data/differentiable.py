"""Random programs to differentiate, and their gradients by TensorFlow's tape."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from data import EinsumProgram, contract, elementwise, normal, reduction, tensor_input, view
from data.einsum_program import pad
from data.numpy_kernels import run_op
from data.steps import AGGREGATES, FUNCTIONS, Expression, View
from runtime.kernels import KERNELS

LABELS = "abcd"
PARAMS = {"scale": ({"factor": -2.0, "offset": 1.0}, {"factor": 0.5, "offset": 0.0}), "fill": ({"value": 3.0},)}
# What keeps integers integers, so that equals stay equal however they are computed.
INTEGER = ("identity", "square", "relu", "is_positive", "is_zero", "fill", "rotate_half", "add", "sub", "mul", "maximum", "minimum",
           "greater", "greater_equal", "spread")
DOMAIN = {"rsqrt": 0, "sqrt": 0, "log": 0, "div": 1}  # the operand that must be positive
POSITIVE = {"exp", "sigmoid", "fill"}
STAYS_POSITIVE = {"identity", "square", "relu", "rsqrt", "sqrt", "add", "mul", "div", "maximum", "minimum", "spread", "is_positive", "silu"}


@st.composite
def programs(draw, least: int = 2, most: int = 12):
    """(program, tensors that an expression computes, whether all values are integers)."""
    integers = draw(st.booleans())
    sizes = {label: draw(st.sampled_from([2, 3, 1, 4])) for label in LABELS} | {"u": 1, "two": 2}
    axes = st.lists(st.sampled_from(LABELS), unique=True, max_size=3)
    known, positive, inputs = {}, set(), {}
    for i in range(draw(st.integers(1, 3))):
        name, positive_values = f"x{i}", draw(st.booleans())
        inputs[name] = tensor_input(" ".join(draw(axes)), _small_integers if integers else _around_one if positive_values else normal())
        known[name] = inputs[name].labels
        positive |= {name} if positive_values and not integers else set()
    steps = []

    def add(step, is_positive):
        steps.append(step)
        known[step.name] = step.labels
        positive.update({step.name} if is_positive else ())

    for i in range(draw(st.integers(least, most))):
        name, source = f"e{i}", draw(st.sampled_from(sorted(known)))
        kind = draw(st.sampled_from(["expression"] * 8 + ["view", "pad"]))
        labels, cut = known[source], [k for k, label in enumerate(known[source]) if sizes[label] > 2]
        if kind == "view" and cut:
            at = draw(st.sampled_from(cut))
            new = draw(st.sampled_from([label for label in ("u", "two") if label not in labels] or ["u"]))
            if new not in labels:
                add(view(name, " ".join((*labels[:at], new, *labels[at + 1:])), source,
                         **{new: draw(st.integers(0, sizes[labels[at]] - sizes[new]))}), source in positive)
            continue
        if kind == "pad" and labels:
            at = draw(st.integers(0, len(labels) - 1))
            new = [label for label in LABELS if label not in labels and sizes[label] >= sizes[labels[at]]]
            if new:
                into = draw(st.sampled_from(new))
                add(pad(name, f"{' '.join(labels)} -> {' '.join((*labels[:at], into, *labels[at + 1:]))}", source,
                        **{into: draw(st.integers(0, sizes[into] - sizes[labels[at]]))}), False)
                continue
        fn = draw(st.sampled_from(INTEGER if integers else sorted(FUNCTIONS)))
        tensors = [source, draw(st.sampled_from(sorted(known)))][:FUNCTIONS[fn].arity]
        if fn in DOMAIN and tensors[DOMAIN[fn]] not in positive:
            if not positive:
                continue
            tensors[DOMAIN[fn]] = draw(st.sampled_from(sorted(positive)))
        uses = [known[tensor] for tensor in tensors]
        if draw(st.booleans()):  # other labels of the same sizes, as in attention
            moved = {label: other for label in uses[-1] for other in LABELS
                     if other != label and sizes.get(other) == sizes[label] and other not in uses[-1]}
            if len(set(moved.values())) == len(moved):
                uses[-1] = tuple(moved.get(label, label) for label in uses[-1])
        read = list(dict.fromkeys(label for use in uses for label in use))
        if fn == "rotate_half":
            if not uses[0] or sizes[uses[0][-1]] % 2:
                continue
            output = list(uses[0])
        else:
            output = list(draw(st.permutations(read)))[:draw(st.integers(0, len(read)))] if draw(st.booleans()) else read
        aggregate = draw(st.sampled_from(AGGREGATES)) if len(output) < len(read) else None
        params = draw(st.sampled_from(PARAMS[fn])) if fn in PARAMS else {}
        pattern = f"{', '.join(' '.join(use) for use in uses)} -> {' '.join(output)}"
        if aggregate is None:
            step = elementwise(name, fn, pattern, *tensors, **params)
        elif len(tensors) == 2:
            step = contract(name, pattern, *tensors, join=fn, aggregate=aggregate)
        else:
            step = reduction(name, aggregate, pattern, *tensors) if fn == "identity" else \
                Expression(name, fn, elementwise("", fn, pattern, *tensors, **params).operands, tuple(output), aggregate, params)
        add(step, not integers and (fn in POSITIVE or (fn in STAYS_POSITIVE and positive.issuperset(tensors))))
    read = {tensor for step in steps for tensor in step.reads}
    for step in [step for step in steps if isinstance(step, View) and step.name not in read]:
        add(elementwise(f"{step.name}_copy", "identity", f"{' '.join(step.labels)} -> {' '.join(step.labels)}", step.name), False)
    if not any(isinstance(step, Expression) for step in steps):
        add(elementwise("last", "square", f"{' '.join(inputs['x0'].labels)} -> {' '.join(inputs['x0'].labels)}", "x0"), False)
    return EinsumProgram(sizes, inputs, tuple(steps)), integers


def _small_integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-2, 3, shape)


def _around_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape)


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
        if fn in ("relu", "is_positive", "is_zero") or aggregate == "prod":
            x = np.abs(values[step.operands[0].tensor])
            if ((x > 0) & (x < 1e-7)).any():
                return False
    return True


def _pointwise(step: Expression) -> str:
    return step.subscripts.partition("->")[0] + "->" + "".join(
        dict(zip(step.space, "abcdefghijkl", strict=False))[label] for label in step.space)
