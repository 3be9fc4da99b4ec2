"""Frozen variables: what becomes of them in the graph, which batch norms go, and that results stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tf_keras import layers

from data.capture import capture
from runtime.models.captured import Work, captured_model, original_function
from tests.captured_models import MODELS, Spec, close, draw, run_pieces
from tests.crossed import crossed

IMAGE = Spec([2, 6, 6, 4])


def drawn(*shape, seed=1, dtype=tf.float32):
    return tf.Variable(tf.cast(tf.random.stateless_normal(shape, [seed, 7]), dtype))


def positive(*shape, seed):
    return tf.Variable(tf.random.stateless_uniform(shape, [seed, 2], 0.5, 2.0))


MOMENTS = {c: (positive(c, seed=1), drawn(c, seed=2), drawn(c, seed=3), positive(c, seed=4)) for c in (4, 6, 8)}


def norm(channels=4, layout="NHWC", training=False, epsilon=0.01):
    scale, offset, mean, variance = MOMENTS[channels]
    if training:
        mean = variance = tf.zeros([0])
    return lambda x: tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=mean, variance=variance, epsilon=epsilon,
                                                 data_format=layout, is_training=training)[0]


def conv(x, filters):
    return tf.nn.conv2d(x, filters, 1, "SAME")


def checked(folder, function, specs, **options):
    """The graph; asserts that its pieces give what the original gives."""
    graph = capture(function, specs, model_folder=folder / "model", **options)
    feeds = draw(graph, 0)
    for found, expected in zip(run_pieces(graph, feeds), original_function(folder / "model")(feeds), strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
            assert np.linalg.norm((found[name] - value).ravel()) <= 1e-5 * np.linalg.norm(value.ravel()), name
    return graph


def operations(graph):
    return Counter(node.op for node in captured_model(graph.attributes["captured"]["model"]).nodes.values())


def norms(graph):
    return sum(count for op, count in operations(graph).items() if "BatchNorm" in op)


def weights(graph):
    """Names of the variables in pieces, once for each piece."""
    return sorted(name for v in graph.work_vertices for _, name in Work.of(graph.kernel[v].params).weights)


CONSTANT = np.random.default_rng(0).normal(size=(3, 3, 4, 4)).astype(np.float32)
F, G, DEPTH, CUBE = (drawn(*shape) for shape in ((3, 3, 4, 4), (3, 3, 2, 4), (3, 3, 4, 2), (2, 2, 2, 4, 4)))
BIAS = drawn(4)


def twice(x):
    y = conv(x, F)
    return norm()(y) + y


def biased_twice(x):
    y = tf.nn.bias_add(conv(x, F), BIAS)
    return norm()(y) + y


def beneath_the_bias(x):
    y = conv(x, F)
    return norm()(tf.nn.bias_add(y, BIAS)) + y


FOLDED = {
    "convolution": lambda x: norm()(conv(x, F)),
    "in groups": lambda x: tf.nn.relu(norm()(conv(x, G))),
    "depthwise": lambda x: norm(8)(tf.nn.depthwise_conv2d(x, DEPTH, [1, 1, 1, 1], "SAME")),
    "3D": lambda x: norm(layout="NDHWC")(tf.nn.conv3d(x[:, None], CUBE, [1] * 5, "SAME")),
    "bias": lambda x: norm()(tf.nn.bias_add(conv(x, F), BIAS)),
    "filters of two": lambda x: norm(epsilon=0.5)(conv(norm()(conv(x, F)), F)) + tf.reduce_sum(F),
    "one norm for two": lambda x: norm()(conv(x, F)) * norm()(conv(x, F + 1.0)),
    "constants": lambda x: norm()(conv(x, tf.constant(CONSTANT))),
    "default epsilon": lambda x: norm(epsilon=0.0001)(conv(x, F))}
KEPT = {
    "convolution of two users": twice, "bias of two users": biased_twice, "convolution beneath a bias of two users": beneath_the_bias,
    "training": lambda x: norm(training=True)(conv(x, F)),
    "before": lambda x: conv(norm()(x), F),
    "transposed": lambda x: norm()(tf.nn.conv2d_transpose(x, F, [2, 6, 6, 4], 1)),
    "returned": lambda x: [*(lambda y: (norm()(y), y))(conv(x, F))],
    "half": lambda x: norm()(conv(tf.cast(x, tf.half), tf.cast(F, tf.half)))}


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_norm_becomes_part_of_its_convolution(tmp_path, name):
    assert norms(checked(tmp_path, tf.function(FOLDED[name]), IMAGE, grouping=False)) == 0


@pytest.mark.parametrize("name", KEPT)
def test_a_batch_norm_stays(tmp_path, name):
    assert norms(checked(tmp_path, tf.function(KEPT[name]), IMAGE, grouping=False)) == 1


def test_only_the_first_of_two_norms_goes(tmp_path):
    assert norms(checked(tmp_path, lambda x: norm()(norm()(conv(x, F))), IMAGE)) == 1


def test_a_norm_of_other_channels_than_its_convolution_stays(tmp_path):
    graph = capture(lambda x: norm(6, "NCHW")(conv(x, F)), IMAGE, model_folder=tmp_path / "model")
    assert norms(graph) == 1


def test_a_function_that_is_frozen_already(tmp_path):
    frozen = convert_variables_to_constants_v2(tf.function(FOLDED["bias"]).get_concrete_function(IMAGE))
    graph = capture(lambda x: frozen(x), IMAGE, model_folder=tmp_path / "model")
    assert norms(graph) == 0
    close(run_pieces(graph, draw(graph, 0))[0], {"0": frozen(tf.constant(draw(graph, 0)["x"]))[0].numpy()})


@pytest.mark.parametrize(*crossed(name=["convolution", "embedding", "lstm", "attention", "loop", "branch", "nested", "adam", "momentum"],
                                  pieces=[None, 2, 3]))
def test_models_give_the_same(tmp_path, name, pieces):
    checked(tmp_path, *MODELS[name](), pieces=pieces)


def test_products_of_weights_alone_are_computed_once(tmp_path):
    w, table = drawn(64, 64), tf.Variable(tf.range(20_000))
    graph = checked(tmp_path, lambda x: (x @ (tf.transpose(w) @ w), tf.gather(table * 2, [3, 9]), tf.gather(table + 1, tf.argmax(x, 1))),
                    Spec([2, 64]))
    assert (operations(graph)["MatMul"], operations(graph)["Transpose"]) == (1, 0)
    assert (tmp_path / "model" / "function.pb").stat().st_size < 40_000  # neither table nor product
    stored = dict(tf.train.list_variables(str(tmp_path / "model" / "weights")))
    assert sorted(map(tuple, stored.values())) == [(64, 64), (64, 64), (20_000,), (20_000,)]


def test_a_weight_may_be_of_several_pieces_and_a_result(tmp_path):
    w = drawn(64, 64)
    graph = checked(tmp_path, lambda x: (tf.tanh(x @ w), tf.sin(tf.reverse(x, [0]) @ w), w, w * 2.0), Spec([4, 64]), grouping=False)
    name = next(x["variable"] for x in graph.attributes["captured"]["weights"])
    assert weights(graph).count(name) == 2
    (vertex,) = (x["vertex"] for x in graph.attributes["captured"]["weights"] if x["variable"] == name)
    assert graph.attributes["captured"]["outputs"][2]["vertex"] == vertex


def test_what_is_updated_or_given_to_loops_is_not_frozen(tmp_path):
    model = tf_keras.Sequential([layers.Dense(64, input_shape=(8,)), layers.Dense(3)])
    model.layers[0].trainable = False
    inside = drawn(3, 3)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.tanh(y @ inside)), (0, model(x)))[1])
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True):
            variable.assign_sub(gradient)
        return loss

    captured = checked(tmp_path, step, Spec([4, 8])).attributes["captured"]
    frozen = {tuple(x["shape"]): x.get("frozen", False) for x in captured["weights"]}
    assert (frozen[8, 64], frozen[3, 3], frozen[64, 3]) == (True, False, False)
    assert len(captured["updates"]) == 2


def test_types_and_sizes_of_every_kind(tmp_path):
    empty, flags, narrow = tf.Variable(tf.zeros([0, 64])), tf.Variable([True, False] * 600), drawn(64, 64, dtype=tf.bfloat16)
    texts, numbers = tf.Variable(["a", "bcd"]), tf.Variable(tf.cast(tf.complex(drawn(20, 20), 1.0), tf.complex64))

    def compute(x):
        y = tf.concat([x, empty], 0)
        return (tf.where(flags, 1.0, tf.reduce_sum(y)), tf.cast(tf.cast(y, tf.bfloat16) @ narrow, tf.float32), empty,
                tf.cast(tf.strings.length(texts), tf.float32) + y[0, 0], tf.math.real(numbers) * y[0, 0])

    checked(tmp_path, compute, Spec([2, 64]))


@pytest.mark.parametrize("pieces", [None, 2])
def test_arrays_that_a_function_closes_over_are_weights(tmp_path, pieces):
    """But for small ones, integers of which shapes may be inferred, texts, and what loops close over."""
    w, narrow, flags = drawn(64, 64).numpy(), drawn(64, 64, dtype=tf.bfloat16).numpy(), np.array([True, False] * 600)
    table, numbers, short, texts = np.arange(20_000), drawn(20, 20).numpy() * 1j, np.arange(4_000), np.array(["a", "bcd"] * 1_000)

    def compute(x):
        y = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x @ w))[1]
        some = tf.gather(table, [3, 9]) + tf.gather(tf.constant(short), tf.argmax(x, 1))
        return (y, tf.where(flags, 1.0, tf.reduce_sum(y)), tf.cast(tf.cast(y, tf.bfloat16) @ narrow, tf.float32), w,
                tf.cast(some, tf.float32) + tf.cast(tf.strings.length(texts)[:2], tf.float32), tf.math.abs(numbers) * y[0, 0])

    graph = checked(tmp_path, compute, Spec([2, 64]), pieces=pieces)
    shapes = [tuple(x["shape"]) for x in graph.attributes["captured"]["weights"] if x["frozen"]]
    assert (64, 64) in shapes or (64, 32) in shapes
    assert {(1200,), (20, 20)} <= set(shapes)
    assert not {(4_000,), (2_000,)} & set(shapes)


def test_one_array_is_one_weight_however_often_it_is_used(tmp_path):
    w = drawn(64, 64).numpy()
    graph = checked(tmp_path, lambda x: (x @ w, tf.nn.relu(x) @ w.copy(), w), Spec([8, 64]), grouping=False)
    assert [x["shape"] for x in graph.attributes["captured"]["weights"]] == [[64, 64]]
    checked(tmp_path, lambda x: (tf.constant(w), x), Spec([8, 64]))  # nothing computes, and yet there is something to run


def test_nothing_is_frozen_unless_asked_for(tmp_path):
    graph = checked(tmp_path, FOLDED["bias"], IMAGE, freeze_variables=False)
    assert norms(graph) == 1
    assert weights(graph) == []
    assert not (tmp_path / "model" / "original.pb").exists()


def test_frozen_values_are_those_of_the_capture(tmp_path):
    w = drawn(64, 64)
    graph = capture(lambda x: x @ w, Spec([2, 64]), model_folder=tmp_path / "model")
    before = run_pieces(graph, draw(graph, 0))[0]
    w.assign(tf.zeros([64, 64]))
    close(run_pieces(graph, draw(graph, 0))[0], before)
    assert np.abs(before["output"]).max() > 0
