"""Trains a Keras model for 20 steps, each of which runs on two devices, and compares the losses with TensorFlow's.

Run from the repository root: .venv/bin/python -m examples.training_step
"""

import doppler_tf

doppler_tf.prepare_devices(2)  # before TensorFlow's first operation

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tf_keras import Sequential, layers, optimizers, utils  # noqa: E402

STEPS = 20


def main() -> None:
    utils.set_random_seed(0)
    model = Sequential([layers.Dense(128, activation="relu", input_shape=(32,)), layers.Dense(128, activation="relu"), layers.Dense(1)])
    optimizer = optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)  # a captured function makes no variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    data = [(x, np.sin(x.sum(axis=1, keepdims=True))) for x in rng.normal(size=(STEPS, 64, 32)).astype(np.float32)]
    with doppler_tf.distribute(step, data[0], topology="cpu:2", budget_s=2) as placed:
        losses = [float(placed(x, y)) for x, y in data]
        # The placed function has variables of its own. Their names are those of the model.
        kernel = placed.variables[model.layers[0].kernel.name.partition(":")[0]]
    expected = [float(step(x, y)) for x, y in data]
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {STEPS} steps")
    largest = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    print(f"largest difference from TensorFlow's losses: {largest:.1e} ({'ok' if largest <= 1e-4 else 'wrong'})")
    print(f"largest difference of the first kernel: {np.abs(kernel - model.layers[0].kernel.numpy()).max():.1e}")


if __name__ == "__main__":
    main()
