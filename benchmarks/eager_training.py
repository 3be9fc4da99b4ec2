"""The yardstick of `training`: the same networks, step by step in eager TensorFlow, one episode at a time.

The encoder runs once an episode, each step is one Python call that scores the candidates, samples and moves the episode on, the
simulation is plain SimPy, and the update differentiates through the steps. This is how the method is usually written.
"""

from __future__ import annotations

import tensorflow as tf

from agents.config import TrainConfig
from agents.driver import after_placing, choose, step_seed
from agents.episode import graph_batch, initial_state, place_vertex
from agents.features import GraphArrays
from agents.networks import DualNetwork
from benchmarks.simpy_simulator import SimPySimulator


class EagerTrainer:
    """REINFORCE, an episode an update."""

    def __init__(self, arrays: GraphArrays, config: TrainConfig):
        self._arrays, self._batch = arrays, graph_batch([arrays])
        self._network = DualNetwork(config.hidden, config.rounds, config.features, config.seed)
        self._simulator = SimPySimulator(arrays.graph, arrays.costs)
        self._optimizer = tf.keras.optimizers.Adam(config.learning_rate)
        self._baseline = 0.0

    def rollout(self, episode: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """One sampled episode: vertices and devices (int32 [1, M]) and their log-probabilities (float32 [1, M, 2])."""
        batch, tables = self._batch, self._network.encode(self._batch)
        state = initial_state(batch, tf.zeros([1], tf.int32))
        placed = tf.zeros([1, batch.num_devices, tables.plc_placed.shape[1]])
        choices, seed = [], tf.constant([0, episode])
        for t in range(self._arrays.num_work):
            choice = choose(self._network, batch, tables, state, placed, step_seed(seed, tf.constant(t)), tf.ones([1]))
            placed = after_placing(batch, tables, state, placed, choice.vertex, choice.device)
            state = place_vertex(batch, state, choice.vertex, choice.device, choice.start_s)
            choices.append(choice)
        return tuple(tf.stack([getattr(choice, name) for choice in choices], axis=1) for name in ("vertex", "device", "log_p"))

    def train_episode(self, episode: int) -> float:
        """Rollout, simulation and update of one episode; returns its seconds."""
        variables = self._network.trainable_variables
        with tf.GradientTape() as tape:
            order, device, log_p = self.rollout(episode)
            makespan_s = self._simulator.makespan_s(self._arrays.to_devices(order, device)[0][0])
            reward = -makespan_s / self._arrays.scale_s
            loss = -(reward - self._baseline) * tf.reduce_mean(log_p)
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self._baseline = 0.9 * self._baseline + 0.1 * reward
        return makespan_s
