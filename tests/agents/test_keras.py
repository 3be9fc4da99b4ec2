"""The right Keras, or a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("program", "setting"), [
    ("import agents", "0"),
    ("import tensorflow as tf; tf.keras.layers; import agents", None),
])
def test_keras_3_is_refused_with_the_remedy(program, setting):
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    if setting is not None:
        environment["TF_USE_LEGACY_KERAS"] = setting
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigError: agents: Keras: expected Keras 2" in done.stderr
    assert "set TF_USE_LEGACY_KERAS=1" in done.stderr


def test_agents_alone_choose_keras_2():
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    program = "import agents, agents.networks, tensorflow as tf; print(tf.keras.__name__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "tf_keras" in done.stdout
