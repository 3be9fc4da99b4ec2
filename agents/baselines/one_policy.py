"""SEL alone and PLC alone, the other's choices being the teacher's (ablations of Yao et al. 2026).

SEL alone chooses the vertices, which go where they start earliest. PLC alone chooses the devices of vertices that come by b-level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from agents.baselines.ordered import OrderedGraphs, episodes_in_order, orders
from agents.episodes.episode import EpisodeState, Options, PaddedGraphs, device_options, padded_graphs
from agents.episodes.features import GraphArrays
from agents.policies.losses import EpisodeLogProbability, LogProbability
from agents.policies.networks import DualNetwork, ParameterGroups, Tables, trainable
from agents.policies.race import Race
from agents.policies.rollout import (
    Choice,
    Episodes,
    after_placing,
    choose_device,
    device_logits,
    log_probability,
    next_vertex,
)
from doppler_tf.schedule.ranks import b_levels


class SelNetwork(DualNetwork):
    """PLC's head is there, unused and untrained."""

    @property
    def parameter_groups(self) -> ParameterGroups:
        """DOPPLER's first; nothing."""
        return super().parameter_groups[0], []


def earliest_start(network: DualNetwork, graphs: PaddedGraphs, tables: Tables, state: EpisodeState, placed: tf.Tensor, race: Race
                   ) -> Choice:
    """SEL picks a vertex; it goes where it starts earliest, ties at random (the first where the race is greedy)."""
    vertex = next_vertex(graphs, state, race)
    options = device_options(graphs, state, vertex)
    start = tf.where(options.mask, options.start_s, np.inf)
    first = start <= tf.reduce_min(start, axis=1, keepdims=True)
    return Choice(vertex, choose_device(graphs, state, tf.zeros_like(start), first, race.seed, race.greedy), *options)


def sel_log_probability(network: DualNetwork, graphs: PaddedGraphs, episodes: Episodes) -> EpisodeLogProbability:
    """As `rollout.log_probability`; devices are no choice."""
    sel, plc, valid = log_probability(network, graphs, episodes)
    return sel, LogProbability(*(tf.zeros_like(value) for value in plc)), valid


class PlcNetwork(DualNetwork):
    """SEL's head is there, unused and untrained."""

    @property
    def parameter_groups(self) -> ParameterGroups:
        """The encoder; DOPPLER's second."""
        return trainable(*self.encoder.layers), super().parameter_groups[1]


def plc_log_probability(network: DualNetwork, graphs: OrderedGraphs, episodes: Episodes) -> EpisodeLogProbability:
    """As `rollout.log_probability`; vertices are no choice."""
    sel, plc, valid = log_probability(network, graphs.padded, episodes)
    return LogProbability(*(tf.zeros_like(value) for value in sel)), plc, valid


def critical_path_graphs(arrays: Sequence[GraphArrays]) -> OrderedGraphs:
    """Vertices by b-level, the largest first, equal ones of one depth at random."""
    ranks = []
    for a in arrays:
        # Depth counts where a producer that costs nothing has the b-level of its consumer.
        keys = np.stack([-b_levels(a.graph, a.costs).value_s[a.graph.work_vertices], a.graph.level[a.graph.work_vertices]], axis=1)
        rank = np.full(a.num_vertices, a.num_vertices, np.int32)
        rank[:a.num_work] = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
        ranks.append(rank)
    return OrderedGraphs(padded_graphs(arrays), tf.constant(np.concatenate(ranks)), tf.zeros([0, 0, 0], tf.bool))


def plc_episodes(network: PlcNetwork, graphs: OrderedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
    """Episodes in which PLC places the vertices by b-level; arguments as `Rollout.run` takes them."""
    padded = graphs.padded
    with tf.name_scope("encode"):
        tables = network.encode(padded)

    def decide(t: tf.Tensor, state: EpisodeState, vertex: tf.Tensor, options: Options, placed: tf.Tensor):
        logits = device_logits(network, padded, tables, state, placed, vertex, options.features)
        device = choose_device(padded, state, logits, options.mask, seed, greedy)
        return device, options.features, after_placing(padded, tables, state, placed, vertex, device)

    return episodes_in_order(padded, graph, orders(graphs, graph, seed, greedy), decide, tf.gather(tables.plc_empty, graph))
