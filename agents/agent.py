"""The agent: two policies, two optimizers, REINFORCE and imitation."""

from __future__ import annotations

import logging
from typing import NamedTuple

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import trajectory

from agents.config import TrainConfig
from agents.driver import Episodes, episode_log_probability
from agents.episode import GraphBatch
from agents.losses import LogProbability, imitation_loss, rank_advantage, reinforce_loss
from agents.networks import DualNetwork
from agents.policy import DualPolicy

_LOG = logging.getLogger(__name__)


class UpdateInfo(NamedTuple):
    """Scalars of one update: entropies are nats a step, gradient norms are before clipping."""

    loss: tf.Tensor
    sel_entropy: tf.Tensor
    plc_entropy: tf.Tensor
    sel_gradient: tf.Tensor
    plc_gradient: tf.Tensor


class DopplerAgent(tf_agent.TFAgent):
    """Trains SEL (with the encoder) and PLC, each with an optimizer of its own.

    `train(experience)` takes trajectories [B, T] of whole episodes as TF-Agents' drivers and replay buffers hand them over;
    `reinforce` and `imitate` take the compact records of `FusedDriver`. All end in the same update.
    """

    def __init__(self, network: DualNetwork, batch: GraphBatch, config: TrainConfig, train_step_counter: tf.Variable | None = None,
                 jit_compile: bool = False):
        """Args: train_step_counter: counts updates; TF-Agents' global step if None; jit_compile: compile updates with XLA, which
        takes seconds once and makes each two to three times as fast."""
        self._network, self._batch, self._config, self._jit_compile = network, batch, config, jit_compile
        self.optimizers = tuple(tf.keras.optimizers.Adam(config.learning_rate, name=name) for name in ("sel", "plc"))
        collect, greedy = DualPolicy(network, batch, False, "collect_policy"), DualPolicy(network, batch, True, "greedy_policy")
        graph_only = {"graph": collect.time_step_spec.observation["graph"]}
        super().__init__(collect.time_step_spec, collect.action_spec, greedy, collect, train_sequence_length=None,
                         training_data_spec=collect.trajectory_spec._replace(observation=graph_only), train_step_counter=train_step_counter)
        for optimizer, variables in zip(self.optimizers, self._variables_by_policy(), strict=True):
            optimizer.build(variables)
        self.reinforce = tf.function(self._reinforce, autograph=False, jit_compile=jit_compile)
        self.imitate = tf.function(self._imitate, autograph=False, jit_compile=jit_compile)

    def _variables_by_policy(self) -> tuple[list[tf.Variable], list[tf.Variable]]:
        return self._network.sel_variables, self._network.plc_variables

    def set_learning_rate(self, learning_rate: float) -> None:
        """For both optimizers, from the next update on."""
        for optimizer in self.optimizers:
            optimizer.learning_rate.assign(learning_rate)

    def _reinforce(self, episodes: Episodes, reward: tf.Tensor, weight: tf.Tensor, entropy: tf.Tensor, elite: Episodes,
                   elite_weight: tf.Tensor) -> UpdateInfo:
        """One REINFORCE update.

        Args:
          episodes: B episodes; reward: float32 [B]; weight: float32 [B], 0 for episodes that only stand by (greedy ones).
          entropy, elite_weight: float32 scalars; elite: the best episode so far of each graph.
        """
        if self._jit_compile:  # this runs only when a new shape is traced
            _LOG.info("compiling the update with XLA")
        count = tf.shape(reward)[0]

        def loss(log_p: LogProbability, valid: tf.Tensor) -> tf.Tensor:
            sampled, best = ([tensor[rows] for tensor in (*log_p, valid)] for rows in (slice(None, count), slice(count, None)))
            return (reinforce_loss(LogProbability(*sampled[:2]), advantage, sampled[2], weight, entropy)
                    + elite_weight * imitation_loss(LogProbability(*best[:2]), best[2]))

        advantage = rank_advantage(reward, episodes.graph, weight)
        together = Episodes(*(tf.concat(pair, axis=0) for pair in zip(episodes, elite, strict=True)))
        with tf.GradientTape() as tape:
            tables = self._network.encode(self._batch)
            sel, plc, valid = episode_log_probability(self._network, self._batch, tables, together)
            total = loss(sel, valid) + loss(plc, valid)
        return self._apply(tape, total, sel.entropy[:count], plc.entropy[:count], valid[:count])

    def _imitate(self, episodes: Episodes) -> UpdateInfo:
        """One step up the likelihood of a teacher's episodes (behavioural cloning)."""
        with tf.GradientTape() as tape:
            tables = self._network.encode(self._batch)
            sel, plc, valid = episode_log_probability(self._network, self._batch, tables, episodes)
            total = imitation_loss(sel, valid) + imitation_loss(plc, valid)
        return self._apply(tape, total, sel.entropy, plc.entropy, valid)

    def _apply(self, tape: tf.GradientTape, loss: tf.Tensor, sel_entropy: tf.Tensor, plc_entropy: tf.Tensor,
               valid: tf.Tensor) -> UpdateInfo:
        variables = self._variables_by_policy()
        gradients = tape.gradient(loss, variables)
        norms = []
        for optimizer, owned, gradient in zip(self.optimizers, variables, gradients, strict=True):
            clipped, norm = tf.clip_by_global_norm(gradient, self._config.clip)
            optimizer.apply_gradients(zip(clipped, owned, strict=True))
            norms.append(norm)
        self.train_step_counter.assign_add(1)
        steps = tf.cast(valid, tf.float32)
        entropies = [tf.reduce_sum(entropy * steps) / tf.reduce_sum(steps) for entropy in (sel_entropy, plc_entropy)]
        return UpdateInfo(loss, *entropies, *norms)

    def _train(self, experience: trajectory.Trajectory, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        """REINFORCE on trajectories [B, T] that hold one whole episode each, from the first step on."""
        episodes = episodes_from_trajectory(self._batch, experience)
        reward = tf.reduce_sum(experience.reward, axis=1)
        weight = tf.ones_like(reward) if weights is None else weights
        any_one = Episodes(*(value[:1] for value in episodes))
        info = self._reinforce(episodes, reward, weight, tf.constant(self._config.entropy), any_one, tf.constant(0.0))
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
