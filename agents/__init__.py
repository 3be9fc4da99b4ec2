"""The learned policies: SEL chooses the next vertex, PLC its device; trained by imitation and REINFORCE."""

import os
import sys
from importlib import import_module

from doppler_tf.errors import ConfigError

# TensorFlow and TF-GNN read this variable when they are imported. The values are those that they take for a yes.
# The module `tf.keras` has several names, its classes come from one place.
_wanted, _loaded = os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"), sys.modules.get("tensorflow")
if not _wanted or (_loaded is not None and not _loaded.keras.Model.__module__.startswith("tf_keras.")):
    raise ConfigError("agents: Keras: expected Keras 2, which TF-GNN and TF-Agents need, got Keras 3; set TF_USE_LEGACY_KERAS=1 in the "
                      "environment before TensorFlow is imported")

_HOMES = {"train": "agents.training.run", "load_policy": "agents.serving.placing", "TrainConfig": "agents.config",
          "CONFIGS": "agents.config", "DopplerAgent": "agents.policies.agent", "DualPolicy": "agents.policies.policy",
          "AssignmentEnvironment": "agents.episodes.environment"}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'agents' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
