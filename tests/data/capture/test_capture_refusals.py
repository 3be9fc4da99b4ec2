"""What cannot be captured is named in one line: the operation, the user's line and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from data.capture import EVERYTHING, capture
from doppler_tf.errors import ConfigError, FormatError
from tests.captured_models import Spec

X = Spec([4])


def reads_a_file(x):
    if tf.reduce_sum(x) > 0.0:
        return x + tf.cast(tf.strings.length(tf.io.read_file("secret")), tf.float32)
    return x


def unknown_name(x):
    return x + undefined  # noqa: F821


def calls_python(x):
    return tf.py_function(lambda y: y, [x], tf.float32)


def looks_up(x):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    return tf.function(lambda y: table.lookup(tf.cast(y, tf.int32))).get_concrete_function(x)


@pytest.mark.parametrize(("function", "inputs", "words"), [
    (lambda x: tf.boolean_mask(x, x > 0.0), X, ["Where", "test_capture_refusals.py:", "shape"]),
    (tf.strings.as_string, X, ["output", "string"]),
    (unknown_name, X, ["NameError", "undefined", "test_capture_refusals.py:23"]),
    (lambda x: x @ x, Spec([4, 3]), ["ValueError", "test_capture_refusals.py:"]),
    (calls_python, X, ["EagerPyFunc", "test_capture_refusals.py:27", "--allow-unsafe"]),
    (reads_a_file, X, ["ReadFile (inside", "test_capture_refusals.py:", "--allow-unsafe"]),
    (looks_up(X), None, ["table"]),
    (lambda x: x, X, ["computes"]),
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
    monkeypatch.setattr("data.capture.reading.MOST_OPERATIONS", 3)
    with pytest.raises(ConfigError, match="operations"):
        capture(lambda x: tf.exp(tf.exp(tf.exp(x))), X, model_folder=tmp_path / "model")
