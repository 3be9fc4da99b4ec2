"""All of Keras 2 is captured, whole and in two pieces: layers, steps of optimizers, losses and networks compute what they did."""

from __future__ import annotations

import functools
import inspect
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from data.capture import capture
from data.capture.kinds import Kind, kind_of
from runtime.models.captured import captured_model, original_function
from tests import keras_classes
from tests.captured_models import draw, run_pieces

TRAINED = sorted(name for name in keras_classes.LAYERS if "training" in inspect.signature(getattr(tf_keras.layers, name).call).parameters)


def agrees(found, expected):
    """Asserts that ||a - b|| <= 1e-4 ||b||, where both are not a number or infinite in the same places."""
    found, expected = (np.asarray(x).astype(np.float64) for x in (found, expected))
    assert found.shape == expected.shape
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    assert np.linalg.norm(np.where(same, 0.0, found - expected)) <= 1e-4 * np.linalg.norm(np.nan_to_num(expected)) + 1e-6


def captured_agrees(function, specs, folder, live=None):
    """Captures whole and in two pieces; the pieces must give what the function gives. Args: live: called with the arguments, last."""
    for pieces in (None, 2):
        graph = capture(function, specs, model_folder=folder / f"{pieces}.model", pieces=pieces)
        feeds = draw(graph, 0)
        outputs, updates = original_function(folder / f"{pieces}.model")(feeds)
        drawn = any(kind_of(node.op, node.attr) is Kind.RANDOM
                    for node in captured_model(folder / f"{pieces}.model").original.nodes.values())
        found = run_pieces(graph, feeds)
        for values, others in zip(found, (outputs, updates), strict=True):
            assert values.keys() == others.keys()
            for name, value in others.items():
                assert values[name].shape == value.shape
                if not drawn:
                    agrees(values[name], value)
    if live is not None and not drawn:
        given = iter(feeds.values())
        result = live(*tf.nest.map_structure(lambda spec: tf.constant(next(given), spec.dtype), specs))
        for value, expected in zip(outputs.values(), tf.nest.flatten(result), strict=True):
            agrees(value, expected)


def test_every_class_is_tested_or_left_out_with_a_reason():
    named = {"layers": (keras_classes.LAYERS, keras_classes.LAYERS_LEFT_OUT, tf_keras.layers.Layer),
             "losses": (keras_classes.LOSSES, keras_classes.LOSSES_LEFT_OUT, tf_keras.losses.Loss)}
    for module, (tested, left_out, base) in named.items():
        classes = getattr(tf_keras, module)
        assert {getattr(classes, name) for name in (*tested, *left_out)} == {*keras_classes.classes(classes, base).values()}
    families = {name for name, value in vars(tf_keras.applications).items() if isinstance(value, types.ModuleType)}
    tested = {getattr(tf_keras.applications, name).__module__.rpartition(".")[2] for name in keras_classes.APPLICATIONS}
    assert tested | {*keras_classes.FAMILIES_LEFT_OUT} == families
    assert len(keras_classes.APPLICATIONS) == 14


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*keras_classes.LAYERS} - keras_classes.ONLY_IN_TRAINING))
def test_a_layer(name, tmp_path):
    make, specs = keras_classes.LAYERS[name]
    layer = make()
    compute = tf.function(functools.partial(layer, training=False) if name in TRAINED else layer.__call__)
    captured_agrees(compute, specs, tmp_path, compute)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAINED)
def test_a_layer_in_training(name, tmp_path):
    make, specs = keras_classes.LAYERS[name]
    layer = make()
    compute = tf.function(functools.partial(layer, training=True))
    captured_agrees(compute, specs, tmp_path, compute)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options"), [(name, options) for name in sorted({*keras_classes.OPTIMIZERS}
                         - {*keras_classes.OPTIMIZERS_LEFT_OUT}) for options in ({}, *keras_classes.OPTIMIZER_OPTIONS.get(name, ()))])
def test_a_step_of_an_optimizer(name, options, tmp_path):
    step, specs = keras_classes.optimizer_step(keras_classes.optimizer(name, options))
    captured_agrees(step, specs, tmp_path, step)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*keras_classes.LOSSES} - {*keras_classes.LOSSES_LEFT_OUT}))
def test_a_loss(name, tmp_path):
    compute, specs = keras_classes.loss_and_gradient(name)
    captured_agrees(compute, specs, tmp_path, compute)


@pytest.mark.thorough
@pytest.mark.parametrize("name", keras_classes.APPLICATIONS)
def test_an_application(name, tmp_path):
    model, spec = keras_classes.application(name)
    captured_agrees(model, (spec,), tmp_path, lambda x: model(x, training=False))
