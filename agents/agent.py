"""The agents: one that imitates expert trajectories and one that reinforces, around the same networks and optimizers."""

from __future__ import annotations

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.trajectories import Trajectory

from agents.config import TrainConfig
from agents.episode import GraphBatch
from agents.networks import DualNetwork
from agents.policy import DualPolicy, EpisodePolicy
from agents.rollout import Episodes, Rollout, log_probability
from agents.trajectories import compact, episodes_of
from agents.updates import LogProbabilityOf, Updates


class ReinforceAgent(tf_agent.TFAgent):
    """Trains the two policies of a method by REINFORCE, each with an optimizer of its own.

    `train(experience, weights)` takes trajectories [B, T] of whole episodes: from `FusedDriver`, or from TF-Agents' own drivers and replay
    buffers by `trajectories.compact`.
    """

    def __init__(self, network: tf.Module, config: TrainConfig, policy: EpisodePolicy, collect_policy: EpisodePolicy,
                 log_probability: LogProbabilityOf, train_step_counter: tf.Variable | None = None, jit_compile: bool = False,
                 elite_rows: int = 1):
        """Args: train_step_counter: counts updates, TF-Agents' global step if None; jit_compile: as `Updates` takes it; elite_rows: number
        of `elite` trajectories of all updates, which share one compiled function."""
        super().__init__(collect_policy.time_step_spec, collect_policy.action_spec, policy, collect_policy, train_sequence_length=None,
                         training_data_spec=compact(collect_policy.trajectory_spec), train_step_counter=train_step_counter)
        self.updates = Updates(network, collect_policy.batch, config, self.train_step_counter, jit_compile, log_probability=log_probability)
        self.optimizers, self.elite_rows, self._entropy = self.updates.optimizers, elite_rows, config.entropy

    def _train(self, experience: Trajectory, weights: tf.Tensor | None = None, entropy: float | None = None,
               elite: Trajectory | None = None, elite_weight: float = 0.0) -> tf_agent.LossInfo:
        """One update.

        Args:
          weights: float32 [B], 0 for episodes that only stand by; None: ones.
          entropy: weight of the entropy bonus, the config's if None.
          elite: trajectories [`elite_rows`, T] whose likelihood is raised with `elite_weight`, the best so far for instance.

        Returns:
          The loss, and as `extra` the `UpdateInfo`.
        """
        episodes, weights = _given(self, experience, weights)
        elite = _stand_in(self, episodes) if elite is None else episodes_of(elite, self.collect_policy.batch.num_vertices)
        reward = tf.reduce_sum(experience.reward, axis=1)
        entropy = self._entropy if entropy is None else entropy
        info = self.updates.reinforce(episodes, reward, weights, tf.constant(entropy, tf.float32), elite,
                                      tf.constant(elite_weight, tf.float32), tf.constant(0.0))
        return tf_agent.LossInfo(info.loss, info)


class ImitationAgent(tf_agent.TFAgent):
    """Trains the policies of another agent to repeat expert trajectories (behavioural cloning); rewards do not count.

    Networks, optimizers, step counter and compiled update are those of that agent, which goes on where this one ends.
    """

    def __init__(self, successor: ReinforceAgent):
        super().__init__(successor.time_step_spec, successor.action_spec, successor.policy, successor.collect_policy,
                         train_sequence_length=None, training_data_spec=successor.training_data_spec,
                         train_step_counter=successor.train_step_counter)
        self.updates, self.elite_rows = successor.updates, successor.elite_rows

    def _train(self, experience: Trajectory, weights: tf.Tensor | None = None) -> tf_agent.LossInfo:
        """One update; weights: float32 [B], None: ones. The loss is the mean negative log-likelihood of a step."""
        episodes, weights = _given(self, experience, weights)
        info = self.updates.imitate(episodes, weights, _stand_in(self, episodes))
        return tf_agent.LossInfo(info.loss, info)


class DopplerAgent(ReinforceAgent):
    """SEL (with the encoder) and PLC as TF-Agents trains and runs them, step by step or in whole episodes."""

    def __init__(self, network: DualNetwork, batch: GraphBatch, config: TrainConfig, train_step_counter: tf.Variable | None = None,
                 jit_compile: bool = False, elite_rows: int = 1, rollout: Rollout | None = None):
        """Args: train_step_counter: counts updates; TF-Agents' global step if None; jit_compile: compile updates with XLA;
        elite_rows: number of `elite` trajectories of all updates; rollout: runs whole episodes, compiled with XLA if None."""
        rollout = rollout or Rollout(network)
        policy = DualPolicy(network, batch, greedy=True, name="greedy_policy", rollout=rollout)
        collect_policy = DualPolicy(network, batch, name="collect_policy", rollout=rollout)
        super().__init__(network, config, policy, collect_policy, log_probability, train_step_counter, jit_compile, elite_rows)


def _given(agent: tf_agent.TFAgent, experience: Trajectory, weights: tf.Tensor | None) -> tuple[Episodes, tf.Tensor]:
    """The record of an experience, and weights."""
    episodes = episodes_of(experience, agent.collect_policy.batch.num_vertices)
    return episodes, tf.ones_like(episodes.graph, tf.float32) if weights is None else weights


def _stand_in(agent: ReinforceAgent | ImitationAgent, episodes: Episodes) -> Episodes:
    """Episodes of the elite's shape, where there is none."""
    return Episodes(*(value[:agent.elite_rows] for value in episodes))
