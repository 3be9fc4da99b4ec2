"""Estimated operations of TensorFlow's kernels, against figures worked out by hand."""

from __future__ import annotations

import pytest
import tensorflow as tf

from data.capture.cuts.flops import Flops


@pytest.mark.parametrize(("build", "flops"), [
    (lambda: tf.matmul(tf.zeros([2, 3]), tf.zeros([3, 5])), 2 * 2 * 3 * 5),
    (lambda: tf.matmul(tf.zeros([7, 3, 2]), tf.zeros([7, 3, 5]), transpose_a=True), 2 * 7 * 2 * 3 * 5),
    (lambda: tf.raw_ops.Einsum(inputs=[tf.zeros([2, 4, 8]), tf.zeros([8, 3])], equation="abc,cd->abd"), 2 * 2 * 4 * 8 * 3),
    (lambda: tf.raw_ops.Einsum(inputs=[tf.zeros([5, 2, 4]), tf.zeros([4, 3])], equation="...ab,bc->...ac"), 2 * 5 * 2 * 4 * 3),
    (lambda: tf.nn.conv2d(tf.zeros([1, 8, 8, 3]), tf.zeros([3, 3, 3, 4]), 1, "SAME"), 2 * 8 * 8 * 4 * 27),
    (lambda: tf.nn.depthwise_conv2d(tf.zeros([1, 8, 8, 3]), tf.zeros([3, 3, 3, 1]), [1, 1, 1, 1], "SAME"), 2 * 8 * 8 * 3 * 9),
    (lambda: tf.nn.max_pool2d(tf.zeros([1, 8, 8, 3]), 2, 2, "SAME"), 4 * 4 * 3 * 4),
    (lambda: tf.reduce_sum(tf.zeros([4, 5])), 20),
    (lambda: tf.add_n([tf.zeros([4, 5])] * 3), 40),
    (lambda: tf.transpose(tf.zeros([4, 5])), 0),
    (lambda: tf.while_loop(lambda i, x: i < 6, lambda i, x: (i + 1, tf.matmul(x, x)), (0, tf.zeros([4, 4])))[1], 6 * (2 * 64 + 2 + 1)),
])
def test_flops(build, flops):
    graph = tf.function(build).get_concrete_function().graph
    tensor = graph.outputs[0]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    assert Flops(tf.compat.v1.GraphDef(library=graph.as_graph_def().library))(tensor.op) == pytest.approx(flops)
