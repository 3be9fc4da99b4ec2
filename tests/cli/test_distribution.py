"""`doppler_tf.distribute`: a function of the user's own on two devices, in one call."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras import layers

import doppler_tf
from doppler_tf.errors import ConfigError
from tests.messages import assert_says, refusal


def towers():
    x = tf_keras.Input((8, 8, 3), batch_size=2)
    sides = [layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(x)) for _ in range(2)]
    return tf_keras.Model(x, {"joined": layers.Dense(3)(layers.Concatenate()(sides)), "left": sides[0]})


def batch(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 8, 8, 3)).astype(np.float32)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_model_gives_what_it_gave(in_flight, tmp_path):
    model = towers()
    with doppler_tf.distribute(model, batch(0), topology="cpu:2", budget_s=0.2, in_flight=in_flight) as placed:
        for seed in (1, 2):
            found, expected = placed(batch(seed)), model(batch(seed))
            assert found.keys() == {"joined", "left"}
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
        batches = [batch(seed) for seed in range(5)]
        for found, x in zip(placed.map(batches), batches, strict=True):
            np.testing.assert_allclose(found["joined"], model(x)["joined"], rtol=1e-5, atol=1e-6)
        assert placed.predicted_s > 0
        assert len(placed.pattern) == in_flight
        assert any("conv2d" in name for name in placed.graph.names)
        assert_says(refusal(ConfigError, placed, batch(0)[:1]), "expected shape [2, 8, 8, 3], as in the example, got (1, 8, 8, 3)")
        assert_says(refusal(ConfigError, placed, batch(0), 1), "expected 1 arguments, as in the example, got 2")
        lines = str(placed).splitlines()
        assert lines[0] == "Distributed"
        assert [name for name in ("function: ", "makespan: ", "lower bound: ", "last run: ") if name not in str(placed)] == []
        assert len(lines) <= 8
        assert "data:image/png;base64," in placed._repr_html_()
        assert placed.plot().axes
        placed.export(tmp_path / "placed")
    exported = tf.saved_model.load(str(tmp_path / "placed")).signatures["serving_default"]
    (argument,) = exported.structured_input_signature[1]
    found = exported(**{argument: tf.constant(batch(1))})
    np.testing.assert_allclose(sorted(found.items())[0][1], model(batch(1))["joined"], rtol=1e-5, atol=1e-6)


def test_a_training_step_has_the_losses_of_the_original():
    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([layers.Dense(8, activation="relu", input_shape=(4,)), layers.Dense(1)])
    optimizer = tf_keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(6, 1)).astype(np.float32)) for _ in range(20)]
    before = [variable.numpy() for variable in model.variables]
    losses = []
    for in_flight in (1, 2):
        with doppler_tf.distribute(step, data[0], topology="cpu:2", budget_s=0.2, in_flight=in_flight) as placed:
            losses.append([float(placed(*pair)) for pair in data] if in_flight == 1 else [float(loss) for loss in placed.map(data)])
            variables = placed.variables
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)  # its variables are copies
    expected = [float(step(*pair)) for pair in data]
    for found in losses:
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    for variable in model.variables:
        np.testing.assert_allclose(variables[variable.name.partition(":")[0]], variable, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pieces", [2, 3])
def test_a_model_that_is_cut_gives_what_it_gave(pieces, tmp_path):
    model = towers()
    with doppler_tf.distribute(model, batch(0), topology="cpu:2", budget_s=0.2, pieces=pieces) as placed:
        cut = [name for v in placed.graph.work_vertices for name in placed.graph.kernel[v].params["nodes"] if "Conv2D/tile_" in name]
        assert len(cut) == 2 * pieces
        for name, value in model(batch(1)).items():
            np.testing.assert_allclose(placed(batch(1))[name], value, rtol=1e-5, atol=1e-6)
        placed.export(tmp_path / "placed")
    exported = tf.saved_model.load(str(tmp_path / "placed")).signatures["serving_default"]
    (argument,) = exported.structured_input_signature[1]
    found = exported(**{argument: tf.constant(batch(1))})
    np.testing.assert_allclose(sorted(found.items())[0][1], model(batch(1))["joined"], rtol=1e-5, atol=1e-6)


def test_numbers_that_are_none():
    for name in ("in_flight", "pieces"):
        message = refusal(ConfigError, doppler_tf.distribute, towers(), batch(0), **{name: 0})
        assert_says(message, f"{name}: expected an integer >= 1, got 0")
