"""Every method that the trainer trains, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from agents.baselines.gdp import GdpNetwork
from agents.baselines.joint import JointNetwork, joint_episodes, joint_log_probability, joint_replayed
from agents.baselines.one_policy import (
    PlcNetwork,
    SelNetwork,
    critical_path_graphs,
    earliest_start,
    plc_episodes,
    plc_log_probability,
    sel_log_probability,
)
from agents.baselines.ordered import device_log_probability, ordered_episodes, ordered_replayed, topological_graphs
from agents.baselines.pairs import paired_graphs
from agents.baselines.per_step import PerStepNetwork, per_step_episodes, per_step_log_probability
from agents.baselines.placeto import PlacetoNetwork, placeto_graphs
from agents.config import TrainConfig
from agents.episodes.episode import padded_graphs
from agents.episodes.features import GraphArrays
from agents.policies.agent import DopplerAgent, LogProbabilityOf, ReinforceAgent
from agents.policies.networks import DualNetwork
from agents.policies.policy import NUM_FEATURES, EpisodePolicy
from agents.policies.rollout import Rollout, dual_episodes, log_probability, replayed


class TrainedMethod(NamedTuple):
    """The functions of one method; trainer, rewards and budgets are the same for all methods.

    Attributes:
      graphs: arrays of graphs of one padded shape -> the tensors that its functions take (`PaddedGraphs`, or these and more as `padded`).
      network: -> weights, made by seed, with `parameter_groups`.
      log_probability: of recorded episodes, differentiable.
      episodes, replay: as `Rollout` takes them; num_features: what they record of each device.
      repeats_order: the method learns the order alone.
      stepwise: its policies act step by step too, in TF-Agents' own drivers.
    """

    graphs: Callable[[Sequence[GraphArrays]], Any]
    network: Callable[[TrainConfig], tf.Module]
    log_probability: LogProbabilityOf
    episodes: Callable = dual_episodes
    replay: Callable = replayed
    num_features: int = NUM_FEATURES
    repeats_order: bool = False
    stepwise: bool = False

    def rollout(self, network: tf.Module, jit_compile: bool = True) -> Rollout:
        """Its episodes, compiled with XLA or op by op."""
        return Rollout(network, jit_compile, self.episodes, self.replay)

    def agent(self, network: tf.Module, graphs: Any, config: TrainConfig, counter: tf.Variable, jit_compile: bool, elite_rows: int,
              rollout: Rollout) -> ReinforceAgent:
        """Its agent; arguments as `DopplerAgent` takes them."""
        if self.stepwise:
            return DopplerAgent(network, graphs, config, counter, jit_compile, elite_rows, rollout)
        policies = (EpisodePolicy(network, graphs, rollout, greedy, self.num_features, name=config.method) for greedy in (True, False))
        return ReinforceAgent(network, config, *policies, self.log_probability, counter, jit_compile, elite_rows)


def _doppler_like(network: Callable[..., tf.Module]) -> Callable[[TrainConfig], tf.Module]:
    return lambda config: network(config.hidden, config.rounds, config.features, config.seed)


METHODS = {
    "doppler": TrainedMethod(padded_graphs, _doppler_like(DualNetwork), log_probability, stepwise=True),
    "sel_only": TrainedMethod(padded_graphs, _doppler_like(SelNetwork), sel_log_probability, partial(dual_episodes, choose=earliest_start),
                       repeats_order=True),
    "plc_only": TrainedMethod(critical_path_graphs, _doppler_like(PlcNetwork), plc_log_probability, plc_episodes),
    "joint": TrainedMethod(paired_graphs, _doppler_like(JointNetwork), joint_log_probability, joint_episodes, joint_replayed,
                           num_features=0),
    "per_step": TrainedMethod(padded_graphs, _doppler_like(PerStepNetwork), per_step_log_probability, per_step_episodes),
    "placeto": TrainedMethod(placeto_graphs, lambda c: PlacetoNetwork(c.hidden, c.rounds, c.seed), device_log_probability, ordered_episodes,
                      ordered_replayed, num_features=0),
    "gdp": TrainedMethod(topological_graphs, lambda c: GdpNetwork(c.hidden, c.rounds, c.seed), device_log_probability, ordered_episodes,
                  ordered_replayed, num_features=0),
}
