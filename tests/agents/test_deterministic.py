"""A training leaves TensorFlow as it was."""

from __future__ import annotations

import pytest
from tensorflow.python.eager import context
from tensorflow.python.framework import config as tensorflow_config

from agents.config import TrainConfig
from agents.deterministic import deterministic_operations
from doppler_tf.graph.topology import ideal
from tests.quiet_training import train


def test_operations_are_deterministic_within_the_scope_alone():
    for _ in range(2):
        with deterministic_operations():
            assert tensorflow_config.is_op_determinism_enabled()
            with deterministic_operations():
                pass
            assert tensorflow_config.is_op_determinism_enabled()
        assert not tensorflow_config.is_op_determinism_enabled()
    with pytest.raises(KeyError), deterministic_operations():
        raise KeyError
    assert not tensorflow_config.is_op_determinism_enabled()


@pytest.mark.thorough
def test_after_a_training_determinism_and_the_global_seed_are_as_before(chains, tmp_path):
    seed = context.global_seed()
    train([chains(2)], ideal(2), tmp_path / "run", TrainConfig(imitation=16, simulated=16, batch=16, hidden=16, rounds=1))
    assert not tensorflow_config.is_op_determinism_enabled()
    assert context.global_seed() == seed
