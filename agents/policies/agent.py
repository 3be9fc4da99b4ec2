"""The agents: one that imitates expert trajectories and one that reinforces, around the same networks, optimizers and compiled update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import Trajectory

from agents.config import TrainConfig
from agents.episodes.episode import PaddedGraphs
from agents.episodes.specs import fitting
from agents.policies.losses import EpisodeLogProbability, LogProbability, imitation_loss, rank_advantage, reinforce_loss
from agents.policies.networks import DualNetwork
from agents.policies.policy import DualPolicy, EpisodePolicy
from agents.policies.rollout import Episodes, Rollout, log_probability
from agents.policies.trajectories import check_whole, compact, episodes_of, returns_of

_LOG = logging.getLogger(__name__)

# (network, graphs, episodes) -> log-probabilities of vertices and of devices by step, differentiable, and the mask of real steps.
LogProbabilityOf = Callable[[tf.Module, tuple, Episodes], EpisodeLogProbability]


class UpdateInfo(NamedTuple):
    """Scalars of one update: entropies are nats a step, gradient norms are before clipping."""

    loss: tf.Tensor
    sel_entropy: tf.Tensor
    plc_entropy: tf.Tensor
    sel_gradient: tf.Tensor
    plc_gradient: tf.Tensor


class Gradients(NamedTuple):
    """What a batch teaches, or a part of it. Every number is a sum: those of all parts give the batch's.

    Attributes:
      of_policies: of each policy by variable, in the order of `parameter_groups`; or as one vector (`flat`).
      loss; sel_entropy, plc_entropy: over all steps; steps: their number; scalars.
    """

    of_policies: tuple[list[tf.Tensor] | tf.Tensor, ...]
    loss: tf.Tensor
    sel_entropy: tf.Tensor
    plc_entropy: tf.Tensor
    steps: tf.Tensor


class Lesson(NamedTuple):
    """How much a batch, or a part of it, is learned from; all float32.

    Attributes:
      advantage, weight: [B]; weight: 0 for episodes that are not learned from; entropy, elite_weight: as `ReinforceAgent.train` takes them.
      share, elite_share: the part's share of the batch's weights, and of the steps of its elite; 1 for a whole batch.
    """

    advantage: tf.Tensor
    weight: tf.Tensor
    entropy: tf.Tensor
    elite_weight: tf.Tensor
    share: tf.Tensor
    elite_share: tf.Tensor


class ReinforceAgent(tf_agent.TFAgent):
    """Trains the two policies of a method by REINFORCE, each with an optimizer of its own.

    `train(experience, weights)` takes trajectories [B, T] of whole episodes: from `FusedDriver`, or from TF-Agents' own drivers and replay
    buffers by `trajectories.compact`. A method with one policy gives zeros as log-probabilities of the other. A policy without variables
    is not trained.
    """

    def __init__(self, network: tf.Module, config: TrainConfig, policy: EpisodePolicy, collect_policy: EpisodePolicy,
                 log_probability: LogProbabilityOf, train_step_counter: tf.Variable | None = None, jit_compile: bool = False,
                 elite_rows: int = 1):
        """Args: train_step_counter: counts updates, TF-Agents' global step if None; jit_compile: compile updates with XLA, which takes
        seconds once and makes each two to three times as fast; elite_rows: number of `elite` trajectories of every update."""
        super().__init__(collect_policy.time_step_spec, collect_policy.action_spec, policy, collect_policy, train_sequence_length=None,
                         training_data_spec=compact(collect_policy.trajectory_spec), train_step_counter=train_step_counter)
        self._network, self._config, self._log_probability = network, config, log_probability
        self._jit_compile, self._elite_rows = jit_compile, elite_rows
        self.optimizers = tuple(tf.keras.optimizers.Adam(config.learning_rate, name=name) for name in ("sel", "plc"))
        for optimizer, variables in zip(self.optimizers, network.parameter_groups, strict=True):
            optimizer.build(variables)
        self._update = tf.function(self._traced_update, autograph=False, jit_compile=jit_compile)
        self._compiled_gradients = tf.function(self._flat_gradients, autograph=False, jit_compile=jit_compile)
        self.apply = tf.function(self._apply_flat, autograph=False, jit_compile=jit_compile)

    def act_on(self, graphs: tuple) -> None:
        """Takes other graphs of the same padded shape, for which the compiled functions serve, too."""
        self.policy.graphs = self.collect_policy.graphs = graphs

    def set_learning_rate(self, learning_rate: float) -> None:
        """For both optimizers, from the next update on."""
        for optimizer in self.optimizers:
            optimizer.learning_rate.assign(learning_rate)

    def _train(self, experience: Trajectory, weights: tf.Tensor | None = None, entropy: float | None = None,
               elite: Trajectory | None = None, elite_weight: float = 0.0) -> tf_agent.LossInfo:
        """One update.

        Args:
          weights: float32 [B] or a scalar, 0 for episodes that are not learned from; None: ones.
          entropy: weight of the entropy bonus, the config's if None.
          elite: trajectories [`elite_rows`, T] whose likelihood is raised with `elite_weight`, the best so far for instance.

        Returns:
          The loss, and as `extra` the `UpdateInfo`.

        Raises:
          ConfigError: something is missing in the trajectories, or has another shape. InvalidArgumentError: no rows, or one that does not
            begin with an episode, lacks its end or has a reward of NaN.
        """
        experience, weights = taught(self, experience, weights)
        check_whole(experience)
        return self.update(experience, weights, self._config.entropy if entropy is None else entropy, elite, elite_weight)

    def update(self, experience: Trajectory, weights: tf.Tensor | None, entropy: float = 0.0, elite: Trajectory | None = None,
               elite_weight: float = 0.0, imitation: float = 0.0) -> tf_agent.LossInfo:
        """As `train`; imitation: 1 where every episode counts as equally good, whatever its reward, else 0."""
        vertices = self.collect_policy.graphs.padded.num_vertices
        episodes = episodes_of(experience, vertices)
        weights = tf.ones_like(episodes.graph, tf.float32) if weights is None else weights
        # Without an elite, episodes of weight 0 take its place: every update has the same shapes and shares one compiled function.
        elite = Episodes(*(value[:self._elite_rows] for value in episodes)) if elite is None else episodes_of(elite, vertices)
        scalars = (tf.constant(value, tf.float32) for value in (entropy, elite_weight, imitation))
        info = self._update(self.collect_policy.graphs, episodes, returns_of(experience), weights, elite, *scalars)
        return tf_agent.LossInfo(info.loss, info)

    def gradients(self, episodes: Episodes, elite: Episodes, lesson: Lesson) -> Gradients:
        """Of B episodes and any number of elite ones, flat; `apply` takes sums of them."""
        return self._compiled_gradients(self.collect_policy.graphs, episodes, elite, lesson)

    def _traced_update(self, graphs: tuple, episodes: Episodes, reward: tf.Tensor, weight: tf.Tensor, elite: Episodes, entropy: tf.Tensor,
                       elite_weight: tf.Tensor, imitation: tf.Tensor) -> UpdateInfo:
        """One update of B episodes; reward, weight: float32 [B]; the last three: float32 scalars."""
        advantage = (1 - imitation) * rank_advantage(reward, episodes.graph, weight) + imitation * weight
        whole = tf.constant(1.0)
        return self._apply(self._gradients(graphs, episodes, elite, Lesson(advantage, weight, entropy, elite_weight, whole, whole)))

    def _gradients(self, graphs: tuple, episodes: Episodes, elite: Episodes, lesson: Lesson) -> Gradients:
        """Of B episodes and any number of elite ones, which the present policies may be changed by."""
        if self._jit_compile:  # this runs only when a new shape is traced
            _LOG.info("compiling the update with XLA, unless on disk")
        count = tf.shape(episodes.graph)[0]

        def loss(log_p: LogProbability, valid: tf.Tensor) -> tf.Tensor:
            sampled, best = ([tensor[rows] for tensor in (*log_p, valid)] for rows in (slice(None, count), slice(count, None)))
            return (lesson.share * reinforce_loss(LogProbability(*sampled[:2]), lesson.advantage, sampled[2], lesson.weight, lesson.entropy)
                    + lesson.elite_share * lesson.elite_weight * imitation_loss(LogProbability(*best[:2]), best[2]))

        together = Episodes(*(tf.concat(pair, axis=0) for pair in zip(episodes, elite, strict=True)))
        with tf.GradientTape() as tape:
            sel, plc, valid = self._log_probability(self._network, graphs, together)
            total = loss(sel, valid) + loss(plc, valid)
        gradients = tape.gradient(total, self._network.parameter_groups, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        steps = tf.cast(valid[:count], tf.float32)
        entropies = [tf.reduce_sum(each.entropy[:count] * steps) for each in (sel, plc)]
        return Gradients(tuple(gradients), total, *entropies, tf.reduce_sum(steps))

    def _apply(self, gradients: Gradients) -> UpdateInfo:
        """A step of both optimizers."""
        groups = zip(self.optimizers, self._network.parameter_groups, gradients.of_policies, strict=True)
        norms = [self._step(*group) for group in groups]
        self.train_step_counter.assign_add(1)
        entropies = [entropy / gradients.steps for entropy in (gradients.sel_entropy, gradients.plc_entropy)]
        return UpdateInfo(gradients.loss, *entropies, *norms)

    def _flat_gradients(self, graphs: tuple, episodes: Episodes, elite: Episodes, lesson: Lesson) -> Gradients:
        found = self._gradients(graphs, episodes, elite, lesson)
        return found._replace(of_policies=tuple(map(flat, found.of_policies)))

    def _apply_flat(self, gradients: Gradients) -> UpdateInfo:
        pairs = zip(gradients.of_policies, self._network.parameter_groups, strict=True)
        return self._apply(gradients._replace(of_policies=tuple(parts_of(vector, variables) for vector, variables in pairs)))

    def _step(self, optimizer: tf.keras.optimizers.Optimizer, variables: Sequence[tf.Variable], gradient: Sequence[tf.Tensor]) -> tf.Tensor:
        """One policy's step, its gradient clipped; returns the norm before."""
        if not variables:
            return tf.constant(0.0)
        clipped, norm = tf.clip_by_global_norm(gradient, self._config.clip)
        optimizer.apply_gradients(zip(clipped, variables, strict=True))
        return norm


