"""Merged calls run: outputs, updates, random numbers and assertions are those of the calls apart."""

from __future__ import annotations

import gc
from dataclasses import replace
from time import sleep

import numpy as np
import pytest
import tensorflow as tf

from data import assemble_outputs, build_workload, input_tiles, workload_program
from data.capture import capture
from doppler_tf.errors import CancelledError, ExecutionError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import MERGED
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import Assignment, assignment_from_devices
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.validation import validate_trace
from runtime import MergedExecutor, TensorFlowBackend, TensorFlowExecutor, calls, prepare_devices
from runtime.calls import OPERATIONS, XLA, CapturedCall
from runtime.devices import with_all_cores
from runtime.models.alone import modes
from runtime.models.captured import captured_model
from runtime.models.captured_program import CapturedProgram
from runtime.tensorflow_graph import TensorFlowGraph
from tests.captured_models import MODELS, Spec
from tests.crossed import crossed
from tests.data.test_workloads import TINY


def timed(graph, seed):
    """The graph with drawn times, so that merging has something to weigh."""
    exec_s = np.random.default_rng(seed).integers(0, 4, graph.num_vertices).astype(float)
    return replace(graph, exec_s=np.where(graph.is_input, 0.0, exec_s)[:, None])


def placed(graph, devices, seed):
    """Costs, and an assignment to random devices; what has to be together is."""
    costs, rng = build_costs(graph, cpu(devices)), np.random.default_rng(seed)
    group = rng.integers(0, devices, len(graph.groups) + 1)
    device = [int(group[graph.colocate[v]]) if graph.colocate[v] >= 0 else int(rng.integers(devices)) for v in range(graph.num_vertices)]
    return costs, assignment_from_devices(graph, costs, device)


# Models whose loops, branches or fused operations take variables themselves and not their values: XLA does not compile these pieces.
UPDATED_INSIDE = ("loop", "branch", "legacy_adam")


def run(graph, costs, assignment, inputs, fetch, build=OPERATIONS):
    with TensorFlowExecutor(inputs, fetch, warmup=False, build=build) as executor:
        trace = executor.execute(graph, costs, assignment)
        assert validate_trace(graph, costs, assignment, trace.log).work_conserving
        return executor.outputs


def merged_outputs(graph, devices, seed, inputs, fetch=()):
    """What a run of merged calls gives, by tensor of `graph`, and how many vertices became one."""
    costs, assignment = placed(graph, devices, seed)
    merged = merge_calls(graph, costs, assignment, fetch)
    vertex, tensor = merged.vertex.tolist(), merged.tensor.tolist()
    given = {vertex[v]: value for v, value in inputs.items()}
    found = run(merged.graph, merged.costs, merged.assignment, given, [tensor[t] for t in fetch])
    return {t: found[tensor[t]] for t in range(graph.num_tensors) if tensor[t] in found}, graph.num_vertices - merged.graph.num_vertices


@pytest.mark.parametrize(*crossed(name=[name for name in MODELS if name != "random_state"], devices=[1, 2, 4]))
def test_captured_models(tmp_path, monkeypatch, name, devices):
    if devices > 1:  # all weights are tensors that kernels keep, as are large ones
        monkeypatch.setattr(calls, "_SMALL_BYTES", -1)
    graph = timed(capture(*MODELS[name](), model_folder=tmp_path / "model", grouping=False), seed=devices)
    program = CapturedProgram(graph, seed=1)
    found, joined = merged_outputs(graph, devices, 2, program.inputs, program.fetch)
    assert program.relative_error(found) <= 1e-5
    assert joined or len(graph.work_vertices) == 1 or devices > 1
    costs, assignment = placed(graph, devices, 2)
    merged = merge_calls(graph, costs, assignment)  # of itself it keeps results
    program = CapturedProgram(merged.graph, seed=1)
    assert program.relative_error(run(merged.graph, merged.costs, merged.assignment, program.inputs, program.fetch)) <= 1e-5


