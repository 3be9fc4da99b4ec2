"""Episodes whose order of vertices is known before they begin: there a policy chooses devices alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.episodes.episode import EpisodeState, Options, PaddedGraphs, device_options, initial_state, padded_graphs, place_vertex
from agents.episodes.features import GraphArrays
from agents.policies.losses import EpisodeLogProbability, LogProbability, masked_log_probability
from agents.policies.random_numbers import exponential
from agents.policies.rollout import Choice, Episodes, choose_device, real_steps, record_episodes


class OrderedGraphs(NamedTuple):
    """G graphs and who comes first.

    Attributes:
      rank: int32 [G * N], the smallest comes first, equal ones at random, padding last.
      groups: bool [G * N, R, N], R groups of other vertices for each vertex (see `placeto`); else R = 0.
    """

    padded: PaddedGraphs
    rank: tf.Tensor
    groups: tf.Tensor


def topological_graphs(arrays: Sequence[GraphArrays], groups: Callable[[GraphArrays], np.ndarray] | None = None) -> OrderedGraphs:
    """Vertices by depth, then by index; groups: of one graph, bool [N, R, N]."""
    ranks = [np.arange(a.num_vertices, dtype=np.int32) for a in arrays]
    for a, rank in zip(arrays, ranks, strict=True):
        rank[np.argsort(a.graph.level[a.graph.work_vertices], kind="stable")] = np.arange(a.num_work)
    made = [groups(a) for a in arrays] if groups else np.zeros([1, 0, 0, 0], bool)
    return OrderedGraphs(padded_graphs(arrays), tf.constant(np.concatenate(ranks)), tf.constant(np.concatenate(made)))


def orders(graphs: OrderedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> tf.Tensor:
    """int32 [B, T]: the vertices of episodes of the graphs `graph` (int32 [B]), the null vertex after the end.

    Args:
      seed: int32 [2]; greedy: bool [B], True takes equal ranks by index instead of at random.
    """
    size = graphs.padded.num_vertices
    count = tf.shape(graph)[0]
    rank = tf.cast(tf.gather(tf.reshape(graphs.rank, [-1, size]), graph), tf.float64)
    tie = tf.exp(-exponential(seed, tf.range(count)[:, None], tf.range(size)[None]))
    order = tf.argsort(tf.where(greedy[:, None], rank, rank + tie), stable=True)[:, :size - 1]
    return tf.where(tf.range(size - 1)[None] < tf.gather(graphs.padded.num_work, graph)[:, None], order, size - 1)


def episodes_in_order(graphs: PaddedGraphs, graph: tf.Tensor, order: tf.Tensor, decide: Callable, *carried) -> Episodes:
    """Episodes with the vertices `order` (int32 [B, T]).

    Args:
      decide: (t, state, vertex, options, *carried) -> devices int32 [B], what to record as features, and what is carried on.
    """
    def step(t: tf.Tensor, state: EpisodeState, *carried):
        vertex = order[:, t]
        options = device_options(graphs, state, vertex)
        device, features, *carried = decide(t, state, vertex, options, *carried)
        choice = Choice(vertex, device, features, options.mask, options.start_s)
        return choice, place_vertex(graphs, state, vertex, device, options.start_s), *carried

    return record_episodes(graphs, initial_state(graphs, graph), step, *carried)


def ordered_episodes(network: tf.Module, graphs: OrderedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
    """Episodes of a network that chooses devices in one order; arguments as `Rollout.run` takes them.

    Args:
      network: has `encode(graphs)` and `device_logits(graphs, tables, state, vertex)`.
    """
    with tf.name_scope("encode"):
        tables = network.encode(graphs)

    def decide(t: tf.Tensor, state: EpisodeState, vertex: tf.Tensor, options: Options):
        logits = network.device_logits(graphs, tables, state, vertex)
        return choose_device(graphs.padded, state, logits, options.mask, seed, greedy), options.features[..., :0]

    return episodes_in_order(graphs.padded, graph, orders(graphs, graph, seed, greedy), decide)


def ordered_replayed(graphs: OrderedGraphs, graph: tf.Tensor, order: tf.Tensor, device: tf.Tensor) -> Episodes:
    """The record of given episodes (int32 [B, T] each), their devices taken up in the network's own order."""
    episode = tf.repeat(tf.range(tf.shape(order)[0])[:, None], order.shape[1], axis=1)
    by_vertex = tf.tensor_scatter_nd_max(tf.zeros([tf.shape(order)[0], graphs.padded.num_vertices], tf.int32),
                                         tf.stack([episode, order], axis=2), device)
    own = orders(graphs, graph, tf.zeros([2], tf.int32), tf.ones(tf.shape(graph), tf.bool))
    devices = tf.gather(by_vertex, own, batch_dims=1)
    return episodes_in_order(graphs.padded, graph, own, lambda t, _, __, options: (devices[:, t], options.features[..., :0]))


def device_log_probability(network: tf.Module, graphs: OrderedGraphs, episodes: Episodes
                           ) -> EpisodeLogProbability:
    """As `rollout.log_probability`, of devices alone; network: has `episode_logits(graphs, tables, episodes)`, float32 [B, T, D]."""
    logits = network.episode_logits(graphs, network.encode(graphs), episodes)
    nothing = tf.zeros(tf.shape(episodes.order))
    plc = masked_log_probability(logits, episodes.mask, episodes.device)
    return LogProbability(nothing, nothing), plc, real_steps(graphs.padded, episodes)
