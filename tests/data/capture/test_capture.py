"""Captured functions compute what the functions do: outputs and updated variables, grouped and not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from data.capture import capture
from runtime.models.captured import original_function
from tests.captured_models import MODELS, Spec, close, draw, run_pieces
from tests.crossed import crossed


@pytest.mark.parametrize(*crossed(name=MODELS, grouping=[False, True]))
def test_pieces_compute_what_the_function_computes(name, grouping, tmp_path):
    tf.random.set_seed(1)
    function, inputs = MODELS[name]()
    graph = capture(function, inputs, model_folder=tmp_path / "model", grouping=grouping)
    for seed in range(3):
        feeds = draw(graph, seed)
        outputs, updates = original_function(tmp_path / "model")(feeds)
        found = run_pieces(graph, feeds)
        close(found[0], outputs)
        close(found[1], updates)
    live = [x for x in tf.nest.flatten(function(*feeds.values())) if x is not None]  # it may update the variables: last
    for value, expected in zip(outputs.values(), live, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_every_operation_that_computes_is_a_vertex(tmp_path):
    function, inputs = MODELS["dense"]()
    graph = capture(function, inputs, model_folder=tmp_path / "model", grouping=False)
    work = graph.work_vertices.tolist()
    assert [graph.kinds[v] for v in work] == ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]
    assert graph.flops[work].tolist() == [2 * 2 * 4 * 8, 16, 16, 2 * 2 * 8 * 3, 6]
    assert graph.output_bytes[work].tolist() == [64, 64, 64, 24, 24]
    assert [graph.names[v].rpartition("/")[2] for v in work] == ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]
    layer = graph.meta_op[work[0]]
    assert layer.startswith("sequential")
    assert [graph.meta_op[v] == layer for v in work] == [True, True, True, False, False]
    assert sorted({graph.kinds[v] for v in np.flatnonzero(graph.is_input)}) == ["input", "weight"]
    assert capture(function, inputs, model_folder=tmp_path / "model").graph_hash == capture(
        function, inputs, model_folder=tmp_path / "again").graph_hash


def test_edges_name_the_output_that_they_carry(tmp_path):
    graph = capture(*MODELS["several_outputs"](), model_folder=tmp_path / "model", grouping=False)
    split = graph.kinds.index("Split")
    assert np.diff(graph.tensor_ptr)[split] == 3
    assert sorted(set(graph.edge_output[graph.sources == split].tolist())) == [0, 1, 2]
    assert {x["name"]: x["output"] for x in graph.attributes["captured"]["outputs"]}["top/indices"] == 1


def test_a_variable_is_read_after_its_update(tmp_path):
    graph = capture(*MODELS["nested"](), model_folder=tmp_path / "model", grouping=False)
    assert [x["variable"] for x in graph.attributes["captured"]["updates"]] == ["count"]
    updates = [v for v in graph.work_vertices if graph.kinds[v].startswith("Assign")]
    assert len(updates) == 3
    assert len({int(graph.colocate[v]) for v in updates}) == 1
    assert graph.colocate[updates[0]] >= 0


def test_a_variable_of_open_shape_has_the_shape_of_its_value(tmp_path):
    scale = tf.Variable([1.0, 2.0, 3.0], shape=tf.TensorShape(None), name="scale")
    weight = tf.Variable(np.ones((3, 2), np.float32), shape=tf.TensorShape([None, 2]), name="weight")

    @tf.function
    def function(x):
        scale.assign_add(tf.ones([3]))
        y = (x * scale + tf.cast(tf.size(scale), tf.float32)) @ weight
        scale.assign(x[0])
        return y + tf.reduce_sum(scale)

    graph = capture(function, Spec([4, 3]), model_folder=tmp_path / "model", grouping=False)
    feeds = draw(graph, 0)
    found, updated = run_pieces(graph, feeds)
    close(found, {"output": function(*feeds.values()).numpy()})
    close(updated, {"scale": scale.numpy()})


@pytest.mark.parametrize("first_axis_is_time", [False, True])
def test_operations_that_only_check_or_make_room_are_taken(first_axis_is_time, tmp_path):
    """CheckNumerics and Empty are stateful by name alone; a check runs though nobody takes its output."""
    def function(logits, labels):
        tf.debugging.check_numerics(logits, "logits")
        return tf.nn.ctc_loss(labels, tf.debugging.assert_all_finite(logits * 2.0, "doubled"), [3, 3], [4, 4],
                              logits_time_major=first_axis_is_time, blank_index=0)

    shape = (4, 2, 5) if first_axis_is_time else (2, 4, 5)
    graph = capture(function, (Spec(shape), Spec([2, 3], tf.int32)), model_folder=tmp_path / "model")
    feeds = {x["name"]: value for x, value in zip(graph.attributes["captured"]["inputs"], (
        np.random.default_rng(0).normal(size=shape).astype(np.float32), np.array([[1, 2, 1], [2, 1, 3]], np.int32)), strict=True)}
    close(run_pieces(graph, feeds)[0], {"output": function(*map(tf.constant, feeds.values())).numpy()})
    with pytest.raises(tf.errors.InvalidArgumentError, match="logits"):
        run_pieces(graph, feeds | {next(iter(feeds)): np.full(shape, np.nan, np.float32)})


def test_sampled_losses_draw_in_order(tmp_path):
    def function(x, y):
        return tf.nn.sampled_softmax_loss(tf.ones([100, 8]), tf.zeros([100]), y, x, 5, 100)

    graph = capture(function, (Spec([4, 8]), Spec([4, 1], tf.int64)), model_folder=tmp_path / "model")
    assert graph.attributes["captured"]["in_order"]


@pytest.mark.parametrize(("function", "seeded"), [
    (lambda x: x * tf.random.normal([2], seed=7), True),
    (lambda x: x + tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32), False),
    (lambda x: tf.random.stateless_normal([2], [1, 2]) - x, False),
    (lambda x: tf.cond(x[0] > 0, lambda: x + tf.random.normal([2], seed=3), lambda: x), True)])
def test_what_goes_on_with_a_seeds_numbers_is_told(tmp_path, function, seeded):
    graph = capture(tf.function(function), Spec([2]), model_folder=tmp_path / "model")
    assert any(kernel is not None and kernel.params.get("seeded", False) for kernel in graph.kernel) == seeded


def test_what_is_changed_where_it_lies_stays_with_all_who_look_at_it(tmp_path):
    @tf.function
    def function(x):
        room = tf.raw_ops.DeepCopy(x=x)
        changed = tf.raw_ops.InplaceAdd(x=room, i=[1], v=x[:1])
        return changed * 2.0, x

    graph = capture(function, Spec([3, 2]), model_folder=tmp_path / "model", grouping=False)
    assert len([v for v in graph.work_vertices if {"DeepCopy", "InplaceAdd"} & set(graph.kinds[v].split())]) == 1
    feeds = draw(graph, 0)
    close(run_pieces(graph, feeds)[0], dict(zip(("0", "1"), (x.numpy() for x in function(*feeds.values())), strict=True)))


def test_weights_are_not_in_the_graph_nor_in_the_function(tmp_path):
    weight = tf.Variable(tf.ones([400, 400]), name="weight")
    capture(lambda x: x @ weight, Spec([1, 400]), model_folder=tmp_path / "model")
    assert (tmp_path / "model" / "function.pb").stat().st_size < 2000
    assert json.loads((tmp_path / "model" / "meta.json").read_text())["variables"]["weight"]["shape"] == [400, 400]


def test_stateful_random_numbers_keep_their_order(tmp_path):
    graph = capture(lambda x: (x + tf.random.normal([2]), tf.random.uniform([2])), Spec([2]), model_folder=tmp_path / "model",
                    grouping=False)
    drawing = [v for v in graph.work_vertices.tolist() if graph.kinds[v].startswith("Random")]
    assert len({int(graph.colocate[v]) for v in drawing}) == 1
    joined = [e for e in range(graph.num_edges) if graph.sources[e] == drawing[0] and graph.targets[e] == drawing[1]]
    assert graph.edge_bytes[joined].tolist() == [0.0]


def test_what_is_constant_is_folded(tmp_path):
    def function(x):
        rows = tf.shape(x)[0]
        return tf.reshape(x, [rows * 2, -1]) * tf.sqrt(tf.cast(rows, tf.float32))

    graph = capture(function, Spec([4, 6]), model_folder=tmp_path / "model", grouping=False)
    assert [graph.kinds[v] for v in graph.work_vertices] == ["Reshape", "Mul"]


def test_example_inputs_in_structures(tmp_path):
    def function(pair, scale):
        return pair["a"] @ pair["b"][0] * scale

    a = np.ones((2, 3), np.float32)
    graph = capture(function, ({"a": a, "b": [a.T]}, 2.0), model_folder=tmp_path / "model")
    assert [x["shape"] for x in graph.attributes["captured"]["inputs"]] == [[2, 3], [3, 2], []]


def test_a_shape_that_a_loop_hides_is_found(tmp_path):
    @tf.function(input_signature=[Spec([None, 3])])
    def function(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + 1.0), (0, x),
                             shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 3])))[1]

    module = tf.Module()
    module.function = function
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=function.get_concrete_function())
    loaded = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    graph = capture(loaded, [Spec([5, 3])], model_folder=tmp_path / "model")
    assert graph.output_bytes[graph.work_vertices].tolist() == [60.0]


def test_a_model_of_a_real_size(tmp_path):
    model = tf_keras.applications.MobileNetV2(weights=None, input_shape=(64, 64, 3), classes=10)
    graph = capture(model, Spec([1, 64, 64, 3]), model_folder=tmp_path / "model")
    assert len(graph.work_vertices) < 100
    feeds = draw(graph, 0)
    found, _ = run_pieces(graph, feeds)
    np.testing.assert_allclose(found["output"], model(feeds["inputs"]), rtol=1e-5, atol=1e-6)
