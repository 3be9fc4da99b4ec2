"""Every method that the trainer trains, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from agents.agent import DopplerAgent
from agents.baselines.gdp import GdpNetwork
from agents.baselines.joint import JointDriver, JointNetwork, joint_log_probability
from agents.baselines.ordered import OrderedDriver, device_log_probability, topological_batch
from agents.baselines.pairs import pair_batch
from agents.baselines.per_step import PerStepDriver, PerStepNetwork, per_step_log_probability
from agents.baselines.placeto import PlacetoNetwork, placeto_batch
from agents.baselines.plc_only import PlcDriver, PlcNetwork, critical_path_batch, plc_log_probability
from agents.baselines.sel_only import SelNetwork, earliest_start, sel_log_probability
from agents.config import TrainConfig
from agents.driver import FusedDriver
from agents.episode import graph_batch
from agents.features import GraphArrays
from agents.networks import DualNetwork
from agents.updates import LogProbabilityOf, Updates


class Method(NamedTuple):
    """What tells one method from another; trainer, rewards and budgets are the same for all.

    Attributes:
      batch: graphs of one padded shape -> what driver and agent take for them (a `GraphBatch`, or one and more).
      network: -> weights, made by seed, with `sel_variables` and `plc_variables`.
      driver: (network, jit_compile) -> `run(batch, graph, seed, greedy)` and `replay(batch, graph, order, device)`, each giving `Episodes`.
      agent: (network, batch, config, counter, jit_compile) -> `reinforce`, `imitate`, `optimizers` and `set_learning_rate` of `Updates`.
      repeats_order: the best episode is learned from in its own order, not in the present policy's.
    """

    batch: Callable[[Sequence[GraphArrays]], Any]
    network: Callable[[TrainConfig], tf.Module]
    driver: Callable[..., Any]
    agent: Callable[..., Any]
    repeats_order: bool = False


def _doppler_like(network: Callable[..., tf.Module]) -> Callable[[TrainConfig], tf.Module]:
    return lambda config: network(config.hidden, config.rounds, config.features, config.seed)


def _updates(log_probability: LogProbabilityOf) -> Callable[..., Updates]:
    return partial(Updates, log_probability=log_probability)


METHODS = {
    "doppler": Method(graph_batch, _doppler_like(DualNetwork), FusedDriver, DopplerAgent),
    "sel_only": Method(graph_batch, _doppler_like(SelNetwork), partial(FusedDriver, choose=earliest_start), _updates(sel_log_probability),
                       repeats_order=True),
    "plc_only": Method(critical_path_batch, _doppler_like(PlcNetwork), PlcDriver, _updates(plc_log_probability)),
    "joint": Method(pair_batch, _doppler_like(JointNetwork), JointDriver, _updates(joint_log_probability)),
    "per_step": Method(graph_batch, _doppler_like(PerStepNetwork), PerStepDriver, _updates(per_step_log_probability)),
    "placeto": Method(placeto_batch, lambda c: PlacetoNetwork(c.hidden, c.rounds, c.seed), OrderedDriver, _updates(device_log_probability)),
    "gdp": Method(topological_batch, lambda c: GdpNetwork(c.hidden, c.rounds, c.seed), OrderedDriver, _updates(device_log_probability)),
}
