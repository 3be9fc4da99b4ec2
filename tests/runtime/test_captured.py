"""Pieces of captured models as functions: shared, executed by name on any device, and careful with the values they are given."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from data.capture import capture
from doppler_tf.errors import FormatError, GraphError
from runtime.calls import execute_on
from runtime.devices import make_known
from runtime.graph_calls import piece_call
from runtime.models.captured import Work, captured_model, original_function, piece_function, piece_key
from tests.captured_models import MODELS, Spec, close, draw, run_pieces


def pieces(graph):
    """Model, and what each work vertex runs."""
    works = [Work.of(graph.kernel[v].params) for v in graph.work_vertices.tolist()]
    return captured_model(graph.attributes["captured"]["model"]), works


@pytest.fixture
def updated(tmp_path):
    """A model of one piece that updates a variable."""
    weight = tf.Variable(tf.ones([64]), name="weight")
    graph = capture(lambda x: weight.assign_add(x) * 2.0, Spec([64]), model_folder=tmp_path / "model")
    model, [piece] = pieces(graph)
    return model, piece


def test_equal_pieces_share_a_function(tmp_path):
    weights = [tf.Variable(tf.ones([4, 4])) for _ in range(3)]

    def function(x):
        for weight in weights:
            x = tf.tanh(x @ weight)
        return x @ tf.transpose(weights[0])

    graph = capture(function, Spec([4, 4]), model_folder=tmp_path / "model", grouping=False, freeze_variables=False)
    model, found = pieces(graph)
    keys = [piece_key(model, piece) for piece in found]
    kinds = [graph.kinds[v] for v in graph.work_vertices]
    assert sorted(kinds) == ["MatMul"] * 4 + ["Tanh"] * 3 + ["Transpose"]
    assert len(set(keys)) == 3
    products = [piece_call(model, piece) for kind, piece in zip(kinds, found, strict=True) if kind == "MatMul"]
    assert all(call is products[0] for call in products)


def test_an_update_never_changes_what_it_is_given(updated):
    model, piece = updated
    assert piece.inputs == ("variable:weight", "x:0")
    function = piece_function(model, piece)
    value, x = tf.ones([64]), tf.fill([64], 2.0)
    for _ in range(3):
        made = dict(zip(piece.outputs, function(value, x), strict=True))
        np.testing.assert_array_equal(made["variable:weight"], np.full(64, 3.0))
    np.testing.assert_array_equal(value, np.ones(64))
    np.testing.assert_array_equal(x, np.full(64, 2.0))


def test_executions_at_one_time_do_not_share_a_variable(updated):
    model, piece = updated
    function = piece_function(model, piece)

    def many(k):
        return {float(function(tf.fill([64], float(k)), tf.ones([64]))[piece.outputs.index("variable:weight")][0]) for _ in range(50)}

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(many, range(4))) == [{1.0}, {2.0}, {3.0}, {4.0}]


def test_a_device_executes_a_piece_by_name(tmp_path, four_devices):
    graph = capture(*MODELS["dense"](), model_folder=tmp_path / "model")
    model, [piece] = pieces(graph)
    function = piece_function(model, piece)
    with tf.device(four_devices[2]):
        tensors = [tf.ones(model.spec(value).shape) for value in piece.inputs]
    make_known(function, four_devices[2])
    (made,) = execute_on(four_devices[2], function.name, tensors)
    assert made.device.endswith("CPU:2") or "GPU" in made.device
    np.testing.assert_allclose(made, function(*tensors)[0], rtol=1e-6)


def test_a_piece_without_outputs_gives_a_number(tmp_path):
    @tf.function
    def checked(x):
        tf.debugging.assert_less(x, 100.0)
        return x + 1.0

    graph = capture(checked, Spec([2]), model_folder=tmp_path / "model", grouping=False)
    model, found = pieces(graph)
    (check,) = (piece for piece in found if not piece.outputs)
    results = piece_function(model, check)(*(tf.cast(tf.ones(model.spec(v).shape), model.spec(v).dtype) for v in check.inputs))
    assert len(results) == 1


def test_the_original_starts_from_the_folders_weights_each_time(tmp_path):
    weight = tf.Variable(tf.ones([2]), name="weight")
    capture(lambda x: weight.assign_add(x), Spec([2]), model_folder=tmp_path / "model")
    weight.assign([7.0, 7.0])
    original = original_function(tmp_path / "model")
    for _ in range(2):
        outputs, updates = original({"x": np.ones(2, np.float32)})
        close(outputs, {"output": np.full(2, 2.0)})
        close(updates, {"weight": np.full(2, 2.0)})


def test_a_folder_is_read_again_when_it_has_changed(tmp_path):
    capture(lambda x: x + 1.0, Spec([2]), model_folder=tmp_path / "model")
    first = captured_model(tmp_path / "model")
    assert captured_model(tmp_path / "model") is first
    capture(lambda x: x + 2.0, Spec([2]), model_folder=tmp_path / "model")
    assert captured_model(tmp_path / "model") is not first


def test_what_does_not_belong_together(updated, tmp_path):
    model, piece = updated
    for changed in {"nodes": ("absent",)}, {"inputs": ("absent:0",)}, {"outputs": ("absent:0",)}:
        with pytest.raises(GraphError, match="capture the model again"):
            piece_function(model, piece._replace(**changed))
    with pytest.raises(FormatError, match="capture the model again"):
        captured_model(tmp_path / "nowhere")
    shutil.copytree(model.folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "function.pb").write_bytes(b"no protocol buffer")
    with pytest.raises(FormatError, match=r"function\.pb"):
        captured_model(tmp_path / "damaged")
    (tmp_path / "damaged" / "weights.index").unlink()
    shutil.copy(model.folder / "function.pb", tmp_path / "damaged")
    with pytest.raises(FormatError, match="weight"):
        captured_model(tmp_path / "damaged").weight("weight")


def test_a_convolution_in_groups_runs_with_its_bias(tmp_path):
    """TensorFlow alone may fuse the two and then refuse them, as its fused kernel has no groups."""
    bias, filters = tf.Variable([1.0, 2.0, 3.0, 4.0]), tf.Variable(tf.random.stateless_normal([3, 3, 2, 4], [1, 2]))

    @tf.function
    def compute(x):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, filters, 1, "SAME"), bias))

    graph = capture(compute, Spec([2, 5, 5, 4]), model_folder=tmp_path / "model")
    feeds = draw(graph, 0)
    outputs, _ = original_function(tmp_path / "model")(feeds)
    close(run_pieces(graph, feeds)[0], outputs)
    np.testing.assert_allclose(outputs["output"], compute.python_function(feeds["x"]), rtol=1e-5, atol=1e-5)


def test_an_addition_of_another_shape_is_refused_as_tensorflow_does(tmp_path):
    """Of a variable whose shape may change: a sum of tensors would broadcast what is added."""
    weight = tf.Variable(tf.ones([4]), shape=[None], name="weight")
    graph = capture(lambda x: weight.assign_add(x) * 2.0, Spec([1]), model_folder=tmp_path / "model")
    model, [piece] = pieces(graph)
    with pytest.raises(GraphError, match="must be equal, but are 4 and 1"):
        piece_function(model, piece)


def test_a_variable_may_be_a_single_text(tmp_path):
    text = tf.Variable("a", name="text")

    def longer(x):
        text.assign(tf.strings.join([text, "b"]))
        return x * tf.cast(tf.strings.length(text), tf.float32)

    capture(tf.function(longer), Spec([3]), model_folder=tmp_path / "model")
    outputs, updates = original_function(tmp_path / "model")({"x": np.ones(3, np.float32)})
    assert captured_model(tmp_path / "model").weight("text") == np.array(b"a", object)
    np.testing.assert_array_equal(list(outputs.values()), [np.full(3, 2.0)])
    assert updates == {"text": b"ab"}
