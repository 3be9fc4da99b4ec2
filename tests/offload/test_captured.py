"""Captured models that do not fit: weights are tensors that come from the host, limits hold, outputs are the original's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import doppler_tf
from data import build_workload
from data.capture import capture
from doppler_tf.api.capturing import capture as capture_to
from doppler_tf.api.running import run
from doppler_tf.errors import ConfigError, DeadlockError, TopologyError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.graph.topology import Host, Topology, cpu
from doppler_tf.placement import place, place_batches
from doppler_tf.schedule.any_order import most_bytes
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.trace import peak_bytes
from tests.messages import assert_says, refusal

SIDE, DEPTH = 96, 8
WEIGHT_BYTES = 4 * SIDE * SIDE


def dense():
    """Layers with weights that never change, and a variable that counts what went through."""
    weights = [tf.Variable(np.random.default_rng(i).normal(size=(SIDE, SIDE)).astype(np.float32) / 8) for i in range(DEPTH)]
    total = tf.Variable(0.0)

    @tf.function
    def layers(x):
        for weight in weights:
            x = tf.tanh(x @ weight) + x
        return {"y": x, "total": total.assign_add(tf.reduce_sum(x))}
    return layers


def features():
    """Layers of which each hands its output to the next, and out."""
    weights = [tf.Variable(np.random.default_rng(i).normal(size=(SIDE, SIDE)).astype(np.float32) / 8) for i in range(DEPTH)]

    @tf.function
    def layers(x):
        found = []
        for weight in weights:
            x = tf.tanh(x @ weight)
            found.append(x)
        return found
    return layers


def rows(seed: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(8, SIDE)).astype(np.float32))


def check_within(graph, share: float) -> None:
    """A run at a share of the peak: outputs, trace, and the bytes that the engine counts, those that tensors hold, too."""
    topology = cpu(2)
    costs, free = build_costs(graph, topology), place(graph, topology).assignment
    limit = share * float(peak_bytes(graph, costs, free, Simulator().execute(graph, costs, free)).max())
    short = topology.with_memory(limit)
    planned = place(graph, short)
    assert planned.assignment.offload.loads
    done = run(graph, planned.costs, planned.assignment)
    assert done.figures["outputs_match"]
    assert done.figures["trace_valid"]
    assert done.figures["work_conserving"]
    assert (done.trace.peak_bytes[:-1] <= limit).all()
    assert (done.trace.peak_tensor_bytes[:-1] <= limit).all()


@pytest.mark.parametrize("share", [0.6, 0.4])
def test_frozen_weights_leave_their_devices(share, tmp_path):
    check_within(capture(dense(), rows(0), model_folder=tmp_path / "model", pieces=2, grouping=False), share)


@pytest.mark.parametrize("share", [0.8, 0.4])
def test_results_that_others_take_stay_or_leave_for_the_host(share, tmp_path):
    x = tf.repeat(rows(0), 12, axis=0)  # a layer's output is as large as its weight
    graph = capture(features(), x, model_folder=tmp_path / "model", pieces=1, grouping=False)
    assert np.isin(graph.results, graph.edge_tensor).any()
    check_within(graph, share)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.6, 0.4])
@pytest.mark.parametrize("name", ["resnet50", "inception_v3", "transformer", "llama"])
def test_models_at_shares_of_their_peak(name, share, tmp_path):
    if name == "llama":
        check_within(build_workload("llama_stack", 2, scale="small", layers=2), share)
        return
    from benchmarks import model_zoo as zoo

    makers = {"resnet50": zoo.application(zoo.applications.ResNet50, 64), "inception_v3": zoo.application(zoo.applications.InceptionV3, 96),
              "transformer": lambda folder: zoo.transformer(folder, 4)}
    check_within(capture(makers[name](tmp_path), model_folder=tmp_path / "model", pieces=2), share)


def test_a_model_larger_than_its_devices_is_distributed(tmp_path):
    """Layers are so small that they would join to one vertex, which would not fit."""
    model, again, limit = dense(), dense(), 3 * WEIGHT_BYTES
    with doppler_tf.distribute(model, rows(0), topology="cpu:2", budget_s=0.2, memory_bytes=limit) as placed:
        for seed in range(3):
            expected, found = again(rows(seed)), placed(rows(seed))
            np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found["total"], expected["total"], rtol=1e-4)
        assert (placed.trace.peak_tensor_bytes[:-1] <= limit).all()
        assert placed.assignment.offload.loads
        assert placed.executor == "engine"
        placed.variables = dict.fromkeys(placed.variables, 1.0)
        np.testing.assert_allclose(placed(rows(5))["total"], 1.0 + float(tf.reduce_sum(again(rows(5))["y"])), rtol=1e-4)
        assert "data:image/png;base64," in placed._repr_html_()
        assert_says(refusal(ConfigError, placed.export, tmp_path / "out"), "export: expected an assignment that fits", "memory_bytes")


def test_arrays_that_a_function_closes_over_leave_their_devices():
    arrays = [np.random.default_rng(i).normal(size=(SIDE, SIDE)).astype(np.float32) / 8 for i in range(DEPTH)]

    def layers(x):
        for array in arrays:
            x = tf.tanh(x @ array) + x
        return x, arrays[0]

    limit = 3 * WEIGHT_BYTES
    with doppler_tf.distribute(layers, rows(0), topology="cpu:2", budget_s=0.2, memory_bytes=limit) as placed:
        (found, kept), (expected, first) = placed(rows(1)), layers(rows(1))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(kept, first)
        assert placed.assignment.offload.loads
        assert (placed.trace.peak_tensor_bytes[:-1] <= limit).all()


@pytest.mark.thorough  # tests/cli/test_distribution.py has small ones
def test_batches_in_flight_of_a_model_larger_than_its_devices():
    """Two at once, the last one alone; each takes the count of the one before."""
    again, limit, loads = dense(), 3 * WEIGHT_BYTES, []
    with doppler_tf.distribute(dense(), rows(0), topology="cpu:2", budget_s=None, in_flight=2, memory_bytes=limit) as placed:
        for seed, found in enumerate(placed.map(rows(seed) for seed in range(5))):
            expected = again(rows(seed))
            np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found["total"], expected["total"], rtol=1e-4)
            assert (placed.trace.peak_tensor_bytes[:-1] <= limit).all()
            loads.append(placed.trace.peak_tensor_bytes[-1])
        assert len(set(loads[:4])) == 1
        assert loads[4] < loads[0]
        assert placed.assignment.offload.loads


def test_limits_that_leave_room_on_one_device_need_no_host():
    """All layers fit on the second device alone, so TensorFlow, which would take the first, is no choice."""
    limits = [WEIGHT_BYTES * 3, WEIGHT_BYTES * 12]
    with doppler_tf.distribute(dense(), rows(0), topology="cpu:2", budget_s=0.2, memory_bytes=limits, pieces=1) as placed:
        np.testing.assert_allclose(placed(rows(1))["y"], dense()(rows(1))["y"], rtol=1e-4, atol=1e-5)
        assert placed.assignment.offload is None
        assert not [way for way in placed.ways if "TensorFlow alone" in way]
        assert (most_bytes(placed.graph, placed.costs, placed.assignment.device) <= limits).all()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_limits_that_never_bind_cost_nothing(in_flight):
    """The ways are those without limits, also for the calls of one run together."""
    with doppler_tf.distribute(dense(), rows(0), topology="cpu:2", budget_s=0.2, memory_bytes=1e6, in_flight=in_flight) as placed:
        assert "TensorFlow alone, plain" in placed.ways
        again = dense()
        for seed, found in enumerate(placed.map(rows(seed) for seed in range(3))):
            np.testing.assert_allclose(found["total"], again(rows(seed))["total"], rtol=1e-4)


def test_where_only_some_orders_fit_the_engine_keeps_the_limits():
    """Branches that TensorFlow may run all at once, and then hold a byte more than there is."""
    weights = [tf.Variable(np.random.default_rng(i).normal(size=(SIDE, SIDE)).astype(np.float32) / 8) for i in range(DEPTH)]

    def branches(x):
        return tf.add_n([tf.reduce_sum(tf.matmul(tf.nn.softmax(x @ weight), weight), 0) for weight in weights])

    x = tf.repeat(rows(0), 144, axis=0)
    for more, bound in ((0, True), (8 * SIDE * 4 + WEIGHT_BYTES, False)):
        limit = int(x.shape[0]) * SIDE * 4 * (1 + DEPTH) + WEIGHT_BYTES * DEPTH - 1 + more
        with doppler_tf.distribute(branches, x, topology="cpu:1", budget_s=0.2, memory_bytes=limit, pieces=1) as placed:
            np.testing.assert_allclose(placed(x), branches(x), rtol=1e-4, atol=1e-4)
            assert bound == (not [way for way in placed.ways if "TensorFlow alone" in way])
            if bound:
                assert placed.executor == "engine"
                assert placed.trace.peak_tensor_bytes[0] <= limit


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"memory_bytes": 1e6, "executor": "TensorFlow alone"}, ConfigError, "memory_bytes: expected no executor but engine beside it"),
    ({"memory_bytes": -1}, TopologyError, "memory_bytes: expected a finite number > 0, or 2 of them, one a device, got -1"),
    ({"memory_bytes": 10**400}, TopologyError, "memory_bytes: expected a finite number > 0, or 2 of them, one a device, got 1000"),
    ({"memory_bytes": [1e6]}, TopologyError, "memory_bytes: expected a finite number > 0, or 2 of them"),
    ({"memory_bytes": WEIGHT_BYTES // 2, "pieces": 1}, DeadlockError, "no device has more than"),
    ({"memory_bytes": WEIGHT_BYTES // 2, "pieces": 1}, DeadlockError, "pieces: 2 may make smaller ones"),
])
def test_limits_that_cannot_be_kept_are_refused(options, error, words):
    assert_says(refusal(error, doppler_tf.distribute, dense(), rows(0), topology="cpu:2", budget_s=0.1, **options), words)


def test_weights_become_operands(tmp_path):
    graph = capture_to(dense(), tmp_path / "frozen.json", rows(0)).graph
    streamed = capture_to(dense(), tmp_path / "streamed.json", rows(0), variables="stream").graph
    weights = {v for v, kind in enumerate(graph.kinds) if kind == "weight" and graph.output_bytes[v] == WEIGHT_BYTES}
    assert len(weights) == DEPTH
    assert not weights & graph.taken_inputs
    assert weights <= streamed.taken_inputs
    assert weights <= with_weights_as_operands(graph).taken_inputs
    done = run(streamed, "cpu:2", place(streamed, "cpu:2").assignment)
    assert done.figures["outputs_match"]


def test_a_load_takes_time_from_its_device():
    """If its host says so. What the links between devices take stays."""
    host = Host(2.0, destination_share=1.0)
    topology = Topology.from_json({"devices": [{"name": f"d{d}"} for d in range(2)], "links": {"bandwidth_bytes_per_s": 10}})
    wide = replace(topology, host=host).with_host
    assert wide.destination_share.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert replace(topology, host=Host(2.0)).with_host.destination_share is None
    assert Topology.from_json(replace(topology, host=host).to_json()).host == host


@pytest.mark.thorough
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_training_step_keeps_its_state_on_the_host(in_flight, tmp_path):
    """Weights and Adam's slots of 15.8 MB on two devices of 9 MB beside activations and gradients: losses are those of the original."""
    from benchmarks import model_zoo as zoo

    step, limit, rng = zoo.adam_step(tmp_path).function, 9e6, np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((64, 256), (64, 1)))
    with doppler_tf.distribute(step, (x, y), topology="cpu:2", budget_s=1, memory_bytes=limit, in_flight=in_flight) as placed:
        found = [float(loss) for loss in placed.map([(x, y)] * 5)]
        assert placed.assignment.offload.loads
        assert (placed.trace.peak_tensor_bytes[:-1] <= limit).all()
    np.testing.assert_allclose(found, [float(step(x, y)) for _ in range(5)], rtol=1e-4)