def test_large_weights_are_shared_by_all_calls(tmp_path):
    """On the engine, apart and merged, and on TensorFlow's executor."""
    weight = tf.Variable(tf.random.stateless_normal([160, 160], (0, 1)), name="weight")
    source = (lambda x: (x @ weight, tf.nn.relu(x) @ weight)), Spec([8, 160])
    graph = timed(capture(*source, model_folder=tmp_path / "model", grouping=False), 1)
    program, (costs, assignment) = CapturedProgram(graph, seed=1), placed(graph, 2, 3)
    merged, model = merge_calls(graph, costs, assignment), captured_model(tmp_path / "model")
    program_merged = CapturedProgram(merged.graph, seed=1)
    for each, its, (its_costs, its_assignment) in ((graph, program, (costs, assignment)),
                                                   (merged.graph, program_merged, (merged.costs, merged.assignment))):
        found = run(each, its_costs, its_assignment, its.inputs, its.fetch)
        assert its.relative_error(found) <= 1e-6
    theirs = TensorFlowGraph(graph, assignment.device, program.inputs, program.fetch, prepare_devices(2))
    assert program.relative_error(theirs.run()) <= 1e-6
    (held,) = model.resident.values()
    assert len(held) == 2
    assert len({np.asarray(value).ctypes.data for value in held.values()}) == 1  # logical CPUs share the buffer
    model.forget_calls()
    assert program.relative_error(theirs.run()) <= 1e-6  # what has them keeps them
    del theirs
    gc.collect()
    assert not held


