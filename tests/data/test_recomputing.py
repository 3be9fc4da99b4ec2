"""Recomputation: the same outputs to the bit, fewer bytes between the passes, and nothing computed again that saves none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data import (
    WORKLOADS,
    EinsumProgram,
    build_workload,
    contract,
    decompose,
    elementwise,
    evaluate_program,
    execute_tiles,
    tensor_input,
    view,
)
from data.recomputing import recomputed
from data.steps import Expression, View
from data.training import Training, TrainingStep, training_step
from doppler_tf.errors import ConfigError, GraphError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import preset
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from tests.data.differentiable import dependent, programs
from tests.messages import refusal
from tests.strategies import examples


def copies(made: TrainingStep, again: TrainingStep) -> dict[str, str]:
    """What was computed for the backward pass, by new name: the old one."""
    known = {step.name for step in made.program.steps}
    return {step.name: step.name.rstrip("_").removesuffix("_again") for step in again.program.steps if step.name not in known}


def behind(program: EinsumProgram, turn: str) -> set[str]:
    """The steps that depend on a tensor, by what they read or wait for."""
    found = {turn}
    for step in program.steps:
        found |= set() if found.isdisjoint(step.reads) else {step.name}
    return found - {turn}


@examples(0.2)
@given(programs(3, 12), st.sampled_from(["sgd", "adam"]), st.integers(0, 99))
def test_outputs_are_equal_whole_and_tile_by_tile(case, optimizer, seed):
    program, _ = case
    turn = max(program.outputs, key=lambda output: len(dependent(program, output)))
    known = dependent(program, turn)
    data = tuple(name for name in program.inputs if name not in known)
    assume(len(data) < len(program.inputs))
    try:
        made = training_step(program, Training("mean_squared_error", turn, data), optimizer)
    except GraphError:  # no gradient reaches a weight
        assume(False)
    again = recomputed(made, turn, launch=0)
    assert again.program.outputs == made.program.outputs
    late = copies(made, again)
    for step in again.program.steps:
        if step.name in late and isinstance(step, Expression):
            assert step.after == turn or step.after in behind(made.program, turn)
    rng, tensors = np.random.default_rng(seed), made.program.draw_inputs(seed, np.float64)
    tiling = {e.name: {label: int(rng.integers(1, made.program.sizes[label] + 1)) for label in e.space if label not in e.whole}
              for e in made.program.expressions}
    like = {e.name: tiling[late.get(e.name, e.name)] for e in again.program.expressions}
    graphs = decompose(made.program, tiling), decompose(again.program, like)
    with np.errstate(all="ignore"):
        whole = [evaluate_program(each.program, tensors) for each in (made, again)]
        for one, other in (whole, [execute_tiles(graph, tensors) for graph in graphs]):
            for name in made.program.outputs:
                np.testing.assert_array_equal(other[name], one[name])


def chain(fn: str, layers: int) -> TrainingStep:
    """x and `layers` products of 16 x 16 by a weight, each followed by a function; the loss is of the last product."""
    steps, inputs, x = [], {"x": tensor_input("t a")}, "x"
    for i in range(layers):
        steps += [contract(f"h{i}", "t a, a b -> t b", x, f"w{i}"), elementwise(f"s{i}", fn, "t b -> t b", f"h{i}")]
        inputs[f"w{i}"], x = tensor_input("a b"), f"s{i}"
    inputs["w"] = tensor_input("a b")
    program = EinsumProgram(dict.fromkeys("tab", 16), inputs, (*steps, contract("y", "t a, a b -> t b", x, "w")))
    return training_step(program, Training("mean_squared_error", "y", ("x",)))


def test_bytes_of_a_chain_by_hand():
    """All tensors are 16 x 16 x 4 = 1,024 bytes. Behind the turn each layer's s (for the gradient of the next weight) and h (for
    that of silu) are read: 10 tensors are held when the product y begins. s follows from h, so that 5 tensors have to be there, and s of
    the last layer, which y reads. The peak falls as much."""
    made = chain("silu", 5)
    again = recomputed(made, "y", launch=0)
    assert sorted(copies(made, again).values()) == [f"s{i}" for i in range(5)]
    held, peaks = [], []
    for graph in (decompose(each.program, {}) for each in (made, again)):
        costs, assignment = build_costs(graph, preset("cpu:1")), Assignment(np.where(graph.is_input, -1, 0).astype(np.int32))
        trace = Simulator().execute(graph, costs, assignment)
        start_s = np.zeros(graph.num_vertices)
        start_s[trace.vertex] = trace.start_s
        turn_s = start_s[graph.names.index("y.mm[0,0,0]")]
        alive = {u for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
                 if not graph.is_input[u] and start_s[u] < turn_s <= start_s[v]}
        held.append(sum(costs.output_bytes[v] for v in alive))
        peaks.append(peak_bytes(graph, costs, assignment, trace)[0])
    assert held == [10 * 1024, 6 * 1024]
    assert peaks[0] - peaks[1] >= 4 * 1024


@pytest.mark.parametrize("fn", ["exp", "relu", "sigmoid"])
def test_what_saves_no_bytes_is_not_computed_again(fn):
    """The backward pass reads fn(h) alone. To compute it again would keep h, which is as large."""
    made = chain(fn, 4)
    assert recomputed(made, "y", launch=0).program == made.program


def test_a_view_of_what_is_computed_again_is_cut_again():
    """Of a function of x, an input, nothing has to be kept."""
    program = EinsumProgram({"t": 6, "u": 2, "a": 3}, {"x": tensor_input("t a"), "w": tensor_input("u a")},
                            (elementwise("e", "exp", "t a -> t a", "x"), view("v", "u a", "e", u=1),
                             elementwise("y", "mul", "u a, u a -> u a", "v", "w")))
    made = training_step(program, Training("mean_squared_error", "y", ("x",)))
    again = recomputed(made, "y", launch=0)
    assert copies(made, again) == {"e_again": "e", "v_again": "v"}
    [copy] = [step for step in again.program.steps if isinstance(step, View) and step.name == "v_again"]
    assert copy.tensor == "e_again"


def test_a_layer_computes_no_product_of_matrices_again():
    for name in ("llama_layer", "llama_block"):
        workload = WORKLOADS[name]
        made = training_step(workload.program(workload.paper), workload.training)
        again = recomputed(made, workload.training.of)
        late = [step for step in again.program.steps if step.name in copies(made, again)]
        assert late
        assert not [step.name for step in late if isinstance(step, Expression) and step.kind == "matmul"]


@pytest.mark.parametrize("tiling", ["published", "data", "eindecomp"])
def test_what_is_computed_again_waits_and_runs_stay_work_conserving(tiling):
    graph = build_workload("llama_stack", 2, "small", tiling=tiling, optimizer="sgd", recompute=True, layers=2)
    placed = place(graph, "cpu:2", method="critical_path")
    trace = Simulator().execute(graph, placed.costs, placed.assignment)
    assert validate_trace(graph, placed.costs, trace=trace, assignment=placed.assignment).work_conserving
    end_s = dict(zip(trace.vertex.tolist(), trace.end_s.tolist(), strict=True))
    start_s = dict(zip(trace.vertex.tolist(), trace.start_s.tolist(), strict=True))
    late = [v for v in graph.work_vertices.tolist() if "_again" in graph.names[v]]
    assert late
    first_logits_s = min(end_s[v] for v in graph.work_vertices.tolist() if graph.meta_op[v] == "head")
    assert min(start_s[v] for v in late) >= first_logits_s


def test_signals_are_no_operands_and_take_one_element():
    graph = build_workload("llama_layer", 2, "small", optimizer="sgd", recompute=True)
    signals = {v for v in graph.work_vertices.tolist() if graph.kinds[v] == "signal"}
    waiting = [(u, v) for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True) if u in signals]
    assert {graph.tensor_bytes[graph.tensor_ptr[v]] for v in signals} == {4}
    assert all(u not in {operand.vertex for operand in graph.kernel[v].operands} for u, v in waiting)


@pytest.mark.parametrize(("name", "options", "words"), [
    ("ffnn", {}, "workload: ffnn: recompute: expected False without training")])
def test_what_is_refused(name, options, words):
    assert words in refusal(ConfigError, build_workload, name, 2, "small", recompute=True, **options)


def test_a_step_waits_for_what_an_expression_before_it_computes():
    step = elementwise("y", "exp", "t -> t", "x")
    for after in ("z", "x", "y"):
        message = refusal(GraphError, EinsumProgram, {"t": 2}, {"x": tensor_input("t")},
                          (Expression(step.name, step.fn, step.operands, step.labels, after=after),))
        assert f"after: expected a tensor that an expression before it computes, got {after!r}" in message
