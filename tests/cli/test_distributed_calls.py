"""What a distributed function says when it is called where it cannot be: closed, traced, copied, or under a tape."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf

import doppler_tf
from doppler_tf.errors import ConfigError
from tests.messages import assert_says, refusal

WAYS = ("engine", "TensorFlow's executor", "TensorFlow alone")


@pytest.fixture(params=WAYS)
def placed(request):
    total = tf.Variable(np.float32(1.0), name="total")

    @tf.function
    def scaled(x):
        return x * x * total.assign_add(1.0)

    with doppler_tf.distribute(scaled, tf.ones((3, 4)), topology="cpu:2", budget_s=None, pieces=1, executor=request.param) as found:
        yield found


def test_nothing_runs_after_it_is_closed(placed, tmp_path):
    batches = placed.map([tf.ones((3, 4))] * 3)
    next(batches)
    placed.close()
    placed.close()
    for call in (lambda: placed(tf.ones((3, 4))), lambda: next(batches), lambda: placed.map([]), lambda: placed.export(tmp_path / "x")):
        assert_says(refusal(ConfigError, call), "scaled: closed: expected calls before close()")


def test_a_traced_call_is_refused(placed):
    told = "expected a call with values, got one while another function is traced; call it outside of a tf.function or Dataset.map"
    with pytest.raises(Exception, match=told):
        tf.function(placed, autograph=False)(tf.ones((3, 4)))
    with pytest.raises(Exception, match=told):
        tf.data.Dataset.from_tensors(tf.ones((3, 4))).map(placed)
    assert [y.shape for y in placed.map(tf.data.Dataset.from_tensors(tf.ones((3, 4))))] == [(3, 4)]


def test_nothing_is_distributed_while_a_function_is_traced():
    def outer(x):
        doppler_tf.distribute(lambda y: y + 1.0, x, topology="cpu:2", budget_s=None)

    with pytest.raises(ConfigError, match="distribute: expected a call with values, got one while another function is traced"):
        tf.function(outer, autograph=False)(tf.ones(3))


def test_what_is_no_tensor_and_no_mapping_is_refused(placed):
    assert_says(refusal(ConfigError, placed, tf.keras.Input((4,), batch_size=3)), "argument x: expected a tensor, as in the example")
    with pytest.raises(ConfigError, match="scaled: variables: expected names with values, got None"):
        placed.variables = None


def test_a_tape_is_told_once_that_gradients_do_not_pass(placed):
    x = tf.Variable(tf.ones((3, 4)))
    with warnings.catch_warnings(), tf.GradientTape():
        warnings.simplefilter("error")
        placed(tf.ones((3, 4)))  # which is not watched
    with pytest.warns(UserWarning, match="called under a GradientTape, but gradients do not pass through it"), tf.GradientTape() as tape:
        y = placed(x)
    assert tape.gradient(y, x) is None
    with warnings.catch_warnings(), tf.GradientTape():
        warnings.simplefilter("error")
        placed(x)


def test_variables_are_known_before_the_first_call(placed):
    assert {name: value.tolist() for name, value in placed.variables.items()} == {"total": 1.0}
    np.testing.assert_array_equal(placed(tf.ones((3, 4))), np.full((3, 4), 2.0))
    assert placed.variables["total"] == 2.0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused(copied):
    with doppler_tf.distribute(lambda x: x + 1.0, tf.ones(3), topology="cpu:2", budget_s=None, pieces=1) as placed:
        assert_says(refusal(ConfigError, copied, placed), "expected no copy of a distributed function", "export() writes one")


@pytest.mark.parametrize(("option", "told"), [
    ({"folder": 3}, "folder: expected a path, or None for a temporary one, got 3"), ({"folder": ""}, "folder: expected a path"),
    ({"keep_devices": "yes"}, "keep_devices: expected"), ({"freeze_variables": None}, "freeze_variables: expected")])
def test_options_are_checked(option, told):
    assert_says(refusal(ConfigError, doppler_tf.distribute, lambda x: x, tf.ones(3), "cpu:2", **option), f"distribute: {told}")


def test_batches_must_be_iterable():
    with doppler_tf.distribute(lambda x: x + 1.0, tf.ones(3), topology="cpu:2", budget_s=None, pieces=1) as placed:
        assert_says(refusal(ConfigError, placed.map, 3), "map: batches: expected an iterable of batches, got 3")


def test_a_model_of_keras_3_is_named():
    class Newer:
        def __call__(self, x):
            return x

    Newer.__module__ = "keras.src.models.sequential"
    assert_says(refusal(ConfigError, doppler_tf.distribute, Newer(), tf.ones((2, 4)), "cpu:2"), "expected a model of Keras 2 (tf_keras)",
                "got one of Keras 3; save it with model.export(FOLDER)")
