"""Weights that never change: kernels keep them as TensorFlow's do with constants, each call its own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.util import _pywrap_util_port

from runtime import calls
from runtime.calls import XLA, CapturedCall
from runtime.devices import with_all_cores

needs_onednn = pytest.mark.skipif(not _pywrap_util_port.IsMklEnabled(), reason="TensorFlow leaves oneDNN out on this machine")
DEVICE = with_all_cores("/device:CPU:0")


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def twice(padded, weight):
    """What is padded has two users."""
    return tf.nn.conv2d(padded, weight, 1, "VALID") + padded[:, 1:-1, 1:-1]


IMAGE, VOLUME, ROWS, BIAS = drawn(2, 9, 9, 8), drawn(2, 5, 5, 5, 4), drawn(6, 16), drawn(8, seed=2)
DEPTHWISE = {"strides": [1, 1, 1, 1], "padding": "SAME"}
# By name: a function of one operand and of weights, the operand, the weights.
FUNCTIONS = {
    "plain": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGE, drawn(3, 3, 8, 8)),
    "strides": (lambda x, w: tf.nn.conv2d(x, w, 2, "VALID"), IMAGE, drawn(3, 3, 8, 8)),
    "dilations": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", dilations=2), IMAGE, drawn(3, 3, 8, 8)),
    "explicit": (lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [2, 0], [0, 0]]), IMAGE, drawn(3, 3, 8, 8)),
    "groups": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMAGE, drawn(3, 3, 4, 8)),
    "bias": (lambda x, w, b: tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "relu": (lambda x, w, b: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "relu6": (lambda x, w, b: tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "elu": (lambda x, w, b: tf.nn.elu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "add": (lambda x, w, b: tf.nn.relu(x + tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "norm": (lambda x, w, b: tf.nn.relu(tf.compat.v1.nn.fused_batch_norm(
        tf.nn.conv2d(x, w, 1, "SAME"), b, b, b, tf.abs(b), is_training=False)[0]), IMAGE, drawn(3, 3, 8, 8), BIAS),
    "pad": (lambda x, w: tf.nn.conv2d(tf.pad(x, [[0, 0], [1, 2], [2, 0], [0, 0]]), w, 1, "VALID"), IMAGE, drawn(3, 3, 8, 8)),
    "pad, bias": (lambda x, w, b: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), w, 2, "VALID"), b)),
                  IMAGE, drawn(3, 3, 8, 8), BIAS),
    "explicit, bias": (lambda x, w, b: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [2, 0], [0, 0]]), b)),
                       IMAGE, drawn(3, 3, 8, 8), BIAS),
    "pad channels": (lambda x, w: tf.nn.conv2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 8]]), w, 1, "VALID"), IMAGE, drawn(3, 3, 16, 8)),
    "pad batch": (lambda x, w: tf.nn.conv2d(tf.pad(x, [[1, 0], [1, 1], [1, 1], [0, 0]]), w, 1, "VALID"), IMAGE, drawn(3, 3, 8, 8)),
    "pad by much": (lambda x, w: tf.nn.conv2d(tf.pad(x, [[0, 0], [4, 5], [0, 6], [0, 0]]), w, 2, "VALID"), IMAGE, drawn(3, 3, 8, 8)),
    "padded twice": (lambda x, w: twice(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), w),
                     IMAGE, drawn(3, 3, 8, 8)),
    "depthwise": (lambda x, w: tf.nn.depthwise_conv2d(x, w, **DEPTHWISE), IMAGE, drawn(3, 3, 8, 1)),
    "depthwise, bias": (lambda x, w, b: tf.nn.relu(tf.nn.bias_add(tf.nn.depthwise_conv2d(x, w, **DEPTHWISE), b)),
                        IMAGE, drawn(3, 3, 8, 1), BIAS),
    "one dimension": (lambda x, w: tf.nn.conv1d(x[:, 0], w, 1, "SAME"), IMAGE, drawn(3, 8, 8)),
    "volume": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), VOLUME, drawn(3, 3, 3, 4, 6)),
    "product": (lambda x, w: x @ w, ROWS, drawn(16, 8)),
    "dense": (lambda x, w, b: tf.nn.relu(tf.nn.bias_add(x @ w, b)), ROWS, drawn(16, 8), BIAS),
    "turned": (lambda x, w, b: tf.nn.bias_add(tf.matmul(x, w, transpose_b=True), b), ROWS, drawn(8, 16), BIAS),
    "both turned": (lambda x, w, b: tf.nn.bias_add(tf.matmul(x, w, transpose_a=True), b), ROWS, drawn(6, 8), BIAS),
    "computed filter": (lambda x, w: tf.nn.conv2d(x, tf.reshape(tf.tanh(w), [3, 3, 8, 8]), 1, "SAME"), IMAGE, drawn(9, 64)),
    "filter of the operand": (lambda x, w: tf.nn.conv2d(x, w + x[0, 0, 0, 0], 1, "SAME"), IMAGE, drawn(3, 3, 8, 8)),
    "double": (lambda x, w: tf.nn.conv2d(tf.cast(x, tf.float64), tf.cast(w, tf.float64), 1, "SAME"), IMAGE, drawn(3, 3, 8, 8)),
    "half": (lambda x, w: tf.cast(tf.nn.conv2d(tf.cast(x, tf.bfloat16), tf.cast(w, tf.bfloat16), 1, "SAME"), tf.float32),
             IMAGE, drawn(3, 3, 8, 8)),
    "loop": (lambda x, w: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(tf.nn.conv2d(y, w, 1, "SAME"))),
                                        (0, tf.nn.conv2d(x, w, 1, "SAME")))[1], IMAGE, drawn(3, 3, 8, 8)),
    "condition": (lambda x, w: tf.cond(x[0, 0, 0, 0] > 0, lambda: tf.nn.conv2d(x, w, 1, "SAME"), lambda: tf.nn.relu(x) + tf.reduce_sum(w)),
                  IMAGE, drawn(3, 3, 8, 8)),
}


class Weights:
    """What a call needs of a captured model."""

    def __init__(self, *values):
        self.values, self.resident = dict(zip("abcd", values, strict=False)), {}

    def weight(self, name):
        return self.values[name]

    def weight_spec(self, name):
        return tf.TensorSpec(self.values[name].shape, self.values[name].dtype)


def concrete(function, *tensors):
    return tf.function(lambda *given: [function(*given)], autograph=False).get_concrete_function(
        *[tf.TensorSpec(x.shape, x.dtype) for x in tensors])


def call_of(function, x, *weights, **options):
    model = Weights(*weights)
    return CapturedCall("toy", concrete(function, x, *weights), (), model, list(model.values), **options)


@pytest.fixture
def large(monkeypatch):
    """All weights are tensors."""
    monkeypatch.setattr(calls, "_SMALL_BYTES", -1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_are_those_of_constants(name, large):
    function, x, *weights = FUNCTIONS[name]
    call, expected = call_of(function, x, *weights), function(tf.constant(x), *map(tf.constant, weights))
    assert [x.shape for x in call._make_known(DEVICE)[2].outputs] == [x.shape for x in call.outputs]
    for _ in range(3):  # the first one keeps the filter
        (found,) = call([tf.constant(x)], DEVICE)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    (found,) = call([tf.constant(-x)], DEVICE)
    np.testing.assert_allclose(found, function(tf.constant(-x), *map(tf.constant, weights)), rtol=1e-4, atol=1e-4)


def ran(run):
    """Kinds of oneDNN's operations in what TensorFlow runs, with whether they keep their filters."""
    context.context().enable_run_metadata()
    run()
    found = context.context().export_run_metadata()
    return sorted((node.op, node.attr["is_filter_const"].b) for each in found.function_graphs for graph in each.partition_graphs
                  for node in graph.node if node.op.startswith("_Mkl") and "is_filter_const" in node.attr)


