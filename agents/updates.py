"""The two updates that training consists of, REINFORCE and imitation, for any network whose episodes have log-probabilities."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from agents.config import TrainConfig
from agents.losses import LogProbability, imitation_loss, rank_advantage, reinforce_loss
from agents.rollout import Episodes

_LOG = logging.getLogger(__name__)

# (network, batch, episodes) -> log-probabilities of vertices and of devices by step, differentiable, and the mask of real steps.
LogProbabilityOf = Callable[[tf.Module, tuple, Episodes], tuple[LogProbability, LogProbability, tf.Tensor]]


class UpdateInfo(NamedTuple):
    """Scalars of one update: entropies are nats a step, gradient norms are before clipping."""

    loss: tf.Tensor
    sel_entropy: tf.Tensor
    plc_entropy: tf.Tensor
    sel_gradient: tf.Tensor
    plc_gradient: tf.Tensor


class Updates:
    """REINFORCE (`reinforce`) and imitation (`imitate`) with two optimizers, one for the variables of each policy.

    A method that has but one policy, or none for the vertices, gives zeros as the other's log-probabilities; a policy without variables is
    not trained.
    """

    def __init__(self, network: tf.Module, batch: tuple, config: TrainConfig, counter: tf.Variable, jit_compile: bool = False, *,
                 log_probability: LogProbabilityOf):
        """Args: network: has `sel_variables` and `plc_variables`; counter: counts updates; jit_compile: compile
        updates with XLA, which takes seconds once and makes each two to three times as fast."""
        self._network, self._batch, self._config, self._jit_compile = network, batch, config, jit_compile
        self._counter, self._log_probability = counter, log_probability
        self.optimizers = tuple(tf.keras.optimizers.Adam(config.learning_rate, name=name) for name in ("sel", "plc"))
        for optimizer, variables in zip(self.optimizers, self._variables_by_policy(), strict=True):
            optimizer.build(variables)
        self.reinforce = tf.function(self._reinforce, autograph=False, jit_compile=jit_compile)

    def _variables_by_policy(self) -> tuple[list[tf.Variable], list[tf.Variable]]:
        return self._network.sel_variables, self._network.plc_variables

    def set_learning_rate(self, learning_rate: float) -> None:
        """For both optimizers, from the next update on."""
        for optimizer in self.optimizers:
            optimizer.learning_rate.assign(learning_rate)

    def imitate(self, episodes: Episodes, weight: tf.Tensor, elite: Episodes) -> UpdateInfo:
        """One step up the likelihood of a teacher's episodes (behavioural cloning), by the same compiled function.

        Args:
          weight: float32 [B]; elite: any episodes, of the shape that `reinforce` takes.
        """
        nothing = tf.constant(0.0)
        return self.reinforce(episodes, tf.zeros_like(weight), weight, nothing, elite, nothing, tf.constant(1.0))

    def _reinforce(self, episodes: Episodes, reward: tf.Tensor, weight: tf.Tensor, entropy: tf.Tensor, elite: Episodes,
                   elite_weight: tf.Tensor, imitation: tf.Tensor) -> UpdateInfo:
        """One update by REINFORCE.

        Args:
          episodes: B episodes; reward: float32 [B]; weight: float32 [B], 0 for episodes that only stand by (greedy ones).
          entropy, elite_weight: float32 scalars; elite: the best episode so far of each graph.
          imitation: float32 scalar, 0; or 1: every episode is as good as any, whatever its reward.
        """
        if self._jit_compile:  # this runs only when a new shape is traced
            _LOG.info("compiling the update with XLA, unless on disk")
        count = tf.shape(reward)[0]

        def loss(log_p: LogProbability, valid: tf.Tensor) -> tf.Tensor:
            sampled, best = ([tensor[rows] for tensor in (*log_p, valid)] for rows in (slice(None, count), slice(count, None)))
            return (reinforce_loss(LogProbability(*sampled[:2]), advantage, sampled[2], weight, entropy)
                    + elite_weight * imitation_loss(LogProbability(*best[:2]), best[2]))

        advantage = (1 - imitation) * rank_advantage(reward, episodes.graph, weight) + imitation * weight
        together = Episodes(*(tf.concat(pair, axis=0) for pair in zip(episodes, elite, strict=True)))
        with tf.GradientTape() as tape:
            sel, plc, valid = self._log_probability(self._network, self._batch, together)
            total = loss(sel, valid) + loss(plc, valid)
        return self._apply(tape, total, sel.entropy[:count], plc.entropy[:count], valid[:count])

    def _apply(self, tape: tf.GradientTape, loss: tf.Tensor, sel_entropy: tf.Tensor, plc_entropy: tf.Tensor,
               valid: tf.Tensor) -> UpdateInfo:
        variables = self._variables_by_policy()
        gradients = tape.gradient(loss, variables)
        norms = [self._step(*group) for group in zip(self.optimizers, variables, gradients, strict=True)]
        self._counter.assign_add(1)
        steps = tf.cast(valid, tf.float32)
        entropies = [tf.reduce_sum(entropy * steps) / tf.reduce_sum(steps) for entropy in (sel_entropy, plc_entropy)]
        return UpdateInfo(loss, *entropies, *norms)

    def _step(self, optimizer: tf.keras.optimizers.Optimizer, variables: Sequence[tf.Variable], gradient: Sequence[tf.Tensor]) -> tf.Tensor:
        """One policy's step, its gradient clipped; returns the norm before."""
        if not variables:
            return tf.constant(0.0)
        clipped, norm = tf.clip_by_global_norm(gradient, self._config.clip)
        optimizer.apply_gradients(zip(clipped, variables, strict=True))
        return norm
