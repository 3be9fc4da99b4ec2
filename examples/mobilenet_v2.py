"""MobileNetV2 of Keras, as the demo captures it; run alone, it is distributed and shown beside TensorFlow alone.

Run from the repository root: .venv/bin/python -m examples.mobilenet_v2
"""

import doppler_tf

doppler_tf.prepare_devices(2)

import numpy as np  # noqa: E402
import tf_keras  # noqa: E402

# Weights are drawn, so that nothing has to be downloaded; how long a call takes does not depend on them.
model = tf_keras.applications.MobileNetV2(input_shape=(128, 128, 3), weights=None)


def main() -> None:
    images = np.random.default_rng(0).normal(size=(4, 128, 128, 3)).astype(np.float32)
    with doppler_tf.distribute(model, images, topology="cpu:2", budget_s=2) as placed:
        found, expected = placed(images).numpy(), model(images).numpy()
        print(placed.report())
        print(f"relative error against the model: {np.linalg.norm(found - expected) / np.linalg.norm(expected):.1e}")


if __name__ == "__main__":
    main()
