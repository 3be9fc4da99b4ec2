"""What cannot be captured is named in one line: the operation, the user's line and the remedy."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from data.capture import EVERYTHING, capture
from doppler_tf.errors import ConfigError, FormatError
from tests.captured_models import Spec

X = Spec([4])
WRITER = tf.summary.create_file_writer(tempfile.mkdtemp())
DATA = tf.data.Dataset.from_tensor_slices(np.ones((8, 4), np.float32))
ITERATOR = iter(DATA)
QUEUE = tf.queue.FIFOQueue(3, [tf.float32], [[4]])
GROWING, OTHER = tf.Variable([1.0, 2.0], shape=tf.TensorShape(None), name="growing"), tf.Variable([3.0, 4.0])
LOOKUP = tf_keras.layers.IntegerLookup(vocabulary=[1, 2, 3])


def reads_a_file(x):
    if tf.reduce_sum(x) > 0.0:
        return x + tf.cast(tf.strings.length(tf.io.read_file("secret")), tf.float32)
    return x


def unknown_name(x):
    return x + undefined  # noqa: F821


def calls_python(x):
    return tf.py_function(lambda y: y, [x], tf.float32)


def writes_a_summary(x):
    with WRITER.as_default(step=1):
        tf.summary.scalar("sum", tf.reduce_sum(x))
    return x


def takes_a_batch(x):
    return x + next(ITERATOR)


def goes_through_a_data_set(x):
    for y in DATA:
        x = x + y
    return x


def prints_into_a_file(x):
    tf.print("here", output_stream="file:///tmp/here")
    return x * 2.0


def puts_into_a_queue(x):
    QUEUE.enqueue(x)
    return x * 2.0


def grows(x):
    GROWING.assign(tf.concat([GROWING, x], 0))
    return tf.reduce_sum(GROWING)


def grows_where_a_branch_says_so(x):
    if tf.reduce_sum(x) > 0.0:
        GROWING.assign(x)
    return tf.reduce_sum(GROWING)


def chooses_a_variable(x):
    resource = tf.cond(tf.reduce_sum(x) > 0.0, lambda: GROWING.handle, lambda: OTHER.handle)
    return x * tf.reduce_sum(tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.float32))


def looks_up(x):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    return tf.function(lambda y: table.lookup(tf.cast(y, tf.int32))).get_concrete_function(x)


@pytest.mark.parametrize(("function", "inputs", "words"), [
    (lambda x: tf.boolean_mask(x, x > 0.0), X, ["Where", "test_capture_refusals.py:", "shape"]),
    (tf.strings.as_string, X, ["output", "string"]),
    (unknown_name, X, ["NameError", "undefined", "test_capture_refusals.py:32"]),
    (lambda x: x @ x, Spec([4, 3]), ["ValueError", "test_capture_refusals.py:"]),
    (calls_python, X, ["EagerPyFunc", "test_capture_refusals.py:36", "--allow-unsafe"]),
    (reads_a_file, X, ["ReadFile (inside", "test_capture_refusals.py:", "--allow-unsafe"]),
    (looks_up(X), None, ["lookup table", "tf.gather"]),
    (LOOKUP, Spec([4], tf.int64), ["LookupTableFindV2", "lookup table"]),
    (writes_a_summary, X, ["WriteSummary", "write the summary outside"]),
    (takes_a_batch, X, ["IteratorGetNext", "as an argument"]),
    (goes_through_a_data_set, X, ["Dataset", "as an argument"]),
    (prints_into_a_file, X, ["PrintV2", "files", "test_capture_refusals.py:"]),
    (puts_into_a_queue, X, ["QueueEnqueueV2", "queue"]),
    (lambda x: x * tf.cast(tf.timestamp(), tf.float32), X, ["Timestamp", "clock", "test_capture_refusals.py:"]),
    (grows, X, ["growing", "[2]", "(6,)", "test_capture_refusals.py:"]),
    (grows_where_a_branch_says_so, X, ["growing", "[2]", "branch", "test_capture_refusals.py:"]),
    (chooses_a_variable, X, ["ReadVariableOp", "chooses", "test_capture_refusals.py:"]),
    (lambda x: x + tf.compat.v1.placeholder(tf.float32, [4], "unfed"), X, ["'unfed'", "argument", "test_capture_refusals.py:"]),
    (lambda x: x, X, ["computes", "call it as it is"]),
    (lambda x, v: x + v, (X, OTHER), ["argument v", "variable", "read_value()"]),
    (lambda d: d["a"] * 2.0, {"a": X, 3: X}, ["example_inputs", "keys of one type"]),
    (lambda x: tf.cast(x, tf.qint8), X, ["output", "qint8", "tf.bitcast"]),
    (lambda x: tf.TensorArray(tf.float32, 3).unstack(x), X, ["output", "variant", "stack() of a TensorArray"]),
    (lambda x: tf.strings.as_string(x), X, ["output", "'string'", "leave it out"]),
    (lambda i: next(i) * 2.0, ITERATOR, ["input", "batch"]),
    (lambda x: {"s": tf.sparse.from_dense(x), "y": x + 1.0}, X, ["output 's/indices' of a SparseTensor", "Where", "shape"]),
    (lambda x: x, Spec([None, 3]), ["shape", "(None, 3)", "example_inputs"]),
    (lambda r: r * 2.0, tf.RaggedTensorSpec([2, None]), ["input 'r/flat_values'", "shape", "example_inputs"]),
    (lambda x, y: x + y, X, ["arguments for (x, y)", "missing a required argument: 'y'"]),
    (lambda x: x, np.array(["text"]), ["example_inputs", "numbers"]),
    (3, X, ["function", "3"]),
])
def test_refusals(function, inputs, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        capture(function, inputs, model_folder=tmp_path / "model")
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
    assert not (tmp_path / "model").exists()


def test_what_tensorflow_raises_inside_of_ours_is_one_line_with_the_users(tmp_path):
    def function(x):
        return tf.linalg.diag(x, padding_value=tf.constant(0.0)) @ tf.ones([4, 2])

    wrapped = tf.function(function, input_signature=[Spec([None])])
    with pytest.raises(ConfigError) as caught:
        capture(wrapped.get_concrete_function(), [Spec([3])], model_folder=tmp_path / "model")
    assert "test_capture_refusals.py:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unsafe_operations_can_be_allowed(tmp_path):
    for allow in ({"ReadFile"}, {EVERYTHING}):
        graph = capture(reads_a_file, X, model_folder=tmp_path / "model", allow=allow)
        assert graph.attributes["captured"]["outputs"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    with pytest.raises(FormatError, match="something else"):
        capture(lambda x: x + 1.0, X, model_folder=tmp_path / "mine")
    assert (tmp_path / "mine" / "diary.txt").exists()


def test_too_many_operations(tmp_path, monkeypatch):
    monkeypatch.setattr("data.capture.rewriting.reading.MOST_OPERATIONS", 3)
    with pytest.raises(ConfigError, match="operations"):
        capture(lambda x: tf.exp(tf.exp(tf.exp(x))), X, model_folder=tmp_path / "model")
