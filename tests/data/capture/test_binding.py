"""One binding for examples and calls: TensorFlow's type of the function. Names are paths, results have the original's structure."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from data.capture import capture
from data.capture.calls.concrete import concrete
from doppler_tf.errors import ConfigError
from tests.captured_models import Spec, run_pieces
from tests.messages import assert_says, refusal
from tests.signatures import Drawn, Named, Pair, Record, equal, functions
from tests.strategies import examples

X = np.array([1.0, 2.0, 3.0], np.float32)
SAME = tf.constant(X)  # one object in several places
KEPT = {}  # a method does not keep its object


def called(source, *args, **kwargs):
    """What the trace gives for a call that fits."""
    call = source.call(args, kwargs)
    assert not call.misfit
    return source.packed(source.function.inference_fn.call_flat(*call.tensors.values(), *source.function.captured_inputs))


@examples(0.05)
@given(functions())
def test_results_have_the_structure_types_and_values_of_the_original(drawn: Drawn):
    source = concrete(drawn.function, drawn.example, "drawn", drawn.keywords)
    names = [x.name for x in source.arguments]
    assert len(set(names)) == len(names)
    for args, kwargs in [*drawn.calls, *drawn.calls]:  # the second time as a call that is known
        equal(called(source, *args, **kwargs), drawn.function(*args, **kwargs))


def test_a_call_like_an_earlier_one_is_not_bound_anew(monkeypatch):
    """Structure, shapes and types tell: what differs there, or brings Python values, is bound as ever."""
    source = concrete(lambda d, x, *, scale=2.0: d["a"] * scale - d["b"] + x, ({"b": X, "a": X}, X), "known")
    call, bound = source.binding.__class__.call, []
    monkeypatch.setattr(source.binding.__class__, "call", lambda *args: bound.append(args) or call(*args))
    first, again = (called(source, {"a": a * X, "b": tf.constant(X)}, x=tf.constant(a * X)) for a in (1, 3))
    np.testing.assert_array_equal(first, 2 * X - X + X)
    np.testing.assert_array_equal(again, 6 * X - X + 3 * X)
    assert len(bound) == 2  # the first call, and how its tensors come from it
    np.testing.assert_array_equal(called(source, {"a": X, "b": X}, X), 2 * X)  # one array three times says nothing
    np.testing.assert_array_equal(called(source, {"a": X, "b": X}, X, scale=2.0), 2 * X)
    assert len(bound) > 3
    assert source.call(({"a": X[:2], "b": X[:2]}, X[:2]), {}).misfit
    with pytest.raises(ConfigError, match=r"expected 2\.0, a Python value"):
        source.call(({"a": X, "b": X}, X), {"scale": 3.0})


def test_pieces_give_a_gradient_of_an_embedding_beside_its_loss(tmp_path):
    table = tf.Variable(tf.reshape(tf.range(10.0), [5, 2]), name="table")

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        return {"loss": loss, "grad": tape.gradient(loss, table)}

    ids = tf.constant([1, 1])
    source = concrete(step, ids, "step")
    graph = capture(source, model_folder=tmp_path / "model")
    outputs, _ = run_pieces(graph, {"ids": ids})
    assert list(outputs) == ["grad/values", "grad/indices", "grad/dense_shape", "loss"]
    assert [x.get("composite") for x in graph.attributes["captured"]["outputs"]] == ["IndexedSlices"] * 3 + [None]
    equal(source.packed(list(map(tf.constant, outputs.values()))), step(ids))


@pytest.mark.parametrize(("function", "example", "names"), [
    (lambda d: d["b"]["zeta"] + d["a"][0] + d["a"][1], {"b": {"zeta": X}, "a": [X, X]}, ["d/a/0", "d/a/1", "d/b/zeta"]),
    (lambda *xs: xs[0] + xs[1], (X, X), ["xs/0", "xs/1"]),
    (lambda n: n.first + n.second.one, Pair(X, Record(X, 3)), ["n/first", "n/second/one"]),
    (lambda r: r.one + r.other, Record(SAME, SAME), ["r/one", "r/other"]),
    (lambda d: d["a"]["b"] + d["a/b"], {"a": {"b": X}, "a/b": X}, ["d/a/b", "d/a/b_1"]),
    (lambda d: d[7] + d[3], Named({7: X, 3: X}), ["d/3", "d/7"]),
    (lambda x, table=X: x + table, X, ["x", "table"]),
    (lambda r: r.flat_values * 2.0, tf.ragged.constant([[1.0], [2.0, 3.0]]), ["r/flat_values", "r/row_splits"]),
])
def test_arguments_are_named_by_their_path(function, example, names):
    assert [x.name for x in concrete(function, example, "f").arguments] == names


def test_results_of_sparse_arguments_need_their_shape_named(tmp_path):
    """As the remedy says: the shape of a sparse argument is known in a call alone."""
    sparse, weight = tf.SparseTensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 3]), tf.ones([3, 4])

    def product(s):
        return tf.sparse.sparse_dense_matmul(s, weight)

    said = refusal(ConfigError, capture, product, sparse, model_folder=tmp_path / "m", name="f")
    assert_says(said, "'(None, 4)'", "name it (tf.ensure_shape)")
    source = concrete(lambda s: tf.ensure_shape(product(s), [2, 4]), sparse, "f")
    graph = capture(source, model_folder=tmp_path / "model")
    outputs, _ = run_pieces(graph, {name: x.numpy() for name, x in source.call((sparse,), {}).tensors.items()})
    np.testing.assert_array_equal(outputs["output"], [[1.0] * 4, [2.0] * 4])


def test_a_dataclass_that_tensorflow_has_met_before_is_refused():
    @dataclasses.dataclass
    class Known:
        one: object

    tf.nest.flatten(Known(X))
    assert_says(refusal(ConfigError, concrete, lambda k: k.one + 1.0, Known(X), "f"), "Known: dataclass", "it met before", "__tf_flatten__")


def frozen():
    weight = tf.Variable(X)
    return convert_variables_to_constants_v2(tf.function(lambda x, y: x * weight + y).get_concrete_function(Spec([3]), Spec([3])))


def method():
    class Layer(tf.Module):
        weight = tf.Variable(X)

        @tf.function
        def step(self, x, y, scale=2):
            return x * self.weight + y * scale
    return KEPT.setdefault("layer", Layer()).step


def keras_model():
    first, second = tf_keras.Input((3,), name="first"), tf_keras.Input((3,), name="second")
    model = tf_keras.Model({"x": first, "y": second}, tf_keras.layers.Add()([first, second]))
    return lambda x, y: model({"x": x[None], "y": y[None]})


@pytest.mark.parametrize("make", [
    frozen, method, keras_model, lambda: tf.function(lambda x, y: x - y).get_concrete_function(Spec([3]), Spec([3])),
    lambda: functools.partial(lambda z, x, y: x * z - y, X),
    lambda: tf.compat.v1.wrap_function(lambda x, y: (x - y, {"x": x}), [Spec([3])] * 2),
])
def test_whatever_can_be_called_is_bound_as_the_original(make):
    function = make()
    source = concrete(function, (X, X), "f")
    one, two = tf.constant(X), tf.constant(X + 1.0)
    equal(called(source, one, two), function(one, two))
    names = [x.name.partition("/")[0] for x in source.arguments]
    if "arg_0" not in names:
        equal(called(source, one, **{names[1]: two}), function(one, **{names[1]: two}))


def test_a_concrete_function_says_of_itself_what_it_takes():
    source = concrete(frozen(), None, "f")
    assert [(x.name, x.shape) for x in source.arguments] == [("x", (3,)), ("y", (3,))]
    traced = tf.function(lambda d, k=2: d["z"] * k + d["a"]).get_concrete_function({"z": Spec([None]), "a": Spec([None])}, k=3)
    source = concrete(traced, {"z": X, "a": X}, "f")
    np.testing.assert_array_equal(called(source, {"z": X, "a": X + 1.0}), X * 3 + X + 1.0)
    np.testing.assert_array_equal(called(source, {"z": X, "a": X}, k=3), X * 4)
    assert_says(refusal(ConfigError, concrete, traced, {"z": X}, "f"), "expected d/a, d/z, as the function was traced, got d/z")


def test_calls_that_do_not_fit_are_refused_in_one_line():
    source = concrete(lambda d, scale=2.0, *, only: d["a"] * scale + only, {"a": X}, "f", {"only": X})
    for (args, kwargs), words in [
        (((), {}), "f: expected arguments for (d, scale=..., *, only), got a call that does not fit: missing a required argument: 'd'"),
        ((({"a": X},), {}), "missing a required argument: 'only'"), ((({"a": X},), {"only": X, "more": 1}), "keyword argument 'more'"),
        ((({"a": X}, 3.0), {"only": X}), "argument scale: expected 2.0, a Python value that the function was captured with, got 3.0"),
        ((({"a": X}, np.int32(2)), {"only": X}), "expected 2.0, a Python value that the function was captured with, got int32 2; "),
        ((({"a": X}, "2"), {"only": X}), "with, got '2'; "), ((({"a": X}, X), {"only": X}), "with, got a tensor of float32["),
        ((({"b": X},), {"only": X}), "argument d: expected d/a, as in the example, got d/b"),
        ((([X],), {"only": X}), "argument d: expected d/a, as in the example, got d/0"),
        ((({"a": X, 3: X},), {"only": X}), "argument d: expected d/a, as in the example, got {'a': "),
        ((({"a": "text"},), {"only": None}), "argument only: expected a tensor, as in the example, got None"),
    ]:
        assert_says(refusal(ConfigError, source.call, args, kwargs), words)
    ragged = concrete(lambda r: r.flat_values * 2.0, tf.ragged.constant([[1.0], [2.0]]), "f")
    assert_says(refusal(ConfigError, ragged.call, (X,), {}), "argument r: expected a RaggedTensor, as in the example")


@pytest.mark.parametrize(("function", "value", "dtype"), [
    (lambda x: x * 2, np.array([1, 2, 3]), None), (lambda x: x * 2, np.float64([1, 2, 3]), None), (lambda x: x * 2, [1, 2, 3], "float32"),
    (tf.function(lambda x: x * 2, input_signature=[Spec([3])]), np.array([1, 2, 3]), "float32"),
    (tf.function(lambda x: x * 2, input_signature=[Spec([3])]), tf.constant([1, 2, 3]), None),
    (tf_keras.layers.Rescaling(2.0), np.float64([1, 2, 3]), "float32"), (tf_keras.layers.Rescaling(2.0), tf.constant([1, 2, 3]), "float32"),
    (tf.function(lambda x: x * 2, input_signature=[Spec([3], tf.int32)]), np.array([1.5, 2.0, 3.0]), None),
    (tf.function(lambda x: x * 2, input_signature=[Spec([3], tf.int8)]), np.array([1, 2, 300]), None),
])
def test_numbers_of_another_type_are_turned_into_it_where_the_original_does_so_without_a_loss(function, value, dtype):
    own = getattr(function, "input_signature", None)
    source = concrete(function, Spec([3], own[0].dtype if own else tf.float32), "f")
    call = source.call((value,), {})
    assert (call.misfit == "") == (dtype is not None)
    if dtype:
        assert [x.dtype.name for x in call.tensors.values()] == [dtype]


def test_a_python_value_that_an_example_gives_or_leaves_out_is_part_of_the_function():
    model = tf_keras.Sequential([tf_keras.layers.Dense(2)])
    source = concrete(lambda x, m=model, training=False: m(x, training=training), X[None], "f")
    equal(called(source, X[None], model), model(X[None]))
    equal(called(source, X[None], training=False), model(X[None]))
    assert_says(refusal(ConfigError, source.call, (X[None], model, True), {}), "argument training: expected False")
    assert_says(refusal(ConfigError, source.call, (X[None], lambda x: x), {}), "argument m: expected")
