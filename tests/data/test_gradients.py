"""Gradients of programs: equal to TensorFlow's, whole and tile by tile, and written with no step too many."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from data import EinsumProgram, decompose, evaluate_program, execute_tiles, gradients
from tests.data.differentiable import all_values, is_smooth, programs, tape_gradients
from tests.strategies import examples


def dependent(program: EinsumProgram, output: str) -> list[str]:
    """The tensors, inputs first, from which a path leads to the output."""
    reached = {output}
    for step in reversed(program.steps):
        reached |= step.reads if step.name in reached else set()
    return [name for name in program.shapes if name in reached]


@examples(0.2)
@given(programs(), st.integers(0, 99), st.data())
def test_as_tensorflow_whole_and_tile_by_tile(case, seed, data):
    program, integers = case
    output = program.outputs[-1]
    known = dependent(program, output)
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
