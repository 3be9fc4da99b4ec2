"""The right Keras, or a clear error."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("program", "setting"), [
    ("import agents", None),
    pytest.param("import agents", "0", marks=pytest.mark.thorough),
    pytest.param("import tensorflow as tf; tf.keras.layers; import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'; import agents", None,
                 marks=pytest.mark.thorough),
])
def test_keras_3_is_refused_with_the_remedy(program, setting):
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    if setting is not None:
        environment["TF_USE_LEGACY_KERAS"] = setting
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigError: agents: Keras: expected Keras 2" in done.stderr
    assert "set TF_USE_LEGACY_KERAS=1" in done.stderr


def test_the_command_line_chooses_keras_2():
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    program = "from doppler_tf.api.tensorflow import import_quietly; print(import_quietly('agents.policies.networks').tf.keras.__name__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "tf_keras" in done.stdout


def test_importing_the_agents_after_tf_agents_changes_neither_the_environment_nor_the_cache(tmp_path):
    """TF-Agents imports `tensorflow.keras`, after which `tf.keras` has another name."""
    program = """
import os
from tf_agents.networks import q_rnn_network
before = dict(os.environ)
import agents, agents.training.stages, agents.training.run, agents.compile_cache
print(sorted({name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}))
"""
    broken = tmp_path / "version" / "xla_compile_cache__1__XLA_CPU_JIT.pb"
    broken.parent.mkdir()
    broken.touch()
    environment = {key: value for key, value in os.environ.items() if key != "TF_XLA_FLAGS"}
    environment |= {"TF_USE_LEGACY_KERAS": "1", "DOPPLER_XLA_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    # Not ours: TensorFlow and Gym's pygame set some of their own.
    assert [name for name in ast.literal_eval(done.stdout.splitlines()[-1]) if name.startswith(("TF_", "DOPPLER_", "XLA_"))] == []
    assert sorted(tmp_path.rglob("*")) == [broken.parent, broken]