@pytest.mark.parametrize("in_flight", [None, 2])
def test_plans_are_chosen_by_runs(tmp_path, in_flight):
    """The weights do not fit, so that a plan is all that can be chosen; outputs are the original's, and limits hold."""
    graph = capture(dense(), rows(0), model_folder=tmp_path / "model", pieces=2, grouping=False)
    topology = cpu(2).with_memory(2.5 * WEIGHT_BYTES)
    batches = None if in_flight is None else repeat_graph(graph, topology, in_flight, in_flight)
    placed = place(graph, topology) if batches is None else place_batches(batches)
    assert placed.assignment.offload.loads
    chosen = doppler_tf.measure(placed, 6, batches=batches)
    assert chosen.assignment.offload.loads
    assert chosen.figures["measured"][chosen.figures["chosen"]]["runs"] > 0
    assert chosen.makespan_s == simulate(placed.graph, placed.costs, chosen.assignment).makespan_s
    write_assignment(tmp_path / "a.json", placed.graph, placed.costs, chosen.assignment, chosen.makespan_s, in_flight)
    done = run(graph, topology, tmp_path / "a.json", repeat=in_flight, in_flight=in_flight)
    assert done.figures["outputs_match"]
    assert (done.trace.peak_bytes[:-1] <= 2.5 * WEIGHT_BYTES).all()