@pytest.mark.parametrize("slower", [OPERATIONS, XLA])
def test_our_own_kernels_are_built_in_two_ways_and_the_faster_is_kept(monkeypatch, slower):
    graph = timed(build_workload("ffnn", 2, scale="small", **TINY["ffnn"]), 1)
    inputs = input_tiles(graph, workload_program(graph.attributes["workload"]).draw_inputs(0))
    costs, assignment = placed(graph, 2, 3)
    called, compiled, found = [], {}, {}
    call = CapturedCall.__call__

    def noted(self, operands, device):
        build = XLA if self._compiled else OPERATIONS
        called.append(build)
        if build == slower:
            sleep(0.02)
        result = call(self, operands, device)
        compiled[build] = self._taken[device][-1].function_def.attr["_XlaMustCompile"].b
        return result

    monkeypatch.setattr(CapturedCall, "__call__", noted)
    with MergedExecutor(inputs) as executor:
        for _ in range(2):
            called.clear()
            trace, merged = executor.execute(graph, costs, assignment), executor.merged()
            assert validate_trace(merged.graph, merged.costs, merged.assignment, trace.log).work_conserving
            found[len(found)] = executor.outputs
    assert compiled == {OPERATIONS: False, XLA: True}
    assert set(called) == {OPERATIONS, XLA} - {slower}
    for key, value in found[0].items():
        np.testing.assert_allclose(found[1][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_xla_compiles_has_all_cores_where_one_device_computes(monkeypatch, count):
    """On its own device it has one core of two, and TensorFlow alone, compiled by XLA, would be faster."""
    graph = timed(build_workload("ffnn", 2, scale="small", **TINY["ffnn"]), 1)
    inputs = input_tiles(graph, workload_program(graph.attributes["workload"]).draw_inputs(0))
    costs, assignment = placed(graph, 2, 3)
    if count == 1:
        assignment = Assignment(np.where(graph.is_input, -1, 1).astype(np.int32))
    names, call = set(), CapturedCall.__call__

    def noted(self, operands, device):
        names.add((self._compiled, device))
        return call(self, operands, device)

    monkeypatch.setattr(CapturedCall, "__call__", noted)
    found, devices = {}, prepare_devices(2)
    with MergedExecutor(inputs) as executor:
        executor.execute(graph, costs, assignment)
        merged = executor.merged()
        given = {int(merged.vertex[v]): value for v, value in inputs.items()}
        for build in (OPERATIONS, XLA):
            names.clear()
            found[build] = run(merged.graph, merged.costs, merged.assignment, given, (), build)
            lent = build == XLA and count == 1
            assert names == {(build == XLA, with_all_cores(each) if lent else each) for each in (devices if count == 2 else devices[1:])}
    for key, value in found[OPERATIONS].items():
        np.testing.assert_allclose(found[XLA][key], value, rtol=1e-5, atol=1e-6)


@pytest.fixture
def trained():
    """FFNN, its inputs and costs, and two assignments."""
    graph = timed(build_workload("ffnn", 2, scale="small", **TINY["ffnn"]), 1)
    costs, first = placed(graph, 2, 3)
    return graph, input_tiles(graph, workload_program(graph.attributes["workload"]).draw_inputs(0)), costs, first, placed(graph, 2, 4)[1]


def test_where_both_builds_are_tried_a_failure_leaves_no_outputs_of_earlier_runs(monkeypatch, trained):
    graph, inputs, costs, first, second = trained
    with MergedExecutor(inputs) as executor:
        executor.execute(graph, costs, first)
        before, call, calls = executor.outputs, CapturedCall.__call__, []

        def fails_from_the_tenth(self, operands, device):
            calls.append(device)
            if len(calls) >= 10:
                raise tf.errors.InternalError(None, None, "broken")
            return call(self, operands, device)

        monkeypatch.setattr(CapturedCall, "__call__", fails_from_the_tenth)
        with pytest.raises(ExecutionError, match="broken"):
            executor.execute(graph, costs, second)
        assert executor.outputs == {}
        assert executor.merged() is None
        monkeypatch.undo()
        executor.execute(graph, costs, second)
        for key, value in before.items():
            np.testing.assert_allclose(executor.outputs[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("between", range(8))
def test_a_cancel_between_the_runs_with_both_builds_ends_them(monkeypatch, trained, between):
    graph, inputs, costs, first, _ = trained
    with MergedExecutor(inputs) as executor:
        use, used = TensorFlowBackend.use, []

        def cancels(self, build):
            if len(used) == between:
                executor.cancel()
            used.append(build)
            use(self, build)

        monkeypatch.setattr(TensorFlowBackend, "use", cancels)
        with pytest.raises(CancelledError):
            executor.execute(graph, costs, first)
        assert len(used) == between + 1
        executor.execute(graph, costs, first)


def test_both_builds_compute_the_same():
    graph = timed(build_workload("ffnn", 2, scale="small", **TINY["ffnn"]), 1)
    inputs = input_tiles(graph, workload_program(graph.attributes["workload"]).draw_inputs(0))
    (costs, assignment), seen = placed(graph, 2, 3), []
    merged = merge_calls(graph, costs, assignment)
    given = {int(merged.vertex[v]): value for v, value in inputs.items()}
    for build in (OPERATIONS, XLA):
        seen.append(run(merged.graph, merged.costs, merged.assignment, given, (), build))
    assert seen[0].keys() == seen[1].keys()
    for key, value in seen[0].items():
        np.testing.assert_allclose(seen[1][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in UPDATED_INSIDE])
def test_what_xla_compiles(tmp_path, name):
    """In larger calls, the models that XLA may compile, a loop and updates of variables among them."""
    graph = timed(capture(*MODELS[name](), model_folder=tmp_path / "model", grouping=False), seed=2)
    merged = merge_calls(graph, *placed(graph, 2, 2))
    if XLA in modes(tmp_path / "model"):
        program = CapturedProgram(merged.graph, seed=1)
        found = run(merged.graph, merged.costs, merged.assignment, program.inputs, program.fetch, XLA)
        assert program.relative_error(found) <= 1e-5


@pytest.mark.parametrize(*crossed(name=["chainmm", "llama_layer"], devices=[1, 3]))
def test_einsum_workloads(name, devices):
    graph = build_workload(name, 2, "small", **TINY[name])
    program = workload_program(graph.attributes["workload"])
    inputs, (costs, assignment) = input_tiles(graph, program.draw_inputs(0)), placed(graph, devices, 5)
    apart = run(graph, costs, assignment, inputs, ())
    found, joined = merged_outputs(graph, devices, 5, inputs)
    assert joined > 0
    assert found.keys() >= apart.keys()
    for key, value in assemble_outputs(graph, apart).items():
        np.testing.assert_allclose(assemble_outputs(graph, found)[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(*crossed(name=["nested", "momentum", "attention"], in_flight=[1, 2]))
def test_batches_in_flight(tmp_path, name, in_flight):
    graph = timed(capture(*MODELS[name](), model_folder=tmp_path / "model", grouping=False), seed=3)
    batches = repeat_graph(graph, cpu(2), in_flight + 1, in_flight)
    program = CapturedProgram(graph, seed=0).repeated(batches, seed=0)
    found, joined = merged_outputs(batches.graph, 2, 4, program.inputs, program.fetch)
    assert joined > 0
    assert program.relative_error(found) <= 1e-5


def test_random_numbers_and_prints_keep_their_order(tmp_path):
    """Updates, assertions and numbers drawn in one merged call, one after another."""
    generator, count = tf.random.Generator.from_seed(3), tf.Variable(0.0)

    @tf.function
    def step(x):
        first = generator.normal([3])
        tf.debugging.assert_less(tf.reduce_sum(x), 1e6)
        count.assign_add(tf.reduce_sum(first))
        second = generator.uniform([3]) + count
        count.assign(count * 2.0 + tf.reduce_sum(second))
        return first, second + x, count.read_value()

    graph = capture(step, Spec([3]), model_folder=tmp_path / "model", grouping=False)
    program = CapturedProgram(timed(graph, 0))
    found, joined = merged_outputs(timed(graph, 0), 1, 0, program.inputs, program.fetch)
    assert joined == len(graph.work_vertices) - 1
    assert program.relative_error(found) <= 1e-6


def test_an_assertion_inside_a_merged_call_fails_the_run(tmp_path):
    @tf.function
    def check(x):
        tf.debugging.assert_less(tf.reduce_sum(x), 0.0, "too large")
        return tf.exp(tf.tanh(x)) @ x

    graph = capture(check, Spec([3, 3]), model_folder=tmp_path / "model", grouping=False)
    costs, assignment = placed(graph, 1, 0)
    merged = merge_calls(graph, costs, assignment)
    assert [kernel.op for kernel in merged.graph.kernel if kernel] == [MERGED]
    with pytest.raises(ExecutionError, match="too large"):
        run(merged.graph, merged.costs, merged.assignment, {0: np.ones((3, 3), np.float32)}, ())


def test_inputs_are_never_changed(tmp_path):
    weight = tf.Variable(tf.ones([64]))

    @tf.function
    def update(x):
        weight.assign_add(x)
        weight.assign(weight * 2.0)
        return weight + x

    graph = capture(update, Spec([64]), model_folder=tmp_path / "model", grouping=False)
    program = CapturedProgram(graph)
    inputs = {v: tf.constant(value) for v, value in program.inputs.items()}
    for _ in range(3):
        found, _ = merged_outputs(graph, 1, 0, inputs, program.fetch)
        assert program.relative_error(found) <= 1e-6
    for v, value in program.inputs.items():
        np.testing.assert_array_equal(inputs[v], value)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_batches_return_variables_as_the_batch_before_left_them(tmp_path, in_flight):
    """Values of variables before their updates, two of which change places, are results."""
    first, second, fixed = (tf.Variable(tf.fill([3], value), name=name) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)))

    @tf.function
    def step(x):
        a, b = first.read_value(), second.read_value()
        first.assign(b)
        second.assign(a + x)
        return a, b, fixed.read_value()

    graph = capture(step, Spec([3]), model_folder=tmp_path / "model", grouping=False)
    batches = repeat_graph(graph, cpu(2), 4, in_flight)
    program = CapturedProgram(graph, seed=0).repeated(batches, seed=0)
    costs, assignment = placed(batches.graph, 2, 1)
    found, _ = merged_outputs(batches.graph, 2, 1, program.inputs, program.fetch)
    for outputs in (run(batches.graph, costs, assignment, program.inputs, program.fetch), found):
        assert program.relative_error(outputs) <= 1e-6
