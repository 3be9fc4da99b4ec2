"""Gradients of programs: equal to TensorFlow's, whole and tile by tile, and written with no step too many."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from data import (
    EinsumProgram,
    build_workload,
    contract,
    decompose,
    elementwise,
    evaluate_program,
    execute_tiles,
    gradients,
    reduction,
    tensor_input,
    view,
    workload_program,
)
from data.gradient_rules import _AGGREGATES, _FUNCTIONS
from data.steps import AGGREGATES, FUNCTIONS, Expression, Pad, Use
from doppler_tf.errors import GraphError
from doppler_tf.graph.dataflow import Kernel, Operand
from runtime.kernels import run_kernel
from tests.crossed import crossed
from tests.data.differentiable import FLAT, PARAMS, all_values, dependent, is_smooth, programs, tape_gradients
from tests.data.test_workloads import TINY
from tests.messages import refusal
from tests.strategies import examples


def written(program: EinsumProgram, before: int) -> list[tuple]:
    """(fn, aggregate, subscripts, operands) of the steps after the first `before`."""
    return [(e.fn, e.aggregate, e.subscripts, tuple(use.tensor for use in e.operands)) for e in program.steps[before:]]


def scalar(*steps, **inputs: str) -> EinsumProgram:
    """A program over labels i, j, k of sizes 2, 3, 4."""
    return EinsumProgram({"i": 2, "j": 3, "k": 4, "u": 1}, {name: tensor_input(labels) for name, labels in inputs.items()}, steps)


def gradient(program: EinsumProgram, wrt: str, **tensors) -> np.ndarray:
    return evaluate_program(gradients(program, program.outputs[-1], [wrt]),
                            {name: np.array(x, np.float64) for name, x in tensors.items()})[f"d_{wrt}"]


@examples(0.2)
@given(programs(), st.integers(0, 99), st.data())
def test_as_tensorflow_whole_and_tile_by_tile(case, seed, data):
    program, integers = case
    known = max((dependent(program, output) for output in program.outputs), key=len)
    output = known[-1]
    wrt = [name for name in known if name in program.inputs or data.draw(st.integers(0, 3)) == 0]
    tensors = program.draw_inputs(seed, np.float64)
    made = gradients(program, output, wrt)
    assert made.outputs == (output, *(f"d_{name}" for name in wrt))
    with np.errstate(all="ignore"):
        values = all_values(program, tensors)
        size = max(float(np.abs(x).max(initial=1.0)) for x in all_values(made, tensors).values())
    assume(np.isfinite(size) and size < 1e8)
    assume(integers or is_smooth(program, values))
    expected = tape_gradients(program, output, wrt, tensors)
    got = evaluate_program(made, tensors)
    rng = np.random.default_rng(seed)
    tiling = {e.name: {label: int(rng.integers(1, made.sizes[label] + 1)) for label in e.space if label not in e.whole}
              for e in made.expressions}
    tiled = execute_tiles(decompose(made, tiling), tensors)
    for name in wrt:
        assert got[f"d_{name}"].shape == program.shapes[name]
        np.testing.assert_allclose(got[f"d_{name}"], expected[name], rtol=1e-9, atol=1e-9 * size)
        np.testing.assert_allclose(tiled[f"d_{name}"], expected[name], rtol=1e-9, atol=1e-9 * size)


def test_every_function_and_aggregate_has_a_rule():
    assert _FUNCTIONS.keys() == FUNCTIONS.keys()
    assert _AGGREGATES.keys() == set(AGGREGATES)


@pytest.mark.parametrize("aggregate", [None, *AGGREGATES])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_each_rule_and_the_rules_of_its_steps(fn, aggregate):
    """The gradient, and the gradient of the gradient: the tape differentiates the steps that the rule wrote."""
    if fn == "rotate_half" and aggregate:
        pytest.skip("rotate_half keeps all labels")
    uses = (Use("x", ("j", "k")), Use("y", ("k",)))[:FUNCTIONS[fn].arity]
    params = PARAMS[fn][0] if fn in PARAMS else {}
    step = Expression("z", fn, uses, ("j",) if aggregate else ("j", "k"), aggregate, params)
    program = scalar(step, contract("w", f"{' '.join(step.labels)}, {' '.join(step.labels)} -> ", "z", "z"), x="j k", y="k")
    tensors = {name: np.abs(x) + 0.1 for name, x in program.draw_inputs(1, np.float64).items()}
    wrt = [use.tensor for use in uses]
    made = gradients(program, "w", wrt)
    got, expected = evaluate_program(made, tensors), tape_gradients(program, "w", wrt, tensors)
    for name in wrt:
        np.testing.assert_allclose(got[f"d_{name}"], expected[name], rtol=1e-10, atol=1e-12)
    if fn in FLAT:
        return
    again, deeper = gradients(made, "d_x", ["x"], prefix="dd_"), tape_gradients(made, "d_x", ["x"], tensors)
    np.testing.assert_allclose(evaluate_program(again, tensors)["dd_x"], deeper["x"], rtol=1e-9, atol=1e-10)


def test_an_einsum_turns_into_einsums_that_exchange_an_operand_and_the_output():
    program = scalar(contract("C", "i k, k j -> i j", "A", "B"), contract("z", "i j, i j -> ", "C", "T"), A="i k", B="k j", T="i j")
    made = gradients(program, "z", ["A", "B"])
    assert written(made, 2) == [("mul", "sum", "ac,bc->ab", ("T", "B")), ("mul", "sum", "cb,ca->ab", ("T", "A"))]


def test_what_is_known_is_used_again_and_what_is_not_needed_is_not_made():
    """No second exp, no sum of one term, no product with one, and no step for the mask, of which nobody wants the gradient."""
    program = scalar(elementwise("masked", "mul", "i k, k -> i k", "x", "mask"), elementwise("e", "exp", "i k -> i k", "masked"),
                     elementwise("unused", "square", "i k -> i k", "e"), reduction("z", "sum", "i k -> ", "e"), x="i k", mask="k")
    made = gradients(program, "z", ["x"])
    assert [step.name for step in made.steps] == ["masked", "e", "z", "d_x"]
    assert written(made, 3) == [("mul", None, "ab,b->ab", ("e", "mask"))]


def test_factors_meet_in_one_step():
    scaled = [elementwise(f"s{n}", "scale", "i -> i", "x" if n == 0 else f"s{n - 1}", factor=2.0, offset=1.0) for n in range(5)]
    made = gradients(scalar(*scaled, contract("z", "i, i -> ", "s4", "y"), x="i", y="i"), "z", ["x", "y"])
    assert [(e.name, e.fn, dict(e.params)) for e in made.steps[6:]] == [("d_x", "scale", {"factor": 32.0, "offset": 0.0}),
                                                                       ("d_y", "identity", {})]


@pytest.mark.parametrize("fn", [fn for fn, function in FUNCTIONS.items() if function.arity == 1 and fn not in FLAT])
def test_a_function_of_one_operand_takes_one_step_back(fn):
    program = scalar(elementwise("z", fn, "i k -> i k", "x", **(PARAMS[fn][0] if fn in PARAMS else {})),
                     contract("w", "i k, i k -> ", "z", "y"), x="i k", y="i k")
    back = [step.fn for step in gradients(program, "w", ["x"]).steps[2:] if step.fn != "scale"]  # a factor, which meets others
    assert len(back) == (fn != "scale")


@pytest.mark.parametrize(*crossed(fn=["sqrt", "rsqrt"], join=["maximum", "minimum"]))
def test_an_infinite_slope_passes_nothing_on_where_nothing_arrives(fn, join):
    program = scalar(elementwise("s", fn, "k -> k", "x"), elementwise("z", join, "k, k -> k", "m", "s"),
                     reduction("w", "sum", "k -> ", "z"), x="k", m="k")
    tensors = {"x": np.array([0.0, 1.0, 4.0, 0.25]), "m": np.ones(4)}
    expected = tape_gradients(program, "w", ["x"], tensors)["x"]
    assert np.isfinite(expected[0]) == ((fn, join) in [("sqrt", "maximum"), ("rsqrt", "minimum")])
    made = gradients(program, "w", ["x"])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate_program(made, tensors)["d_x"], expected)
    back = made.steps[-1]
    kernel = Kernel(back.kernel[0], (Operand(0, None), Operand(1, None)), back.kernel[1])
    assert back.fn == f"{fn}_gradient"
    with np.errstate(all="ignore"):
        operands = [tf.constant(all_values(made, tensors)[use.tensor]) for use in back.operands]
    for jit_compile in (False, True):
        compute = tf.function(lambda *tensors: run_kernel(kernel, tensors), jit_compile=jit_compile)
        np.testing.assert_array_equal(compute(*operands), expected)


@pytest.mark.parametrize("fn", ["maximum", "minimum"])
def test_an_infinite_gradient_stops_at_the_operand_that_is_not_taken(fn):
    root = "sqrt" if fn == "maximum" else "rsqrt"
    program = scalar(elementwise("z", fn, "k, k -> k", "x", "m"), elementwise("s", root, "k -> k", "z"),
                     reduction("w", "sum", "k -> ", "s"), x="k", m="k")
    tensors = {"x": np.array([-1.0 if fn == "maximum" else 3.0, 1.0, 4.0, 0.25]), "m": np.zeros(4)}
    with np.errstate(all="ignore"):
        got, expected = evaluate_program(gradients(program, "w", ["x"]), tensors), tape_gradients(program, "w", ["x"], tensors)
    np.testing.assert_array_equal(got["d_x"], expected["x"])
    assert got["d_x"][0] == 0


def test_one_minus_a_mask_is_one_step():
    """A constant beside a term with minus its factor."""
    program = scalar(elementwise("z", "minimum", "k, k -> k", "x", "m"), elementwise("d", "sub", "k, k -> k", "x", "z"), x="k", m="k")
    tensors = {"x": np.array([0.0, 1.0, 2.0, 3.0]), "m": np.full(4, 1.5)}
    made = gradients(program, "d", ["x"])
    assert evaluate_program(made, tensors)["d_x"].tolist() == [0, 0, 1, 1]
    assert [step.fn for step in made.steps[2:]] == ["greater_equal", "scale"]


def test_uses_are_added():
    made = gradients(scalar(contract("s", "i k, j k -> i j", "x", "y"), contract("t", "i k, j k -> i j", "x", "v"),
                            contract("a", "i j, i j -> ", "s", "t"), x="i k", y="j k", v="j k"), "a", ["x"])
    assert [e.kind for e in made.steps[3:]] == ["matmul", "matmul", "add"]


def test_equals_share_the_gradient_of_a_maximum_evenly():
    x = [[3, 1, 3], [2, 2, 2]]
    assert gradient(scalar(reduction("z", "max", "i j -> i", "x"), x="i j"), "x", x=x).tolist() == [[0.5, 0, 0.5], [1 / 3] * 3]
    assert gradient(scalar(reduction("z", "min", "i j -> i", "x"), x="i j"), "x", x=x).tolist() == [[0, 1, 0], [1 / 3] * 3]


def test_the_first_of_two_equals_takes_the_gradient_of_their_maximum():
    program = scalar(elementwise("z", "maximum", "j, j -> j", "x", "y"), x="j", y="j")
    assert [gradient(program, wrt, x=[1, 2, 3], y=[2, 2, 2]).tolist() for wrt in "xy"] == [[0, 1, 1], [1, 0, 0]]


def test_products_with_zeros():
    program = scalar(reduction("z", "prod", "i j -> i", "x"), x="i j")
    assert gradient(program, "x", x=[[2, 3, 4], [2, 0, 4]]).tolist() == [[12, 8, 6], [0, 8, 0]]
    assert gradient(program, "x", x=[[0, 3, 0], [1, 1, 1]]).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_view_is_undone_by_a_pad_and_a_pad_by_a_view():
    program = scalar(view("v", "u k", "x", u=1), contract("z", "u k, u k -> ", "v", "v"), x="i k")
    made = gradients(program, "z", ["x"])
    assert [(step.operand, step.labels, step.start) for step in made.steps if isinstance(step, Pad)] == [
        (Use("v", ("u", "k")), ("i", "k"), (1, 0))]
    back = gradients(made, "d_x", ["x"], prefix="dd_")
    assert evaluate_program(back, program.draw_inputs(0))["dd_x"].tolist() == [[0] * 4, [2] * 4]


def test_a_label_that_only_one_operand_has():
    outer = scalar(contract("z", "i j, k -> i", "x", "y"), x="i j", y="k")
    assert gradient(outer, "y", x=np.ones((2, 3)), y=[1, 2, 3, 4]).tolist() == [6] * 4
    assert gradient(scalar(reduction("z", "sum", "i -> ", "x"), x="i"), "x", x=[1, 2]).tolist() == [1, 1]


def test_no_gradient_passes_through_a_constant():
    steps = (reduction("m", "max", "i k -> i", "x"), elementwise("y", "sub", "i k, i -> i k", "x", "m"))
    program = scalar(*steps, x="i k")
    kept = gradients(program, "y", ["x"], constants=("m",))
    assert [step.name for step in kept.steps] == ["m", "y", "d_x"]
    assert evaluate_program(kept, program.draw_inputs(0))["d_x"].tolist() == [[1] * 4] * 2


def test_steps_of_a_layer_are_few_and_of_use():
    program = workload_program(build_workload("llama_layer", 1, "small", **TINY["llama_layer"]).attributes["workload"])
    made = gradients(program, "head", [name for name in program.inputs if name not in ("cos", "sin", "mask")])
    scales = [e for e in made.expressions if getattr(e, "fn", None) == "scale"]
    assert not [e for e in scales if e.params["factor"] == 1 and e.params["offset"] == 0]
    assert not {e.name for e in scales[2:]} & {use.tensor for e in scales for use in e.operands}
    keys = [(getattr(e, "fn", None), e.operands, e.labels, e.aggregate) for e in made.expressions if getattr(e, "fn", None) != "scale"]
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize(("output", "wrt", "words"), [
    ("z", ["q"], "gradients: wrt: expected one of x, y, z, w, got 'q'"), ("q", ["x"], "gradients: output: expected one of"),
    ("z", ["y"], "gradients: output 'z': wrt: expected a tensor on which it depends, got 'y'")])
def test_what_cannot_be_differentiated(output, wrt, words):
    program = scalar(elementwise("z", "exp", "i -> i", "x"), elementwise("w", "exp", "j -> j", "y"), x="i", y="j")
    assert words in refusal(GraphError, gradients, program, output, wrt)
