"""Calls a chain of layers with 16 batches, one and two of them at a time, on two devices: a chain gains only by batches in flight.

Run from the repository root: .venv/bin/python -m examples.batches_in_flight
"""

import time

import doppler_tf

doppler_tf.prepare_devices(2)  # before TensorFlow's first operation

import numpy as np  # noqa: E402
from tf_keras import Sequential, layers  # noqa: E402


def main() -> None:
    model = Sequential([layers.Conv2D(32, 3, activation="relu", input_shape=(64, 64, 3)), layers.Conv2D(32, 3, activation="relu"),
                        layers.Conv2D(32, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(10)])
    batches = list(np.random.default_rng(0).normal(size=(16, 4, 64, 64, 3)).astype(np.float32))
    for in_flight in (1, 2):
        with doppler_tf.distribute(model, batches[0], topology="cpu:2", budget_s=2, in_flight=in_flight) as placed:
            list(placed.map(batches))  # the first calls take longer
            started = time.perf_counter()
            found = list(placed.map(batches))
            seconds = time.perf_counter() - started
            error = max(np.abs(y.numpy() - model(x).numpy()).max() for x, y in zip(batches, found, strict=True))
            print(f"{in_flight} in flight: {1e3 * seconds / len(batches):.2f} ms a batch, predicted {1e3 * placed.predicted_s:.2f} ms, "
                  f"largest error {error:.1e}")


if __name__ == "__main__":
    main()
