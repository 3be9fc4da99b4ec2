"""Models of twelve kinds, as a user would write them: what `benchmarks.models` captures. Weights are random, batches small."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf
from tf_keras import Input, Model, Sequential, applications, layers, optimizers

from data.capture import Source, read_source

BATCH = 4
# Keras 3 exports the model in a process of its own, as our libraries need Keras 2.
_KERAS_3 = """import sys, keras
from keras import layers
x = keras.Input((96, 96, 3))
sides = [layers.Conv2D(48, size, activation="gelu")(layers.Conv2D(32, 3, strides=2)(x)) for size in (3, 5, 7)]
sides = [layers.GlobalAveragePooling2D()(side) for side in sides]
keras.Model(x, layers.Dense(10)(layers.Concatenate()(sides))).export(sys.argv[1], verbose=False)"""


def application(make: Callable, side: int, batch: int = BATCH) -> Callable[[Path], Source]:
    """Makes one of Keras' models for square images."""
    def build(folder: Path) -> Source:
        # Under random weights the softmax of the classes is nearly constant, which would hide wrong outputs: the logits are compared.
        return _source(make(weights=None, input_shape=(side, side, 3), classifier_activation=None), [batch, side, side, 3])
    return build


def _source(function, *shapes: list[int]) -> Source:
    name = getattr(function, "name", None) or function.__name__
    return Source(function, tuple(map(tf.TensorSpec, shapes)), name, name)


def two_towers(folder: Path) -> Source:
    """An image tower and a text tower, whose features are compared."""
    images, words = Input((64, 64, 3), batch_size=BATCH), Input((64,), batch_size=BATCH, dtype=tf.int32)
    x, y = images, layers.Embedding(1000, 256)(words)
    for filters in (32, 64, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    for _ in range(3):
        y = layers.Conv1D(512, 5, padding="same", activation="relu")(y)
    left, right = layers.Dense(128)(layers.GlobalAveragePooling2D()(x)), layers.Dense(128)(layers.GlobalAveragePooling1D()(y))
    model = Model([images, words], layers.Dot(1)([left, right]), name="two_towers")
    return Source(model, ([tf.TensorSpec([BATCH, 64, 64, 3]), tf.TensorSpec([BATCH, 64], tf.int32)],), model.name, model.name)


def transformer(folder: Path, depth: int = 2) -> Source:
    """Layers of an encoder with four heads."""
    tokens = Input((128, 256), batch_size=BATCH)
    x = tokens
    for _ in range(depth):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 64)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(256)(layers.Dense(1024, activation="gelu")(x)))
    return _source(Model(tokens, x, name="transformer"), [BATCH, 128, 256])


def keras_3(folder: Path) -> Source:
    """Three branches, exported by Keras 3."""
    exported = folder / "keras_3"
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", _KERAS_3, str(exported)], env=environment, check=True, capture_output=True)
    return read_source(str(exported), batch=BATCH)


def lstm(folder: Path) -> Source:
    """LSTMs that read a sequence from both ends."""
    sequence = Input((64, 64), batch_size=BATCH)
    return _source(Model(sequence, layers.Dense(10)(layers.Bidirectional(layers.LSTM(128))(sequence)), name="lstm"), [BATCH, 64, 64])


def branch(folder: Path) -> Source:
    """Experts of which a condition chooses one, beside one that always works."""
    dense = [layers.Dense(1024, activation="relu") for _ in range(4)]
    for layer in dense:
        layer.build((None, 1024))

    @tf.function
    def experts(x):
        chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: dense[1](dense[0](x)), lambda: dense[2](x))
        return chosen + dense[3](dense[3](x))
    return _source(experts, [64, 1024])


def adam_step(folder: Path) -> Source:
    """A training step of two towers with Adam."""
    x = Input((256,), batch_size=64)
    towers = []
    for _ in range(2):
        y = x
        for _ in range(3):
            y = layers.Dense(512, activation="relu")(y)
        towers.append(y)
    model, optimizer = Model(x, layers.Dense(1)(layers.Concatenate()(towers))), optimizers.Adam(1e-3)
    return _source(_step(model, optimizer, lambda y, found: (found - y) ** 2, "adam_step"), [64, 256], [64, 1])


def cnn_step(folder: Path) -> Source:
    """A training step of a convolutional network with Adam."""
    model = Sequential([Input((32, 32, 3)), *(layers.Conv2D(filters, 3, strides, padding="same", activation="relu")
                                              for filters, strides in ((32, 1), (64, 2), (128, 1), (128, 2))),
                        layers.GlobalAveragePooling2D(), layers.Dense(10)])
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits
    step = _step(model, optimizers.Adam(1e-3), loss, "cnn_step")
    return Source(step, (tf.TensorSpec([32, 32, 32, 3]), tf.TensorSpec([32], tf.int32)), "cnn_step", "cnn_step")


def _step(model: Model, optimizer, losses: Callable, name: str):
    """A step that reads and updates the model and the optimizer's state."""
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss
    step.__name__ = name
    return tf.function(step)


MODELS: dict[str, Callable[[Path], Source]] = {
    "resnet50": application(applications.ResNet50, 96), "inception_v3": application(applications.InceptionV3, 139),
    "mobilenet_v2": application(applications.MobileNetV2, 128), "densenet121": application(applications.DenseNet121, 96),
    "efficientnet_b0": application(applications.EfficientNetB0, 96), "nasnet_mobile": application(applications.NASNetMobile, 96),
    "two_towers": two_towers, "transformer": transformer, "keras_3": keras_3, "lstm": lstm, "branch": branch, "adam_step": adam_step,
}
# Images of the published sizes, and a training step that computes more than it moves; only run when they are named.
LARGE: dict[str, Callable[[Path], Source]] = {
    "resnet50_224": application(applications.ResNet50, 224, 8), "inception_v3_299": application(applications.InceptionV3, 299, 8),
    "cnn_step": cnn_step,
}
