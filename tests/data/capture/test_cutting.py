"""Operations cut into tiles compute what they computed before, under any tiling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from data.capture import capture
from data.capture.calls.concrete import concrete
from data.capture.cuts.cutting import cut_by, cut_program, find_labels, labelled_operations
from data.capture.cuts.labels import RULES
from data.capture.rewriting.reading import read_program
from runtime.models.captured import original_function
from tests.captured_models import MODELS, Spec, close, draw, run_pieces
from tests.crossed import crossed

INDEX = tf.int32


def program_of(function, *specs):
    """A function as a program of operations."""
    return read_program(concrete(tf.function(function), tuple(specs), "f"), "f")[0]


def evaluate(program, feeds):
    """What a program returns."""
    graph = program.graph_def()

    def run():
        inside = tf.compat.v1.get_default_graph().capture
        return tf.import_graph_def(graph, {name: inside(tf.constant(value)) for name, value in feeds.items()},
                                   [f"{name}:{k}" for name, k in program.outputs], name="")
    return [x.numpy() for x in tf.compat.v1.wrap_function(run, [])()]


def values(program, rng):
    """Random arguments: floats, and integers that are 0 or 1."""
    graph, feeds = program.imported(), {}
    for name in program.arguments:
        x = graph.get_operation_by_name(name).outputs[0]
        feeds[name] = (rng.normal(size=x.shape) if x.dtype.is_floating else rng.integers(0, 2, x.shape)).astype(x.dtype.as_numpy_dtype)
    return feeds


def tilings_of(labels, rng, most=4):
    """Random parts of random labels, for each operation."""
    return {name: {label: int(rng.integers(1, min(size, most) + 1)) for label, size in each.sizes.items()
                   if rng.random() < 0.7} for name, each in labels.items()}


def agree(program, tilings, labels, rng):
    cut = cut_by(program, labels, tilings)
    for found, expected in zip(evaluate(cut, feeds := values(program, rng)), evaluate(program, feeds), strict=True):
        near(found, expected)
    return cut


def near(found, expected):
    """Asserts equal types and shapes, and ||a - b|| <= 1e-5 ||b|| + 1e-4: numbers of up to some hundreds may cancel."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    difference, size = (np.linalg.norm(np.ravel(x).astype(float)) for x in (found.astype(float) - expected, expected))
    assert difference <= 1e-5 * size + 1e-4


