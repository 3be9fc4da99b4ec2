"""Training steps: losses and gradients as TensorFlow's, updates as published, and graphs that compute them tile by tile."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from data import (
    WORKLOADS,
    EinsumProgram,
    build_workload,
    contract,
    elementwise,
    evaluate_program,
    execute_tiles,
    relative_error,
    tensor_input,
    workload_cuts,
    workload_program,
)
from data.training import BETA_1, BETA_2, EPSILON, LEARNING_RATES, MOMENTUM, OPTIMIZERS, Training, training_step
from data.workloads import forward_program
from doppler_tf.errors import ConfigError
from tests.data.differentiable import all_values
from tests.data.test_workloads import TINY
from tests.messages import refusal

TRAINED = [name for name, workload in WORKLOADS.items() if workload.training]
LOSSES = {"softmax_cross_entropy": lambda x, target: tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, x)),
          "mean_squared_error": lambda x, target: tf.reduce_mean(tf.square(x - target))}


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize("name", TRAINED)
def test_loss_and_gradients_as_the_tape_of_the_uncut_program(name, dtype, tolerance):
    """The first velocities are the gradients times minus the learning rate."""
    record = build_workload(name, 2, "small", optimizer="momentum", **TINY[name]).attributes["workload"]
    step, (forward, training) = workload_program(record), forward_program(record)
    tensors = step.draw_inputs(3, dtype)
    weights = [each for each in forward.inputs if each not in training.data]
    got = evaluate_program(step, tensors)
    with tf.GradientTape() as tape:
        given = {each: tf.constant(tensors[each]) for each in forward.inputs}
        for each in weights:
            tape.watch(given[each])
        loss = LOSSES[training.loss](tape_values(forward, given)[training.of], tf.constant(tensors["target"]))
    expected = dict(zip(weights, tape.gradient(loss, [given[each] for each in weights]), strict=True))
    found = {each: got[f"new_velocity_{each}"] / -LEARNING_RATES["momentum"] for each in weights}
    assert abs(got["loss"] - loss) <= tolerance * abs(loss)
    assert relative_error(found, {each: x.numpy() for each, x in expected.items()}) <= tolerance
    assert relative_error({each: got[f"new_{each}"] for each in weights},
                          {each: tensors[each] - LEARNING_RATES["momentum"] * expected[each].numpy() for each in weights}) <= tolerance


def test_a_stack_learns_from_every_token():
    """Its logits without training are those of the last one."""
    alone, step = (build_workload("llama_stack", 2, "small", optimizer=optimizer, **TINY["llama_stack"]) for optimizer in (None, "sgd"))
    forward, step = (workload_program(graph.attributes["workload"]) for graph in (alone, step))
    tokens, vocabulary = TINY["llama_stack"]["tokens"], TINY["llama_stack"]["vocab"]
    assert forward.shapes["head"] == (1, vocabulary)
    assert step.shapes["head"] == step.shapes["target"] == (tokens, vocabulary)


def tape_values(program: EinsumProgram, given: dict) -> dict:
    from runtime.kernels import KERNELS

    return all_values(program, given, lambda op, params, operands: KERNELS[op](params, operands),
                      lambda x, box: tf.slice(x, [a for a, _ in box], [b - a for a, b in box]))


def test_the_loss_is_stable():
    program = EinsumProgram({"i": 2, "o": 3}, {"x": tensor_input("i o"), "w": tensor_input("o")},
                            (elementwise("y", "mul", "i o, o -> i o", "x", "w"),))
    step = training_step(program, Training("softmax_cross_entropy", "y", ("x",)))
    tensors = {"x": np.array([[1e4, 0, -1e4], [-1e4, -1e4, -1e4]]), "w": np.ones(3), "target": np.array([[0, 1.0, 0], [0, 0, 1]])}
    got = evaluate_program(step.program, tensors)
    np.testing.assert_allclose(got["loss"], (1e4 + np.log(3)) / 2)
    assert np.isfinite(got["new_w"]).all()


def published(optimizer: str, weight: np.ndarray, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """The weights after each step: Kingma and Ba's order of computation with epsilon hat, and Keras's momentum."""
    rate, m, v, found = LEARNING_RATES[optimizer], 0.0, 0.0, []
    for t, g in enumerate(gradients, 1):
        if optimizer == "sgd":
            weight = weight - rate * g
        elif optimizer == "momentum":
            v = MOMENTUM * v - rate * g
            weight = weight + v
        else:
            m, v = BETA_1 * m + (1 - BETA_1) * g, BETA_2 * v + (1 - BETA_2) * g**2
            weight = weight - rate * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t) * m / (np.sqrt(v) + EPSILON)
        found.append(weight)
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_several_steps_with_the_slots_fed_back(optimizer):
    """The loss is <x, w> squared, so that the gradient is 2 <x, w> x / 1."""
    program = EinsumProgram({"k": 4, "u": 1}, {"x": tensor_input("u k"), "w": tensor_input("k")}, (contract("y", "u k, k -> u", "x", "w"),))
    step = training_step(program, Training("mean_squared_error", "y", ("x",)), optimizer).program
    tensors = {**step.draw_inputs(0, np.float64), "target": np.zeros(1)}
    assert all((tensors[name] == 0).all() for name in step.inputs if name not in ("x", "w"))
    first, gradients, weights = tensors["w"], [], []
    for _ in range(4):
        gradients.append(2 * (tensors["x"] @ tensors["w"]) * tensors["x"][0])
        new = evaluate_program(step, tensors)
        tensors |= {name.removeprefix("new_"): x for name, x in new.items() if name != "loss"}
        weights.append(tensors["w"])
    np.testing.assert_allclose(weights, published(optimizer, first, gradients), rtol=1e-12)


def test_an_update_by_sgd_is_one_step():
    program = EinsumProgram({"k": 4, "u": 1}, {"x": tensor_input("u k"), "w": tensor_input("k")}, (contract("y", "u k, k -> u", "x", "w"),))
    made = training_step(program, Training("mean_squared_error", "y", ("x",))).program
    [update] = [step for step in made.steps if "w" in step.reads and step.name != "y"]
    assert (update.name, update.fn, update.params, [use.tensor for use in update.operands]) == (
        "new_w", "add_scaled", {"factor": -2 * LEARNING_RATES["sgd"]}, ["w", "d_w"])


@pytest.mark.parametrize(("optimizer", "devices"), [("sgd", 1), ("momentum", 3), ("adam", 4)])
@pytest.mark.parametrize("name", TRAINED)
def test_tile_by_tile_equals_unsharded(name, optimizer, devices):
    options = {"tiling": "eindecomp"} if devices == 3 else {}
    graph = build_workload(name, devices, "small", optimizer=optimizer, **options, **TINY[name])
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(0, np.float64)
    got, expected = execute_tiles(graph, tensors), evaluate_program(program, tensors)
    assert got.keys() == expected.keys()
    assert relative_error(got, expected) <= 1e-9
    assert graph.name == f"{name}_training"


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_backward_pass_takes_twice_the_flops_of_the_products(scale):
    forward, step = (workload_program({"name": "llama_layer", "options": getattr(WORKLOADS["llama_layer"], scale), **training})
                     for training in ({}, {"training": {"optimizer": "sgd"}}))
    known = {e.name for e in forward.expressions}
    products = sum(forward.flops(e) for e in forward.expressions if e.kind == "matmul")
    assert sum(step.flops(e) for e in step.expressions if e.name not in known) <= 2.05 * products


@pytest.mark.parametrize("devices", [4, 8])
def test_labels_keep_their_cuts(devices):
    """Every product of the backward pass has a block for each device, like the one that it differentiates."""
    graph = build_workload("llama_layer", devices, optimizer="sgd")
    record = graph.attributes["workload"]
    cuts = workload_cuts(record)
    for back, front in (("d_wq", "q"), ("d_w1", "gate"), ("d_gated", "down"), ("d_weights", "mixed"), ("d_head_weight", "head")):
        assert cuts[back] == {label: cuts[front][label] for label in cuts[back]}
    shards = Counter(graph.meta_op[v] for v in graph.work_vertices if graph.role[v] == "shard")
    assert max(shards.values()) == devices
    large = {e.name for e in workload_program(record).expressions if e.kind == "matmul" and len(e.reduced) + len(e.labels) > 2}
    assert {shards[name] for name in large} == {devices}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_weight_that_no_gradient_reaches_stays(optimizer):
    """Its slots are zeros in both programs, which are equal."""
    program = EinsumProgram({"k": 4}, {"w": tensor_input("k")}, (elementwise("y", "is_zero", "k -> k", "w"),))
    step = training_step(program, Training("mean_squared_error", "y"), optimizer).program
    tensors = step.draw_inputs(0, np.float64)
    got = evaluate_program(step, tensors)
    np.testing.assert_array_equal(got["new_w"], tensors["w"])
    assert relative_error(got, got) == 0


def test_the_error_beside_zeros_is_absolute():
    zeros = {"x": np.zeros(2)}
    assert relative_error({"x": np.array([3.0, 4.0])}, zeros) == 5
    assert np.isnan(relative_error({"x": np.array([0.0, np.nan])}, zeros))


def test_inputs_of_the_program_are_drawn_as_without_training():
    for name in TRAINED:
        plain, step = (workload_program(build_workload(name, 1, "small", optimizer=o, **TINY[name]).attributes["workload"]).draw_inputs(7)
                       for o in (None, "adam"))
        assert all(np.array_equal(x, step[tensor]) for tensor, x in plain.items())


def test_what_is_refused():
    assert "optimizer: expected one of sgd, momentum, adam, got 'adagrad'" in refusal(ConfigError, build_workload, "ffnn", 2, "small",
                                                                                     optimizer="adagrad")
    message = refusal(ConfigError, build_workload, "layered", 2, optimizer="sgd")
    assert "training: expected a workload with a loss: one of chainmm, ffnn, " in message
