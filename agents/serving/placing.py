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
from agents.config import TrainConfig, stored_config, stored_graphs
from agents.episodes.features import graph_arrays
from agents.methods import METHODS
from agents.policies.rollout import STEPS_WORTH_COMPILING, Episodes
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.tied_graph import tie
from doppler_tf.schedule.assignment import Assignment

Policy = Callable[[DataflowGraph, CostModel, int, int], Iterator[Assignment]]
# Records and states of a batch of episodes take about half a GiB, so that 100,000 vertices need less than 4 GiB in all.
BATCH_BYTES, BYTES_A_CHOICE = 1 << 29, 160


class _Sampler:
    """A network and its episodes, compiled and op by op, used in turns by policies of one kind, each with its own weights."""

    def __init__(self, config: TrainConfig):
        self._network = METHODS[config.method].network(config)
        self._rollouts = [METHODS[config.method].rollout(self._network, jit_compile) for jit_compile in (False, True)]
        self._lock, self._weights = threading.Lock(), None

    def restored(self, checkpoint: Path) -> list[np.ndarray]:
        """The weights of a checkpoint. Raises CheckpointError: of another kind."""
        with self._lock:
            self._weights = None  # a restore that fails has overwritten some
            restore_variables(checkpoint, {"best_network": self._network}, partial=True)
            self._weights = [variable.numpy() for variable in self._network.variables]
            return self._weights

    def run(self, weights: list[np.ndarray], graphs: Any, rows: int, seed: tuple[int, int], greedy: np.ndarray, compiled: bool
            ) -> Episodes:
        """Episodes of graph 0 by the policy with these weights."""
        with self._lock:
            if self._weights is not weights:
                for variable, value in zip(self._network.variables, weights, strict=True):
                    variable.assign(value)
                self._weights = weights
            return self._rollouts[compiled].run(graphs, tf.zeros([rows], tf.int32), tf.constant(seed), tf.constant(greedy))


class KeptSamplers:
    """Compiled episodes for the next policies: those of the same method and network size share them. The last four kinds are kept."""

    def __init__(self):
        self.sampler = lru_cache(maxsize=4)(_Sampler)


def load_policy(path: str | Path, kept: KeptSamplers | None = None, batch_bytes: int = BATCH_BYTES) -> Policy:
    """A policy from a run folder (its last checkpoint) or from one checkpoint; it places any graph on any number of devices.

    Of a graph in which something repeats, as the layers of a model do, it places two copies that share devices (see `tie`), and all other
    copies like these; a graph that it was trained on it places as it is, and one where none of these assignments fits in memory.

    Args:
      kept: shares compiled functions with the policies that were loaded with it before; None: this policy compiles its own.
      batch_bytes: limit for the records and states of the episodes that run at once; at least one episode runs.

    Returns:
      (graph, costs, samples, seed) -> the greedy assignment and `samples` - 1 sampled ones, drawn as they are asked for (of two copies
      all at once).

    Raises:
      CheckpointError: no complete checkpoint is there.
    """
    checkpoint = policy_checkpoint(path)
    config = stored_config(checkpoint.parent.parent)
    kind = TrainConfig(method=config.method, hidden=config.hidden, rounds=config.rounds, features=config.features)
    sampler = (kept or KeptSamplers()).sampler(kind)
    weights, trained_on = sampler.restored(checkpoint), stored_graphs(checkpoint.parent.parent)

    def policy(graph: DataflowGraph, costs: CostModel, samples: int, seed: int) -> Iterator[Assignment]:
        tied = None if graph.graph_hash in trained_on else tie(Problem(graph, costs))
        if tied is not None:
            found = [tied.whole(assignment) for assignment in draw(tied.graph, tied.costs, samples, seed)]
            simulator = FastSimulator(graph, costs)
            if not costs.limited_memory or any(np.isfinite(simulator.makespans_of([assignment])[0]) for assignment in found):
                yield from found
                return
        yield from draw(graph, costs, samples, seed)

    def draw(graph: DataflowGraph, costs: CostModel, samples: int, seed: int) -> Iterator[Assignment]:
        arrays = graph_arrays(graph, costs, identity=config.identity)
        graphs = METHODS[config.method].graphs([arrays])
        rows = min(samples, max(1, batch_bytes // (BYTES_A_CHOICE * arrays.num_vertices * costs.num_devices)))
        batches = -(-samples // rows)
        compiled = batches * arrays.num_work >= STEPS_WORTH_COMPILING
        for i in range(batches):
            greedy = np.arange(i * rows, (i + 1) * rows) == 0
            episodes = sampler.run(weights, graphs, rows, (seed % 2**31, i), greedy, compiled)
            device, order = arrays.to_devices(episodes.order, episodes.device)
            for d, o in zip(device[:samples - i * rows], order, strict=False):
                yield Assignment(d, o, "policy")

    return policy
