"""Placing graphs with a trained policy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import TrainConfig, stored_config
from agents.features import graph_arrays
from agents.methods import METHODS
from agents.rollout import Episodes
from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

Policy = Callable[[DataflowGraph, CostModel, int, int], Iterator[Assignment]]
# Episodes run in batches whose records and states take about half a GiB, so that 100,000 vertices need less than 4 in all.
BATCH_BYTES, BYTES_A_CHOICE = 1 << 29, 160


class _Sampler:
    """A network that policies of one kind take turns to fill with their weights, so that what is compiled serves them all."""

    def __init__(self, config: TrainConfig):
        self._network = METHODS[config.method].network(config)
        self._rollout = METHODS[config.method].rollout(self._network)
        self._lock, self._weights = threading.Lock(), None

    def restored(self, checkpoint: Path) -> list[np.ndarray]:
        """The weights of a checkpoint. Raises CheckpointError: of another kind."""
        with self._lock:
            self._weights = None  # a restore that fails has overwritten some
            restore_variables(checkpoint, {"best_network": self._network}, partial=True)
            self._weights = [variable.numpy() for variable in self._network.variables]
            return self._weights

    def run(self, weights: list[np.ndarray], batch: Any, rows: int, seed: tuple[int, int], greedy: np.ndarray) -> Episodes:
        """Episodes of graph 0 by the policy that has these weights."""
        with self._lock:
            if self._weights is not weights:
                for variable, value in zip(self._network.variables, weights, strict=True):
                    variable.assign(value)
                self._weights = weights
            return self._rollout.run(batch, tf.zeros([rows], tf.int32), tf.constant(seed), tf.constant(greedy))


@lru_cache(maxsize=4)
def _sampler(config: TrainConfig) -> _Sampler:
    return _Sampler(config)


def load_policy(path: str | Path, batch_bytes: int = BATCH_BYTES) -> Policy:
    """A policy from a run folder (its last checkpoint) or from one checkpoint; it places any graph on any number of devices.

    Args:
      batch_bytes: records and states of the episodes that run at once; at least one episode does.

    Returns:
      (graph, costs, samples, seed) -> the greedy assignment and `samples` - 1 sampled ones, drawn as they are asked for.

    Raises:
      CheckpointError: no complete checkpoint is there.
    """
    checkpoint = policy_checkpoint(path)
    config = stored_config(checkpoint.parent.parent)
    sampler = _sampler(TrainConfig(method=config.method, hidden=config.hidden, rounds=config.rounds, features=config.features))
    weights = sampler.restored(checkpoint)

    def policy(graph: DataflowGraph, costs: CostModel, samples: int, seed: int) -> Iterator[Assignment]:
        arrays = graph_arrays(graph, costs, identity=config.identity)
        batch = METHODS[config.method].batch([arrays])
        rows = min(samples, max(1, batch_bytes // (BYTES_A_CHOICE * batch.num_vertices * batch.num_devices)))
        for i in range(-(-samples // rows)):
            greedy = np.arange(i * rows, (i + 1) * rows) == 0
            episodes = sampler.run(weights, batch, rows, (seed % 2**31, i), greedy)
            device, order = arrays.to_devices(episodes.order, episodes.device)
            for d, o in zip(device[:samples - i * rows], order, strict=False):
                yield Assignment(d, o, "policy")

    return policy
