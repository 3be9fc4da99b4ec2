"""Small models of every kind to capture, and an interpreter that runs a captured graph piece by piece."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras import layers

from runtime.models.captured import Work, captured_model, piece_function

Spec = tf.TensorSpec


def draw(graph, seed):
    """An array for each argument, by name."""
    rng = np.random.default_rng(seed)
    return {x["name"]: rng.normal(size=x["shape"]).astype(x["dtype"]) if x["dtype"].startswith("float")
            else rng.integers(0, 2, x["shape"]).astype(x["dtype"]) for x in graph.attributes["captured"]["inputs"]}


def run_pieces(graph, feeds):
    """Outputs and updated variables by name: the pieces run one after another, each on what the pieces before have given."""
    captured = graph.attributes["captured"]
    model, index = captured_model(captured["model"]), graph.vertex_of
    made = {index[x["vertex"]]: [tf.constant(feeds[x["name"]], x["dtype"])] for x in captured["inputs"]}
    made |= {index[x["vertex"]]: [tf.constant(model.weight(x["variable"]))] for x in captured["weights"]}
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            function = piece_function(model, Work.of(graph.kernel[v].params))
            made[v] = function(*(made[o.vertex][o.output] for o in graph.kernel[v].operands))

    def results(records, key):
        return {x[key]: made[index[x["vertex"]]][x["output"]].numpy() for x in records}

    return results(captured["outputs"], "name"), results(captured["updates"], "variable")


def close(found, expected):
    """Asserts that two mappings of arrays agree within 1e-5."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def dense():
    model = tf_keras.Sequential([layers.Dense(8, activation="relu", input_shape=(4,)), layers.Dense(3)])
    return model, Spec([2, 4])


def convolution():
    return tf_keras.Sequential([layers.Conv2D(4, 3, input_shape=(8, 8, 3)), layers.BatchNormalization(), layers.ReLU(),
                                layers.DepthwiseConv2D(3), layers.GlobalAveragePooling2D()]), Spec([2, 8, 8, 3])


def several_outputs():
    @tf.function
    def split(x):
        a, b, c = tf.split(x, 3, axis=1)
        return {"joined": tf.concat([c, a], 1), "top": tf.math.top_k(a @ b, 2), "rows": tf.unstack(x)}
    return split, Spec([3, 9])


def embedding():
    return tf_keras.Sequential([layers.Embedding(50, 8, input_length=6), layers.Flatten(), layers.Dense(2)]), Spec([2, 6], tf.int32)


def lstm():
    return tf_keras.Sequential([layers.LSTM(8, return_sequences=True, input_shape=(5, 4)), layers.LSTM(4)]), Spec([2, 5, 4])


def attention():
    x = layers.Input((5, 16))
    return tf_keras.Model(x, layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))), Spec([2, 5, 16])


def loop():
    weight = tf.Variable(tf.eye(3) * 0.5, name="weight")

    @tf.function
    def power(x):
        return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.tanh(y @ weight)), (0, x))[1] + 1.0
    return power, Spec([3, 3])


def branch():
    weight = tf.Variable(tf.eye(3), name="weight")

    @tf.function
    def choose(x):
        y = x @ weight
        if tf.reduce_sum(x) > 0.0:
            y = y * 2.0
        else:
            weight.assign_add(x)
            y = y - weight
        return y + weight
    return choose, Spec([3, 3])


def nested():
    count = tf.Variable(2.0, name="count")

    @tf.function
    def inner(x):
        count.assign_add(1.0)
        return x * count

    @tf.function
    def outer(x):
        y = inner(inner(x)) + count
        count.assign(0.5)
        return y + count
    return outer, Spec([2])


def passed_through():
    return (lambda x: {"same": x, "constant": tf.constant([3.0]), "doubled": (x + x, None)}), Spec([2])


def random_state():
    generator = tf.random.Generator.from_seed(3)
    return tf.function(lambda x: (x + generator.normal([3]), generator.uniform([2]))), Spec([3])


def dynamic_inside():
    """`unique` makes a tensor whose size depends on data; the sum does not."""
    return tf.function(lambda x: tf.reduce_sum(tf.cast(tf.unique(x)[0], tf.float32))), Spec([6], tf.int32)


def asserting():
    @tf.function
    def check(x):
        tf.debugging.assert_less(x, 100.0)
        return tf.nn.relu(x)
    return check, Spec([2])


def training_step(optimizer):
    """A step that reads and updates weights and the optimizer's state."""
    def make():
        model = tf_keras.Sequential([layers.Dense(16, activation="relu", input_shape=(4,)), layers.Dense(3)])
        chosen = optimizer()

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                losses = tf_keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
                loss = tf.reduce_mean(losses)
            chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
            return loss
        return step, (Spec([6, 4]), Spec([6], tf.int64))
    return make


MODELS = {make.__name__: make for make in (dense, convolution, several_outputs, embedding, lstm, attention, loop, branch, nested,
                                           passed_through, random_state, dynamic_inside, asserting)}
MODELS |= {"adam": training_step(tf_keras.optimizers.Adam), "legacy_adam": training_step(tf_keras.optimizers.legacy.Adam),
           "momentum": training_step(lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9))}
