"""Several training steps as one graph: the weights of a step are those that the step before has made, as in TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from data import WORKLOADS, assemble_outputs, build_workload, evaluate_program, relative_error, workload_program
from data.training import OPTIMIZERS
from doppler_tf.api.executors import Program
from doppler_tf.api.running import run
from doppler_tf.graph.topology import preset
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.validation import validate_trace
from tests.crossed import crossed
from tests.data.test_training_step import LOSSES, TRAINED, published, tape_values
from tests.data.test_workloads import TINY

STEPS = 5
CASES = [("chainmm", "momentum", 4, "published"), ("ffnn", "adam", 2, "data")]
ALL = [("llama_layer", "sgd", 2, "tensor")] + [(name, optimizer, devices, "eindecomp" if devices == 4 else "published")
       for name in TRAINED for optimizer in OPTIMIZERS for devices in (1, 2, 4)]


def in_tensorflow(name, optimizer, tensors, dtype=np.float32):
    """The loss of each step, and the weights after the last: GradientTape on the uncut forward program, and updates as published."""
    workload = WORKLOADS[name]
    forward = workload.forward({**workload.small, **TINY[name]}, training=True)
    given = {each: tensors[each].astype(dtype) for each in (*forward.inputs, "target")}
    first = weights = {each: given[each] for each in forward.inputs if each not in workload.training.data}
    losses, gradients = [], {each: [] for each in weights}
    for _ in range(STEPS):
        known = {each: tf.constant(value) for each, value in {**given, **weights}.items()}
        with tf.GradientTape() as tape:
            tape.watch([known[each] for each in weights])
            loss = LOSSES[workload.training.loss](tape_values(forward, known)[workload.training.of], known["target"])
        for each, gradient in zip(weights, tape.gradient(loss, [known[each] for each in weights]), strict=True):
            gradients[each].append(gradient.numpy())
        weights = {each: published(optimizer, first[each], gradients[each])[-1] for each in weights}
        losses.append(loss.numpy())
    return losses, weights


def random_assignment(graph, devices, seed):
    device = np.full(graph.num_vertices, -1, np.int32)
    device[graph.work_vertices] = np.random.default_rng(seed).integers(devices, size=len(graph.work_vertices))
    return Assignment(device, None, "random")


@pytest.mark.parametrize(*crossed(name=TRAINED, optimizer=OPTIMIZERS))
def test_the_program_fed_back_is_training_in_tensorflow(name, optimizer):
    program = workload_program(build_workload(name, 2, "small", optimizer=optimizer, **TINY[name]).attributes["workload"])
    first = tensors = program.draw_inputs(0, np.float64)
    losses = []
    for _ in range(STEPS):
        new = evaluate_program(program, tensors)
        losses.append(new.pop("loss"))
        tensors = tensors | {each.removeprefix("new_"): value for each, value in new.items()}
    expected, weights = in_tensorflow(name, optimizer, first, np.float64)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert relative_error({each: tensors[each] for each in weights}, weights) <= 1e-9
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("name", "optimizer", "devices", "tiling"), [
    *CASES, *(pytest.param(*case, marks=pytest.mark.thorough) for case in ALL)])
def test_steps_on_devices_equal_tensorflows(name, optimizer, devices, tiling):
    graph = build_workload(name, devices, "small", optimizer=optimizer, tiling=tiling, **TINY[name])
    topology = preset(f"cpu:{devices}")
    done = run(graph, topology, random_assignment(graph, devices, 7), repeat=STEPS, in_flight=2)
    assert done.figures["trace_valid"]
    assert done.figures["relative_error"] <= 1e-5
    batches = repeat_graph(graph, topology, STEPS, 2)
    program = workload_program(graph.attributes["workload"])
    losses, weights = in_tensorflow(name, optimizer, program.draw_inputs(0))

    def whole(b, outputs):
        tiles = [index for each in outputs for index in [graph.ids.index(x["vertex"]) for x in graph.attributes["outputs"][each]["tiles"]]]
        return assemble_outputs(graph, {v: done.outputs[batches.tensor(b, v)] for v in tiles}, outputs)

    # A small loss is the difference of logits of several units, which float32 rounds by some 5e-7.
    np.testing.assert_allclose([whole(b, ["loss"])["loss"] for b in range(STEPS)], losses, rtol=1e-5, atol=1e-6)
    found = whole(STEPS - 1, [f"new_{each}" for each in weights])
    assert relative_error({each: found[f"new_{each}"] for each in weights}, weights) <= 1e-5


def test_losses_are_compared_as_one_array():
    """A loss of almost 0 is a difference of larger numbers, so that its own relative error says little."""
    graph = build_workload("chainmm", 2, "small", optimizer="sgd", **TINY["chainmm"])
    topology, (tile,) = preset("cpu:2"), graph.attributes["outputs"]["loss"]["tiles"]
    done = run(graph, topology, random_assignment(graph, 2, 7), repeat=3, in_flight=2)
    batches = repeat_graph(graph, topology, 3, 2)
    program = Program(graph).repeated(batches, 0)
    assert program.relative_error(done.outputs) <= 1e-6
    at = [int(batches.tensor(b, graph.ids.index(tile["vertex"]))) for b in range(3)]
    losses = np.array([done.outputs[t] for t in at])
    wrong = program.relative_error({**done.outputs, at[2]: losses[2] / 2})
    assert wrong == pytest.approx(losses[2] / 2 / np.linalg.norm(losses), rel=1e-4)


def test_no_barrier_between_steps():
    """The next step's first product starts when its weight is there, before the last update of this step."""
    graph = build_workload("llama_layer", 4, tiling="tensor", optimizer="sgd")
    topology = preset("p100x4")
    makespans_s = {}
    for in_flight in (1, 2):
        batches = repeat_graph(graph, topology, 3, in_flight)
        assignment = batches.assignment([random_assignment(graph, 4, 0)])
        trace = Simulator().execute(batches.graph, batches.costs, assignment)
        validate_trace(batches.graph, batches.costs, assignment, trace)
        makespans_s[in_flight] = trace.makespan_s
        start_s, end_s = np.zeros((2, batches.graph.num_vertices))
        start_s[trace.vertex], end_s[trace.vertex] = trace.start_s, trace.end_s
        mine = batches.vertex[:, graph.work_vertices]
        overlap = start_s[mine[1]].min() < end_s[mine[0]].max()
        assert overlap == (in_flight == 2)
    assert makespans_s[2] < makespans_s[1]


def test_tiles_that_the_next_step_cuts_otherwise_are_assembled_beside_their_reader():
    graph = build_workload("llama_layer", 4, "small", optimizer="sgd", tiling="eindecomp", **TINY["llama_layer"])
    batches = repeat_graph(graph, "cpu:4", 2, 2)
    assert len(batches.joins)
    assignment = batches.assignment([random_assignment(graph, 4, 1)])
    for b, join, reader in batches.joins.tolist():
        assert b == 1
        assert batches.graph.kernel[join].op == "assemble"
        assert assignment.device[join] == assignment.device[reader]
    weights = {kernel.params["tensor"] for v, kernel in enumerate(graph.kernel) if graph.is_input[v]}
    inputs = {batches.graph.kernel[v].params["tensor"] for v in np.flatnonzero(batches.graph.is_input).tolist()
              if batches.vertex[1].tolist().count(v)}
    assert inputs == weights & {"x", "cos", "sin", "mask", "target"}  # the second step takes weights from the first
