"""The agent: SEL and PLC as TF-Agents trains and runs them."""

from __future__ import annotations

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import trajectory

from agents.config import TrainConfig
from agents.driver import Episodes, log_probability
from agents.episode import GraphBatch
from agents.networks import DualNetwork
from agents.policy import DualPolicy
from agents.updates import Updates


class DopplerAgent(tf_agent.TFAgent):
    """Trains SEL (with the encoder) and PLC, each with an optimizer of its own.

    `train(experience)` takes trajectories [B, T] of whole episodes as TF-Agents' drivers and replay buffers hand them over;
    `reinforce` and `imitate` take the compact records of `FusedDriver`. All end in the same `Updates`.
    """

    def __init__(self, network: DualNetwork, batch: GraphBatch, config: TrainConfig, train_step_counter: tf.Variable | None = None,
                 jit_compile: bool = False):
        """Args: train_step_counter: counts updates; TF-Agents' global step if None; jit_compile: as `Updates` takes it."""
        self._batch, self._config = batch, config
        collect, greedy = DualPolicy(network, batch, False, "collect_policy"), DualPolicy(network, batch, True, "greedy_policy")
        graph_only = {"graph": collect.time_step_spec.observation["graph"]}
        super().__init__(collect.time_step_spec, collect.action_spec, greedy, collect, train_sequence_length=None,
                         training_data_spec=collect.trajectory_spec._replace(observation=graph_only), train_step_counter=train_step_counter)
        updates = Updates(network, batch, config, self.train_step_counter, jit_compile, log_probability=log_probability)
        self.optimizers, self.set_learning_rate = updates.optimizers, updates.set_learning_rate
        self.reinforce, self.imitate = updates.reinforce, updates.imitate

    def _train(self, experience: trajectory.Trajectory, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        """REINFORCE on trajectories [B, T] that hold one whole episode each, from the first step on."""
        episodes = episodes_from_trajectory(self._batch, experience)
        reward = tf.reduce_sum(experience.reward, axis=1)
        weight = tf.ones_like(reward) if weights is None else weights
        any_one = Episodes(*(value[:1] for value in episodes))
        info = self.reinforce(episodes, reward, weight, tf.constant(self._config.entropy), any_one, tf.constant(0.0), tf.constant(0.0))
        return tf_agent.LossInfo(info.loss, info)


def episodes_from_trajectory(batch: GraphBatch, experience: trajectory.Trajectory) -> Episodes:
    """The compact record of trajectories [B, T]; steps beyond an episode's end are dropped, missing ones padded."""
    steps = batch.num_vertices - 1

    def fit(value: tf.Tensor, fill) -> tf.Tensor:
        value = value[:, :steps]
        padding = [[0, 0], [0, steps - value.shape[1]]] + [[0, 0]] * (value.shape.rank - 2)
        return tf.pad(value, padding, constant_values=fill)

    info = experience.policy_info
    return Episodes(experience.observation["graph"][:, 0], fit(experience.action["vertex"], steps), fit(experience.action["device"], 0),
                    fit(info["features"], 0.0), fit(info["mask"], True))
