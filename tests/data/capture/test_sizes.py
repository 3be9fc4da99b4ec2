"""Operations of any sizes, none, one and fewer than tiles among them, compute cut what they compute whole."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data.capture import capture
from data.capture.cuts.cutting import cut_program, find_labels
from data.capture.cuts.labels import RULES
from data.capture.operations import ELEMENTWISE
from doppler_tf.errors import ConfigError
from runtime.models.captured import original_function
from tests.captured_models import Spec, close, draw, run_pieces
from tests.data.capture.test_cutting import agree, evaluate, gradient, program_of, tilings_of, values
from tests.strategies import examples

INDEX = tf.int32


def image(*sizes):
    return Spec(sizes)


def kernel(d, e=2):
    return Spec([2, 2, d, e])


# For each kind the function of sizes a, b, c, d that gives a function and its specs. Norms cannot compare infinite numbers, which maxima of
# nothing are: tanh makes them finite.
FORMS = {
    "elementwise": lambda a, b, c, d: (lambda x, y, z: tf.where(x > y, x * z, tf.add_n([x, x])), Spec([a, b]), Spec([1, b]), Spec([])),
    "Softmax": lambda a, b, c, d: (lambda x: (tf.nn.softmax(x), tf.nn.log_softmax(x)), Spec([a, b, c])),
    "SoftmaxCrossEntropyWithLogits": lambda a, b, c, d: (
        gradient(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x)), Spec([a, b]), Spec([a, b])),
    "SparseSoftmaxCrossEntropyWithLogits": lambda a, b, c, d: (
        lambda i, x: tf.nn.sparse_softmax_cross_entropy_with_logits(i, x), Spec([a], INDEX), Spec([a, b + 2])),
    "MatMul": lambda a, b, c, d: (lambda x, y: tf.matmul(x, y, b > 2, c > 2), Spec([b, a] if b > 2 else [a, b]),
                                  Spec([c, b] if c > 2 else [b, c])),
    "BatchMatMulV2": lambda a, b, c, d: (lambda x, y: tf.matmul(x, y, adjoint_b=True), Spec([d, 1, a, b]), Spec([2, c, b])),
    "Einsum": lambda a, b, c, d: (lambda x, y: tf.einsum("abc,cd->bad", x, y), Spec([a, b, c]), Spec([c, d])),
    "BiasAdd": lambda a, b, c, d: (lambda x, y: (tf.nn.bias_add(x, y), *gradient(tf.nn.bias_add)(x, y)), Spec([a, b, c]), Spec([c])),
    "Conv2D": lambda a, b, c, d: (lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), image(a, b, c, d), kernel(d, a)),
    "Conv2DBackpropInput": lambda a, b, c, d: (gradient(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME")), image(a, b, c, d), kernel(d)),
    "Conv3D": lambda a, b, c, d: (gradient(lambda x, k: tf.nn.conv3d(x, k, [1] * 5, "SAME")), Spec([a, b, 2, c, d]),
                                  Spec([1, 2, 2, d, 2])),
    "DepthwiseConv2dNative": lambda a, b, c, d: (
        gradient(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1] * 4, "SAME")), image(a, b, c, d), kernel(d)),
    "MaxPool": lambda a, b, c, d: (gradient(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")), image(a, b, c, d)),
    "AvgPool": lambda a, b, c, d: (gradient(lambda x: tf.nn.avg_pool2d(x, 2, 2, "SAME")), image(a, b, c, d)),
    "AvgPool3D": lambda a, b, c, d: (
        lambda x: (tf.nn.avg_pool3d(x, 2, 2, "SAME"), tf.nn.tanh(tf.nn.max_pool3d(x, 2, 2, "SAME"))), Spec([a, b, c, 2, d])),
    "ResizeBilinear": lambda a, b, c, d: (
        lambda x: (tf.image.resize(x, [3, 2]), tf.image.resize(x, [3, 2], "nearest")), image(a, b, c, d)),
    "FusedBatchNormV3": lambda a, b, c, d: (
        lambda x, s: tf.raw_ops.FusedBatchNormV3(x=x, scale=s, offset=s, mean=s, variance=s * s, is_training=False).y,
        image(a, b, c, d), Spec([d])),
    "FusedBatchNormGradV3": lambda a, b, c, d: (
        gradient(lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s)[0]), image(a, b, c + 1, d), Spec([d])),
    "Sum": lambda a, b, c, d: (
        lambda x: (tf.reduce_sum(x, 1), tf.reduce_sum(x, [0, 2], keepdims=True), tf.reduce_prod(x), tf.reduce_sum(x, [])), Spec([a, b, c])),
    "Max": lambda a, b, c, d: (lambda x: (tf.tanh(tf.reduce_max(x, 1)), tf.tanh(tf.reduce_min(x, 1))), Spec([a, b, c])),
    "All": lambda a, b, c, d: (lambda x: (tf.reduce_all(x > 0, 1), tf.reduce_any(x > 0)), Spec([a, b])),
    "Mean": lambda a, b, c, d: (lambda x: (tf.reduce_mean(x, 1), tf.math.reduce_euclidean_norm(x, 0)), Spec([a, b + 1, c])),
    "ArgMax": lambda a, b, c, d: (lambda x: (tf.argmax(x, 1), tf.argmin(x, 1)), Spec([a, b + 1, c])),
    "Transpose": lambda a, b, c, d: (lambda x: tf.transpose(x, [2, 0, 1]), Spec([a, b, c])),
    "Reshape": lambda a, b, c, d: (lambda x: tf.nn.relu(tf.reshape(x, [b, c * a])), Spec([a, b, c])),
    "Squeeze": lambda a, b, c, d: (lambda x: tf.squeeze(x)[..., None], Spec([a, 1, b])),
    "ConcatV2": lambda a, b, c, d: (lambda x, y: tf.concat([x, y, x], 1), Spec([a, b, c]), Spec([a, d, c])),
    "Split": lambda a, b, c, d: (lambda x: tf.split(x, 2, 1) + tf.split(x, [b, b], 1), Spec([a, 2 * b, c])),
    "Pack": lambda a, b, c, d: (lambda x, y: tf.stack([x, y], 1), Spec([a, b]), Spec([a, b])),
    "Unpack": lambda a, b, c, d: (lambda x: tf.unstack(x, axis=1), Spec([a, b + 1, c])),
    "Slice": lambda a, b, c, d: (lambda x: tf.slice(x, [0, min(b, 1), 0], [-1, -1, c // 2]), Spec([a, b, c])),
    "StridedSlice": lambda a, b, c, d: (lambda x: (x[:, :1], x[:, b:], x[:0], x[..., ::2]), Spec([a, b, c])),
    "Pad": lambda a, b, c, d: (lambda x: (tf.pad(x, [[0, 0], [1, d]]), tf.pad(x, [[0, 0], [0, d]], constant_values=2.0)), Spec([a, b])),
    "MirrorPad": lambda a, b, c, d: (lambda x: tf.pad(x, [[0, 0], [1, 1]], "SYMMETRIC"), Spec([a, b + 1])),
    "Tile": lambda a, b, c, d: (lambda x: tf.tile(x, [1, d]), Spec([a, b])),
    "BroadcastTo": lambda a, b, c, d: (lambda x: tf.broadcast_to(x, [a, b, c]), Spec([b, 1])),
    "Fill": lambda a, b, c, d: (lambda x: tf.fill([a, b], x) * 2.0, Spec([])),
    "GatherV2": lambda a, b, c, d: (lambda x, i: tf.gather(x, i), Spec([a + 2, b]), Spec([c, d], INDEX)),
}


def whole(form, sizes, rng):
    """A program, arguments and what it gives; None where TensorFlow itself refuses these sizes.

    Or where it gives whatever stood in memory: a filter's gradient if the image has no elements.
    """
    try:
        program = program_of(*form(*sizes))
        operations = program.imported().get_operations()
        if any("BackpropFilter" in op.type and not all(x.shape.num_elements() for x in op.inputs) for op in operations):
            return None
        feeds = values(program, rng)
        return program, feeds, evaluate(program, feeds)
    except (ConfigError, tf.errors.OpError):
        return None


def test_each_rule_has_a_form():
    covered = set()
    for form in FORMS.values():
        program = program_of(*form(4, 4, 4, 4))
        covered |= {program.nodes[name].op for name in find_labels(program)}
    # Twins that share a rule with one that is covered.
    assert {*RULES} - ELEMENTWISE - covered <= {"BatchMatMul", "BatchMatMulV3", "ExpandDims"}


@examples(0.15)
@given(st.sampled_from(sorted(FORMS)), st.tuples(*[st.integers(0, 5)] * 4), st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_any_sizes_under_any_tiling(name, sizes, pieces, seed):
    rng = np.random.default_rng(seed)
    made = whole(FORMS[name], sizes, rng)
    if made is None:
        return
    program, feeds, expected = made
    labels = find_labels(program)
    agree(program, tilings_of(labels, rng), labels, rng)
    for found, value in zip(evaluate(cut_program(program, pieces), feeds), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)
        assert found.dtype == value.dtype


def test_models_of_empty_tensors_are_captured_whole_and_in_pieces(tmp_path):
    """Through pieces, too: fewer elements than pieces, images of no size, no batch, weights without elements, scalars."""
    filters, weights = tf.Variable(tf.ones([3, 3, 3, 4])), tf.Variable(tf.ones([3, 0]))

    @tf.function
    def compute(x, image, one, scalar):
        return {"rows": tf.nn.relu(x[:0]) + 1.0, "empty": x @ weights, "sum": x @ weights @ tf.ones([0, 5]),
                "image": tf.nn.relu(tf.nn.conv2d(image, filters, 1, "SAME")), "mean": tf.reduce_mean(image, [0, 3]),
                "batch": tf.nn.conv2d(tf.ones([0, 4, 4, 3]) * scalar, filters, 1, "VALID"), "row": tf.nn.softmax(one @ one),
                "largest": tf.reduce_max(x @ weights, 1), "scalar": tf.exp(scalar) * 2.0}

    specs = Spec([5, 3]), Spec([2, 0, 0, 3]), Spec([1, 1]), Spec([])
    for pieces in (None, 2, 7):
        graph = capture(compute, specs, model_folder=tmp_path / "model", pieces=pieces)
        feeds = draw(graph, 0)
        outputs, _ = original_function(tmp_path / "model")(feeds)
        close(run_pieces(graph, feeds)[0], outputs)
        close(outputs, {name: value.numpy() for name, value in compute(*map(tf.constant, feeds.values())).items()})