def taught(agent: tf_agent.TFAgent, experience: Trajectory, weights: Any) -> tuple[Trajectory, tf.Tensor | None]:
    """Trajectories [B, T] and weights [B] as tensors. Raises ConfigError: they do not fit the agent's spec, or each other."""
    experience = fitting(experience, agent.training_data_spec, "train: experience", "B", "T")
    if weights is not None:
        rows = "B" if experience.reward.shape[0] is None else experience.reward.shape[0]
        weights = fitting(weights, tf.TensorSpec([], tf.float32), "train: weights", *([] if np.ndim(weights) == 0 else [rows]))
        weights = tf.broadcast_to(weights, tf.shape(experience.reward)[:1])
    return experience, weights


def flat(tensors: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """float32 [P]: all numbers of float32 tensors of any shapes."""
    return tf.concat([tf.zeros([0]), *(tf.reshape(tensor, [-1]) for tensor in tensors)], axis=0)


def parts_of(vector: tf.Tensor, like: Sequence[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """The tensors that `flat` has made a vector of; like: of their shapes."""
    parts = tf.split(vector, [each.shape.num_elements() for each in like]) if like else []
    return [tf.reshape(part, each.shape) for part, each in zip(parts, like, strict=True)]


class ImitationAgent(tf_agent.TFAgent):
    """Trains the policies of another agent to repeat expert trajectories (behavioural cloning); rewards have no effect.

    It shares networks, optimizers, step counter and compiled update with that agent, which continues from its weights.
    """

    def __init__(self, successor: ReinforceAgent):
        super().__init__(successor.time_step_spec, successor.action_spec, successor.policy, successor.collect_policy,
                         train_sequence_length=None, training_data_spec=successor.training_data_spec,
                         train_step_counter=successor.train_step_counter)
        self._successor = successor

    def _train(self, experience: Trajectory, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        """One update; weights: float32 [B] or a scalar, None: ones. The loss is the mean negative log-likelihood of a step.

        Raises ConfigError: something is missing in the trajectories, or has another shape.
        """
        experience, weights = taught(self, experience, weights)
        return self._successor.update(experience, weights, imitation=1.0)


class DopplerAgent(ReinforceAgent):
    """SEL (with the encoder) and PLC as TF-Agents trains and runs them, step by step or in whole episodes."""

    def __init__(self, network: DualNetwork, graphs: PaddedGraphs, config: TrainConfig, train_step_counter: tf.Variable | None = None,
                 jit_compile: bool = False, elite_rows: int = 1, rollout: Rollout | None = None):
        """Args: rollout: runs whole episodes, compiled with XLA if None; the other arguments are those of `ReinforceAgent`."""
        rollout = rollout or Rollout(network)
        policy = DualPolicy(network, graphs, greedy=True, name="greedy_policy", rollout=rollout)
        collect_policy = DualPolicy(network, graphs, name="collect_policy", rollout=rollout)
        super().__init__(network, config, policy, collect_policy, log_probability, train_step_counter, jit_compile, elite_rows)
