"""Places a Keras model with two towers on two devices, calls it, and hands it back as a SavedModel.

Run from the repository root: .venv/bin/python -m examples.keras_model [FOLDER]
FOLDER gets the SavedModel, which TensorFlow alone runs (default: a temporary folder).
"""

import sys
import tempfile

import doppler_tf

doppler_tf.prepare_devices(2)  # before TensorFlow's first operation

import numpy as np  # noqa: E402
from tf_keras import Input, Model, layers  # noqa: E402


def build() -> Model:
    """Two towers of convolutions, whose features are joined."""
    images = Input((64, 64, 3), batch_size=8)
    features = []
    for size in (3, 5):
        x = images
        for filters in (16, 32, 32):
            x = layers.Conv2D(filters, size, padding="same", activation="relu")(x)
        features.append(layers.GlobalAveragePooling2D()(x))
    return Model(images, layers.Dense(10)(layers.Concatenate()(features)))


def main() -> None:
    model = build()
    images = np.random.default_rng(0).normal(size=(8, 64, 64, 3)).astype(np.float32)
    with doppler_tf.distribute(model, images, topology="cpu:2", budget_s=2) as placed:
        found, expected = placed(images).numpy(), model(images).numpy()
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        print(placed.report())
        print(f"{placed.graph.name}: {len(placed.graph.work_vertices)} vertices, run by {placed.executor}")
        print(f"relative error against the model: {error:.1e} ({'ok' if error <= 1e-5 else 'wrong'})")
        folder = sys.argv[1] if len(sys.argv) > 1 else f"{tempfile.mkdtemp()}/placed"
        print(f"handed back as {placed.export(folder)}")


if __name__ == "__main__":
    main()
