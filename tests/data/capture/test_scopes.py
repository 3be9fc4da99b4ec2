"""The user's `tf.device` scopes as pins: what an operation stands in, what joins it, and what contradicts itself."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from data.capture import capture, capture_counted
from data.capture.cuts.grouping import Cost, grouped
from data.capture.rewriting.scopes import common_scope
from doppler_tf.errors import ConfigError
from tests.captured_models import Spec, training_step
from tests.messages import assert_says, refusal

GPU0, GPU1 = "/device:GPU:0", "/device:GPU:1"


def pins(graph):
    return {graph.names[v]: graph.pin[v] for v in graph.work_vertices}


def test_scopes_nested_partial_by_function_and_around_calls_and_loops(tmp_path):
    table = tf.Variable(tf.ones([9, 4]))

    @tf.function
    def inner(x):
        with tf.device("/GPU:1"):
            y = tf.sin(x, name="own")
        return tf.cos(y, name="of_the_call")

    @tf.function
    def compute(x, i):
        with tf.device("/GPU:0"):
            y = tf.tanh(x, name="outer")
            with tf.device("/job:worker/task:1"):
                y = tf.exp(y, name="nested")
            with tf.device(None):
                y = tf.abs(y, name="left")
            y = inner(y)
        with tf.device("/GPU"):
            y = tf.nn.relu(y, name="any_gpu")
        with tf.compat.v1.device(lambda op: "/cpu:0" if op.type == "Neg" else ""):
            y = tf.square(-y, name="not_by_function")
        y = tf.while_loop(lambda k, z: k < 3, lambda k, z: (k + 1, _in(GPU1, tf.sigmoid, z)), (0, y), name="loop")[1]
        with tf.device("/GPU:0"):
            y += tf.gather(table, i, name="looked_up")
        return tf.reduce_sum(y, name="free")

    found = capture_counted(compute, (Spec([4, 4]), Spec([4], tf.int32)), model_folder=tmp_path / "m", grouping=False, keep_devices=True)
    mine = pins(found.graph)
    assert {name.rpartition("/")[2]: pin for name, pin in mine.items()} == {
        "outer": GPU0, "nested": "/job:worker/task:1" + GPU0, "left": None, "own": GPU1, "of_the_call": GPU0, "any_gpu": "/device:GPU:*",
        "Neg": "/device:CPU:0", "not_by_function": None, "loop": GPU1, "looked_up": GPU0, "add": GPU0, "free": None}
    assert found.scoped == sum(pin is not None for pin in mine.values())
    dropped = capture_counted(compute, (Spec([4, 4]), Spec([4], tf.int32)), model_folder=tmp_path / "m", grouping=False)
    assert dropped.scoped == found.scoped
    assert {*pins(dropped.graph).values()} == {None}
    assert dropped.dropped_scopes == "the tf.device scopes of 9 operations were dropped"


def _in(scope, function, *arguments):
    with tf.device(scope):
        return function(*arguments)


def test_grouping_keeps_devices_apart_and_tiles_keep_theirs(tmp_path):
    @tf.function
    def towers(x):
        left = _in(GPU0, lambda: tf.nn.softmax(tf.nn.relu(x @ x) @ x))
        right = _in(GPU1, lambda: tf.nn.dropout(tf.nn.relu(x @ x) @ x, 0.5))
        dropped = _in(GPU0, tf.nn.dropout, left, 0.5)
        return tf.tanh(dropped + right)

    for pieces in (None, 2):
        graph = capture(towers, Spec([64, 64]), model_folder=tmp_path / "m", pieces=pieces, keep_devices=True)
        assert {*graph.pin} == {GPU0, GPU1, None}
        assert graph.groups == ()  # random numbers of two devices need not share one
        for v in graph.work_vertices:
            tile = graph.kinds[v] == "MatMul"
            assert graph.pin[v] is not None or not tile
        assert sum(kind == "MatMul" for kind in graph.kinds) >= 2 * (pieces or 1) - 1
    costs = [Cost(1, 1, 1, 1, True, pin=pin) for pin in ("", GPU0, GPU0, GPU1)]
    assert grouped([[], [0], [1], [2]], costs) == [[0], [1, 2], [3]]


def test_scopes_that_contradict_each_other_in_one_vertex(tmp_path):
    @tf.function
    def loop(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, _in(GPU0, tf.tanh, _in(GPU1, tf.abs, y))), (0, x))[1]

    @tf.function
    def dynamic(x):
        return _in("/cpu:0", tf.reduce_sum, _in(GPU1, lambda: tf.unique(x)[0]))

    for function, spec, names in ((loop, Spec([3]), ("'while' (StatelessWhile)", GPU0)),
                                  (dynamic, Spec([3], tf.int32), ("'Sum' (Sum)", "CPU:0"))):
        message = refusal(ConfigError, capture, function, spec, model_folder=tmp_path / "m", keep_devices=True)
        assert_says(message, *names, GPU1, "test_scopes.py:", "expected one device", "--keep-devices")
        assert {*capture(function, spec, model_folder=tmp_path / "m").pin} == {None}
    assert common_scope(["/GPU:*", "/job:worker", "/task:1/GPU:2"]) == "/job:worker/task:1/device:GPU:2"
    assert common_scope(["/GPU:1", "/CPU:1"]) is None


def test_what_optimizers_say_of_their_variables_is_no_scope_of_the_user(tmp_path):
    function, specs = training_step(tf_keras.optimizers.legacy.Adam)()
    assert any(op.device for op in function.get_concrete_function(*specs).graph.get_operations())
    found = capture_counted(function, specs, model_folder=tmp_path / "m", keep_devices=True)
    assert found.scoped == 0
    assert {*found.graph.pin} == {None}