def gradient(function):
    """All gradients of the sum of squares."""
    def compute(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(function(*inputs) ** 2)
        return tape.gradient(loss, inputs)
    return compute


IMAGE, KERNEL, DEPTH = Spec([5, 8, 7, 6]), Spec([3, 3, 6, 4]), Spec([3, 3, 6, 2])
CASES = {
    "MatMul": (lambda a, b: a @ b, Spec([5, 7]), Spec([7, 3])),
    "MatMul turned": (lambda a, b: tf.matmul(a, b, True, True), Spec([7, 5]), Spec([3, 7])),
    "BatchMatMulV2": (lambda a, b: tf.matmul(a, b, transpose_b=True), Spec([2, 1, 5, 7]), Spec([3, 4, 7])),
    "Einsum": (lambda a, b: tf.einsum("abc,cde->abde", a, b), Spec([5, 4, 6]), Spec([6, 2, 3])),
    "Einsum sum": (lambda a: tf.einsum("abc->b", a), Spec([5, 4, 6])),
    "Conv2D": (lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"), IMAGE, KERNEL),
    "DepthwiseConv2dNative": (lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "VALID"), IMAGE, DEPTH),
    "Conv3D": (lambda x, k: tf.nn.conv3d(x, k, [1] * 5, "SAME"), Spec([2, 3, 4, 5, 3]), Spec([1, 2, 2, 3, 2])),
    "Conv2DBackpropInput": (gradient(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME")), IMAGE, KERNEL),
    "DepthwiseConv2dNativeBackpropFilter": (gradient(lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME")), IMAGE, DEPTH),
    "grouped convolution": (lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), IMAGE, Spec([3, 3, 3, 4])),
    "BiasAdd": (lambda x, b: tf.nn.bias_add(x, b), IMAGE, Spec([6])),
    "BiasAddGrad": (gradient(lambda x, b: tf.nn.bias_add(x, b)), IMAGE, Spec([6])),
    "MaxPool": (gradient(lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME")), IMAGE),
    "AvgPool": (gradient(lambda x: tf.nn.avg_pool2d(x, 3, 2, "VALID")), IMAGE),
    "FusedBatchNormV3": (lambda x, s: tf.raw_ops.FusedBatchNormV3(x=x, scale=s, offset=s, mean=s, variance=s * s, is_training=False).y,
                         IMAGE, Spec([6])),
    "FusedBatchNormGradV3": (gradient(lambda x, s: tf.compat.v1.nn.fused_batch_norm(x, s, s)[0]), IMAGE, Spec([6])),
    "FusedBatchNormV3 NCHW": (lambda x: tf.raw_ops.FusedBatchNormV3(x=x, scale=tf.ones(6), offset=tf.ones(6), mean=[], variance=[],
                                                                   data_format="NCHW").y, Spec([1, 6, 9, 1])),
    "broadcast": (lambda a, b, c: tf.where(a > b, a * c, b - c), Spec([5, 4, 3]), Spec([4, 1]), Spec([])),
    "AddN": (lambda a, b: tf.add_n([a, b, a]), Spec([5, 4]), Spec([5, 4])),
    "Cast": (lambda a: tf.cast(a, tf.int32), Spec([7, 2])),
    "Sum": (lambda a: (tf.reduce_sum(a, 1), tf.reduce_sum(a, [0, 2], keepdims=True)), Spec([5, 4, 3])),
    "Mean": (lambda a: tf.reduce_mean(a, [1]), Spec([5, 4, 3])),
    "Max": (lambda a: (tf.reduce_max(a, [0]), tf.reduce_min(a), tf.reduce_prod(a, -1)), Spec([5, 4])),
    "All": (lambda a: (tf.reduce_all(a > 0, 0), tf.reduce_any(a > 1, 1)), Spec([5, 4])),
    "ArgMax": (lambda a: tf.argmax(a, 1), Spec([5, 4])),
    "Softmax": (lambda a: (tf.nn.softmax(a), tf.nn.log_softmax(a)), Spec([5, 4, 3])),
    "SoftmaxCrossEntropyWithLogits": (gradient(lambda a, b: tf.nn.softmax_cross_entropy_with_logits(b, a)), Spec([5, 4]), Spec([5, 4])),
    "SparseSoftmaxCrossEntropyWithLogits": (lambda i, a: tf.nn.sparse_softmax_cross_entropy_with_logits(i, a), Spec([5], INDEX),
                                            Spec([5, 4])),
    "Transpose": (lambda a: tf.transpose(a, [2, 0, 1]), Spec([5, 4, 3])),
    "Reshape merges": (lambda a: tf.reshape(a, [5, 12]), Spec([5, 4, 3])),
    "Reshape splits": (lambda a: tf.reshape(a, [2, 2, 3, 1, 5]), Spec([12, 5])),
    "Reshape both": (lambda a: tf.reshape(a, [6, 10]), Spec([4, 15])),
    "Squeeze": (lambda a: tf.squeeze(a)[None, :, :, None], Spec([3, 1, 4, 1])),
    "ConcatV2": (lambda a, b: tf.concat([a, b, a], 1), Spec([5, 2, 3]), Spec([5, 4, 3])),
    "Split": (lambda a: tf.split(a, 2, 1) + tf.split(a, [1, 3], 1), Spec([5, 4, 3])),
    "Pack": (lambda a, b: tf.stack([a, b], 1), Spec([5, 4]), Spec([5, 4])),
    "Unpack": (lambda a: tf.unstack(a, axis=1), Spec([5, 3, 4])),
    "Slice": (lambda a: tf.slice(a, [0, 1, 0], [-1, 2, 3]), Spec([5, 4, 3])),
    "StridedSlice": (lambda a: a[:, 1, ::2, :], Spec([5, 4, 6, 3])),
    "Pad": (lambda a: tf.pad(a, [[0, 0], [1, 2], [0, 0]]), Spec([5, 4, 3])),
    "Tile": (lambda a: tf.tile(a, [1, 3, 1]), Spec([5, 2, 3])),
    "BroadcastTo": (lambda a: tf.broadcast_to(a, [3, 5, 4]), Spec([5, 1])),
    "Fill": (lambda a: tf.fill([5, 4], a) * 2.0, Spec([])),
    "GatherV2": (lambda a, i: tf.gather(a, i), Spec([4, 6]), Spec([5, 3], INDEX)),
    "ResizeBilinear": (lambda a: tf.image.resize(a, [4, 9]), IMAGE),
    "constants": (lambda a: a + np.arange(20, dtype=np.float32).reshape(5, 4), Spec([5, 4])),
    "no rule": (lambda a: tf.cumsum(tf.nn.relu(a) @ a), Spec([6, 6])),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operation_under_random_tilings(name):
    function, *specs = CASES[name]
    program = program_of(function, *specs)
    labels = find_labels(program)
    kind = name.split()[0]
    assert kind not in RULES or any(program.nodes[each].op == kind for each in labels)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        agree(program, tilings_of(labels, rng), labels, rng)


def test_tiles_by_hand():
    """x [5, 4] times w [4, 6] in 2 x 3 tiles: rows 3 and 2, columns of two; the bias is sliced, the result put together."""
    program = program_of(lambda x, w, b: x @ w + b, Spec([5, 4]), Spec([4, 6]), Spec([6]))
    labels = find_labels(program)
    (product,) = (name for name, node in program.nodes.items() if node.op == "MatMul")
    assert labels[product].inputs == (("i", "k"), ("k", "j"))
    assert labels[product].outputs == (("i", "j"),)
    cut = agree(program, {product: {"i": 2, "j": 3}}, labels, np.random.default_rng(0))
    graph = cut.imported()
    tiles = [graph.get_operation_by_name(f"{product}/tile_{i}_{j}").outputs[0].shape.as_list() for i in range(2) for j in range(3)]
    assert tiles == [[3, 2]] * 3 + [[2, 2]] * 3
    assert sum(node.op == "ConcatV2" for node in cut.nodes.values()) == 3  # two rows, then both
    summed = agree(program, {product: {"k": 2}}, labels, np.random.default_rng(0))
    assert [node.op for node in summed.nodes.values()].count("AddN") == 1


def test_what_two_operations_cut_alike_is_not_put_together():
    program = program_of(lambda x, w: tf.nn.relu(tf.nn.relu(x @ w) @ w), Spec([8, 4]), Spec([4, 4]))
    cut = cut_program(program, 2)
    kinds = [node.op for node in cut.nodes.values()]
    assert (kinds.count("MatMul"), kinds.count("Relu"), kinds.count("ConcatV2")) == (4, 4, 1)


def test_names_and_lines_are_the_users():
    program = program_of(lambda x: tf.nn.relu(x @ x, name="mine"), Spec([4, 4]))
    cut = cut_program(program, 2)
    tile = cut.nodes["mine/tile_0"]
    assert tile.origin == program.nodes["mine"].origin
    assert "test_cutting.py" in cut.line(tile)


@pytest.mark.parametrize(*crossed(name=MODELS, pieces=[2, 3]))
def test_models_cut_give_what_they_gave(name, pieces, tmp_path):
    function, inputs = MODELS[name]()
    graph = capture(function, inputs, model_folder=tmp_path / "cut.model", pieces=pieces)
    feeds = draw(graph, 0)
    outputs, updates = original_function(tmp_path / "cut.model")(feeds)
    # The file before cutting is what an uncut capture writes.
    capture(function, inputs, model_folder=tmp_path / "whole.model")
    whole = original_function(tmp_path / "whole.model")(feeds)
    if name != "random_state":
        close(outputs, whole[0])
    found = run_pieces(graph, feeds)
    close(found[0], outputs)
    close(found[1], updates)


@st.composite
def functions(draw_from):
    """A few layers of random kinds on [batch, rows, columns], some of them read twice."""
    batch, rows, columns = (draw_from(st.integers(1, 7)) for _ in range(3))
    kinds = draw_from(st.lists(st.sampled_from(["product", "turn", "merge", "softmax", "sum", "join", "slice", "add", "norm"]), min_size=2,
                               max_size=7))

    def compute(x, w):
        made = [x]
        for kind in kinds:
            y = made[-1]
            size = y.shape.as_list()
            if kind == "product":
                y = tf.matmul(y, y, transpose_b=True) / size[2]
            elif kind == "turn":
                y = tf.transpose(y, [1, 0, 2])
            elif kind == "merge":
                y = tf.reshape(y, [size[0] * size[1], size[2]])[:, :, None]
            elif kind == "softmax":
                y = tf.nn.softmax(y)
            elif kind == "sum":
                y = y - tf.reduce_sum(y, 1, keepdims=True)
            elif kind == "join":
                y = tf.concat([y, tf.nn.relu(y)], 2)
            elif kind == "slice" and size[1] > 1:
                y = y[:, 1:]
            elif kind == "add":
                y = y + (made[0] if made[0].shape == y.shape else w)
            elif kind == "norm":
                y = (y - tf.reduce_mean(y, 2, keepdims=True)) * tf.math.rsqrt(tf.reduce_max(y * y, 2, keepdims=True) + 1.0)
            made.append(y)
        return made[-1], tf.reduce_sum(made[len(made) // 2])
    return compute, Spec([batch, rows, columns]), Spec([])


@given(functions(), st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_any_function_under_any_tiling(function, seed, pieces):
    program, rng = program_of(*function), np.random.default_rng(seed)
    labels = find_labels(program)
    agree(program, tilings_of(labels, rng), labels, rng)
    feeds = values(program, rng)
    for found, expected in zip(evaluate(cut_program(program, pieces), feeds), evaluate(program, feeds), strict=True):
        near(found, expected)


def test_labels_are_told_to_the_choice():
    program = program_of(lambda x, w: tf.reduce_sum(tf.nn.relu(x @ w), 0), Spec([8, 4]), Spec([4, 6]))
    operations = labelled_operations(program, find_labels(program))
    product, relu, summed = operations
    assert [each.optional for each in operations] == [False, True, True]
    assert product.sizes == {"i": 8, "k": 4, "j": 6}
    assert relu.reads[0].tensor == product.writes[0].tensor
    assert summed.reads[0].labels == ("0", "1")
    assert summed.writes[0].labels == ("1",)
    assert list(itertools.chain(*(x.shape for x in product.reads[:2]))) == [8, 4, 4, 6]
