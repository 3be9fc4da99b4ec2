"""Stage I: imitation of a teacher's episodes from a dataset on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from agents.training import summaries
from agents.training.stages import Training
from data.imitation_dataset import read_episodes, write_episodes
from doppler_tf.heuristics import CriticalPath


class ImitationStage:
    """Updates on expert trajectories, made from the dataset's records."""

    def __init__(self, training: Training, folder: Path, anew: bool):
        """Args: folder: of the datasets, one a graph; a dataset is written if it is missing or if `anew`."""
        self._training = training
        self._teacher = [_dataset(training, g, folder, anew) for g in range(len(training.task.graphs))]

    def update(self, step: int) -> dict[str, dict[str, float]]:
        """One update on a batch of recorded episodes; returns scalars by graph name.

        A recorded episode of weight 0 takes the place of each graph's greedy episode.
        """
        task, learner, rows = self._training.task, self._training.learner, self._training.task.rows
        parts = []
        for g, (orders, devices) in enumerate(self._teacher):
            picked = np.arange(step * rows - 1, (step + 1) * rows) % len(orders)
            parts.append(task.padded(g, orders[picked], devices[picked]))
        experience = self._training.driver.replay(task.graph, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        found = learner.imitator.train(experience, tf.constant(task.weights))
        learner.copy(learner.network, learner.best_network)
        scalars = {summaries.AGREEMENT: -float(found.loss), **summaries.of_update(found.extra)}
        return {graph.name: scalars for graph in task.graphs}


def _dataset(training: Training, g: int, folder: Path, anew: bool) -> tuple[np.ndarray, np.ndarray]:
    """int32 [n, M] orders and devices of the teacher's episodes for graph g, by step."""
    graph, costs, config = training.task.graphs[g], training.task.costs[g], training.task.config
    folder = folder / f"{g}-{graph.graph_hash[:12]}"
    hashes = graph.graph_hash, costs.topology.topology_hash
    if anew or not (folder / "dataset.json").exists():
        teacher, rng = CriticalPath(graph, costs), np.random.default_rng(config.seed)
        drawn = (teacher.sample(rng) for _ in range(config.imitation))
        write_episodes(folder, *hashes, costs.num_devices, ((a.order, a.device[a.order]) for a in drawn))
    rows = list(read_episodes(folder, *hashes).as_numpy_iterator())
    return np.stack([order for order, _ in rows]), np.stack([device for _, device in rows])
