"""A captured function by TensorFlow alone: each way gives what the original gives."""

import gc
import re

import numpy as np
import pytest
import tensorflow as tf

from data.capture import capture
from runtime.models.alone import FROZEN, MODES, PLAIN, XLA, Alone, is_checked, modes
from runtime.models.captured import original_function
from tests.captured_models import MODELS, Spec, close, draw


@pytest.mark.parametrize("name", ["dense", "convolution", "several_outputs", "embedding", "loop", "passed_through"])
def test_every_way_gives_the_same(tmp_path, name):
    graph = capture(*MODELS[name](), model_folder=tmp_path / "model")
    feeds = draw(graph, 0)
    expected, _ = original_function(tmp_path / "model")(feeds)
    assert modes(tmp_path / "model") == MODES
    for mode in MODES:
        alone = Alone(tmp_path / "model", mode)
        if name == "loop":  # whose graph refers to itself; a collection takes a second
            gc.collect()
        found = alone({key: tf.constant(value) for key, value in feeds.items()})
        close({key: np.asarray(value) for key, value in found.items()}, expected)
        assert mode == PLAIN or not alone.variables


def test_updates_stay_in_its_variables(tmp_path):
    weight = tf.Variable(tf.ones([2]), name="weight")
    capture(lambda x: weight.assign_add(x) * 2.0, Spec([2]), model_folder=tmp_path / "model")
    assert FROZEN not in modes(tmp_path / "model")
    for mode in (PLAIN, XLA):
        alone = Alone(tmp_path / "model", mode)
        for value in (4.0, 6.0):
            np.testing.assert_array_equal(alone({"x": tf.ones([2])})["output"], np.full(2, value))
        (variable,) = alone.variables.values()
        np.testing.assert_array_equal(variable, np.full(2, 3.0))
    np.testing.assert_array_equal(weight, np.ones(2))


def test_a_weight_may_be_a_result(tmp_path):
    weight = tf.Variable(tf.ones([30, 30]))
    capture(lambda x: (x @ weight, weight, x), Spec([2, 30]), model_folder=tmp_path / "model")
    for mode in MODES:
        found = list(Alone(tmp_path / "model", mode)({"x": tf.ones([2, 30])}).values())
        np.testing.assert_array_equal(found[1], np.ones([30, 30]))
        np.testing.assert_array_equal(found[2], np.ones([2, 30]))


@pytest.mark.parametrize("function", [lambda x: tf.debugging.check_numerics(x, "x") * 2.0, lambda x: x + tf.random.normal([2])])
def test_xla_is_no_way_where_it_would_leave_something_out(tmp_path, function):
    capture(function, Spec([2]), model_folder=tmp_path / "model")
    assert modes(tmp_path / "model") == (PLAIN, FROZEN)


@pytest.mark.parametrize("function", [
    lambda x: x + tf.random.stateless_uniform([3], (1, 2)), lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, (1, 2)),
    lambda x: tf.map_fn(lambda row: row + tf.random.stateless_normal([], (1, 2)), x)])
def test_xla_is_no_way_where_it_would_draw_other_numbers(tmp_path, function):
    capture(tf.function(function), Spec([3]), model_folder=tmp_path / "model")
    assert XLA not in modes(tmp_path / "model")


_TABLE = tf.range(10.0)


def _rows_of(table):
    return lambda i: tf.nn.embedding_lookup(table, i)


@pytest.mark.parametrize(("function", "fine", "bad", "told"), [
    (lambda i: tf.gather(_TABLE, i + 1), [0, 8], [0, 9], "indices[1] = 10 is not in [0, 10)"),
    (lambda i: tf.gather(tf.reshape(_TABLE, (2, 5)), i, axis=1), [0, 4], [-1, 0], "indices[0] = -1 is not in [0, 5)"),
    (_rows_of(tf.Variable(tf.ones((10, 3)))), [0, 9], [10, 0], "= 10 is not in [0, 10)"),
    (lambda i: 7 // i, [1, -2], [1, 0], "Integer division by zero"), (lambda i: 7 % i, [1, -2], [0, 1], "Integer division by zero")])
def test_what_xla_does_not_check_is_checked(tmp_path, function, fine, bad, told):
    """XLA would take the last row, or make up a quotient."""
    graph = capture(function, tf.constant(fine), model_folder=tmp_path / "model")
    name = graph.attributes["captured"]["inputs"][0]["name"]
    assert modes(tmp_path / "model") == MODES
    assert is_checked(tmp_path / "model")
    alone, plain = Alone(tmp_path / "model", XLA), Alone(tmp_path / "model", PLAIN)
    for _ in range(2):
        np.testing.assert_array_equal(alone({name: tf.constant(fine)})["output"], plain({name: tf.constant(fine)})["output"])
        with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(told)):
            alone({name: tf.constant(bad)})


@pytest.mark.parametrize("function", [
    lambda i: tf.slice(_TABLE, [i], [2]), lambda i: _TABLE[i], lambda i: tf.scatter_nd([[i]], [1.0], [3]),
    lambda i: tf.math.unsorted_segment_sum(_TABLE[:1], [i], 2),
    lambda i: tf.map_fn(lambda j: tf.gather(_TABLE, i + j), tf.range(2), tf.float32)])
def test_xla_is_no_way_where_it_would_not_check_more_than_a_range(tmp_path, function):
    capture(tf.function(function), tf.constant(1), model_folder=tmp_path / "model")
    assert XLA not in modes(tmp_path / "model")


def test_xla_is_no_way_where_an_update_would_come_before_a_check(tmp_path):
    count = tf.Variable(0, name="count")
    capture(lambda i: tf.gather(_TABLE, count.assign_add(i)), tf.constant(1), model_folder=tmp_path / "model")
    assert modes(tmp_path / "model") == (PLAIN,)


def test_constant_indices_and_floats_need_no_check(tmp_path):
    capture(lambda x: tf.gather(x, [1, 0]) / x[0] + x[:1], Spec([2]), model_folder=tmp_path / "model")
    assert modes(tmp_path / "model") == MODES
    assert not is_checked(tmp_path / "model")


def _squared(made, transposed=False):
    return tf.reduce_sum(tf.matmul(made, made, transpose_b=transposed))


@pytest.mark.parametrize("function", [
    lambda x: _squared(x @ x), lambda x: _squared(x @ x, True), lambda x: tf.reduce_max((x @ x) @ (x @ x)),
    lambda x: _squared(tf.reshape(x @ x, (4, 4))), tf.function(lambda x: _squared(tf.identity(x @ x)))])
def test_xla_is_no_way_where_it_would_end_the_process(tmp_path, function):
    """TensorFlow 2.21: a segmentation fault while it compiles, at sizes from 256 on."""
    capture(function, tf.ones((4, 4)), model_folder=tmp_path / "model")
    assert modes(tmp_path / "model") == (PLAIN, FROZEN)


@pytest.mark.parametrize("function", [lambda x: _squared(x), lambda x: _squared(tf.tanh(x @ x)), lambda x: tf.reduce_sum((x @ x) @ x)])
def test_xla_is_a_way_for_other_products(tmp_path, function):
    capture(function, tf.ones((4, 4)), model_folder=tmp_path / "model")
    assert modes(tmp_path / "model") == MODES