@needs_onednn
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {
    "loop", "condition", "half", "pad", "pad, bias", "pad channels", "pad batch", "pad by much"}))
def test_kernels_are_those_that_tensorflow_takes_for_constants(name, large):
    """TensorFlow's own optimizer decides what is fused; `convert_variables_to_constants_v2` is what its users do."""
    function, x, *weights = FUNCTIONS[name]
    variables = [tf.Variable(weight) for weight in weights]
    frozen = convert_variables_to_constants_v2(tf.function(lambda x: [function(x, *variables), x]).get_concrete_function(tf.constant(x)))
    call = call_of(function, x, *weights)
    assert ran(lambda: call([tf.constant(x)], DEVICE)) == ran(lambda: frozen(tf.constant(x)))


@needs_onednn
@pytest.mark.parametrize(("name", "padded"), [("pad", True), ("pad, bias", True), ("pad by much", True), ("pad channels", False),
                                              ("pad batch", False), ("padded twice", False)])
def test_convolutions_pad_themselves(name, padded, large):
    """TensorFlow has kernels that do both, whose shapes are wrong."""
    function, x, *weights = FUNCTIONS[name]
    made = call_of(function, x, *weights)._make_known(DEVICE)[2]
    kept = [op for op in made.graph.get_operations() if op.type.startswith("_Mkl")]
    assert [op.get_attr("padding") for op in kept] == [b"EXPLICIT" if padded else b"VALID"]


def test_calls_that_share_a_function_keep_filters_of_their_own(large):
    function, x, weight = FUNCTIONS["plain"]
    shared = concrete(function, x, weight)
    for sign in (1, -1, 2):
        call = CapturedCall("toy", shared, (), Weights(sign * weight), ["a"])
        for device in ("/device:CPU:0", "/device:CPU:1", DEVICE):
            np.testing.assert_allclose(call([tf.constant(x)], device)[0], sign * function(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", calls.BUILDS)
def test_small_weights_are_constants_and_large_ones_tensors(monkeypatch, build):
    function, x, *weights = FUNCTIONS["relu"]
    monkeypatch.setattr(calls, "_SMALL_BYTES", 100)
    call = call_of(function, x, *weights, build=build)
    np.testing.assert_allclose(call([tf.constant(x)], DEVICE)[0], function(x, *weights), rtol=1e-4, atol=1e-4)
    _, passed, made = call._taken[DEVICE]
    assert [tensor.shape for tensor in passed] == [weights[0].shape]
    assert len(made.inputs) == 2
    assert made.function_def.attr["_XlaMustCompile"].b is (build == XLA)


def test_what_runs_for_its_effects_still_runs(large, capfd):
    def function(x, w):
        tf.print("seen", tf.shape(x)[0])
        return tf.nn.conv2d(x, w, 1, "SAME")

    _, x, weight = FUNCTIONS["plain"]
    call = call_of(function, x, weight)
    for _ in range(2):
        call([tf.constant(x)], DEVICE)
    assert capfd.readouterr().err.count("seen 2") == 2


def test_functions_that_the_optimizer_makes_are_not_mistaken_for_each_other(large):
    """It names them after operations, which are called alike in both."""
    _, x, weight = FUNCTIONS["plain"]
    for factor in (1.0, 2.0, 3.0):
        def function(x, w, factor=factor):
            many = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * factor), (0, x))[1]
            return tf.nn.conv2d(many, w, 1, "SAME")

        call = call_of(function, x, weight)
        np.testing.assert_allclose(call([tf.constant(x)], DEVICE)[0], factor**2 * tf.nn.conv2d(x, weight, 1, "SAME"), rtol=1e-3, atol=1e-3)
