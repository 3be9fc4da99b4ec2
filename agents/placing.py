"""Placing graphs with a trained policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import stored_config
from agents.features import graph_arrays
from agents.methods import METHODS
from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

Policy = Callable[[DataflowGraph, CostModel, int, int], Iterator[Assignment]]
# Episodes run in batches whose records and states take about half a GiB, so that 100,000 vertices need less than 4 in all.
_BATCH_BYTES, _BYTES_A_CHOICE = 1 << 29, 160


def load_policy(path: str | Path) -> Policy:
    """A policy from a run folder (its last checkpoint) or from one checkpoint; it places any graph on any number of devices.

    Returns:
      (graph, costs, samples, seed) -> the greedy assignment and `samples` - 1 sampled ones, drawn as they are asked for.

    Raises:
      CheckpointError: no complete checkpoint is there.
    """
    checkpoint = policy_checkpoint(path)
    config = stored_config(checkpoint.parent.parent)
    method = METHODS[config.method]
    network = method.network(config)
    restore_variables(checkpoint, {"best_network": network}, partial=True)
    driver = method.driver(network)

    def policy(graph: DataflowGraph, costs: CostModel, samples: int, seed: int) -> Iterator[Assignment]:
        arrays = graph_arrays(graph, costs, identity=config.identity)
        batch = method.batch([arrays])
        rows = min(samples, max(1, _BATCH_BYTES // (_BYTES_A_CHOICE * batch.num_vertices * batch.num_devices)))
        for i in range(-(-samples // rows)):
            greedy = tf.constant(np.arange(i * rows, (i + 1) * rows) == 0)
            episodes = driver.run(batch, tf.zeros([rows], tf.int32), tf.constant([seed % 2**31, i]), greedy)
            device, order = arrays.to_devices(episodes.order, episodes.device)
            for d, o in zip(device[:samples - i * rows], order, strict=False):
                yield Assignment(d, o, "policy")

    return policy
