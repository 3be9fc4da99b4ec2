"""Placeto (Addanki et al. 2019, arXiv 1906.08879): one vertex at a time in topological order, seen beside its relatives.

As published: message passing along the edges and against them, each with one pair of networks for all rounds; a vertex is seen with three
groups of others, those that lead to it (parents), those that it leads to (children) and those beside it (parallel), each pooled;
every choice sees where the others are by then. The episode's own timeline is not shown.
Not as published: there, the placement is a feature of the vertices, so that the whole graph is encoded anew for every vertex, T
encodings an episode. Here one encoding serves an episode, and the placement enters where groups are pooled: by device, over the
parents and the parallel vertices that are placed. A device is scored by what is pooled on it and by random features of its own, with the
same weights for each, not by an output unit of its own, so that one network serves any number of devices. Episodes begin with nothing
placed, not with an earlier placement to improve; the reward comes at the end, for all methods alike; messages are averaged, not added up,
as a sum grows with the degree in every round; vertices bring the features of all methods here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.baselines.ordered import OrderedGraphs, orders, topological_graphs
from agents.episodes.episode import EpisodeState
from agents.episodes.features import IDENTITY, VERTEX_WIDTH, GraphArrays
from agents.policies.networks import ParameterGroups, dense, temperatures, trainable
from agents.policies.rollout import Episodes
from doppler_tf.errors import ConfigError

PARENTS, PARALLEL, CHILDREN = range(3)
MOST_VERTICES = 4096


class PlacetoTables(NamedTuple):
    """What one encoding yields; constant within an episode.

    Attributes:
      vertex: float32 [G * N, hidden], a vertex's part of the first layer, its whole groups included.
      empty: float32 [G, D, hidden], what a device's sum begins with.
      placed: float32 [G, 2 * N, hidden], what vertices add to it where they are parents (first N) or parallel, for their device.
    """

    vertex: tf.Tensor
    empty: tf.Tensor
    placed: tf.Tensor


def placeto_graphs(arrays: Sequence[GraphArrays]) -> OrderedGraphs:
    """Vertices in topological order with their three groups. Raises ConfigError for graphs whose groups would not fit in memory."""
    for a in arrays:
        if a.num_work > MOST_VERTICES:
            raise ConfigError(f"placeto: graph {a.graph.name}: expected at most {MOST_VERTICES:,} vertices, as it keeps all pairs of them, "
                              f"got {a.num_work:,}; choose another method")
    return topological_graphs(arrays, relatives)


def relatives(arrays: GraphArrays) -> np.ndarray:
    """bool [N, 3, N]: the parents, parallel vertices and children of each vertex, at any distance, itself in none of them."""
    size, work = arrays.num_vertices, arrays.graph.work_vertices
    position = np.full(arrays.graph.num_vertices, size - 1)
    position[work] = np.arange(work.size)
    leads = np.zeros((size, size), bool)
    successors = arrays.graph.successors
    for v in reversed(arrays.graph.topological_order.tolist()):
        if arrays.graph.is_input[v]:
            continue
        for w in position[successors.vertex[successors.ptr[v]:successors.ptr[v + 1]]]:
            leads[position[v]] |= leads[w]
            leads[position[v], w] = True
    real = np.arange(size) < arrays.num_work
    beside = ~(leads | leads.T | np.eye(size, dtype=bool)) & real & real[:, None]
    return np.stack([leads.T, beside, leads], axis=1)


class PlacetoNetwork(tf.Module):
    """Message passing, pooling over groups, and one head for every device."""

    def __init__(self, hidden: int = 64, rounds: int = 4, seed: int = 0):
        """Args: hidden: width of every layer; rounds: of message passing; seed: of the weights."""
        super().__init__(name="placeto")
        self._rounds = rounds
        seeds = itertools.count(1000 * seed)
        self.embed = dense(hidden, next(seeds), "relu")
        self.message, self.update = ([dense(hidden, next(seeds), "relu") for _ in range(2)] for _ in range(2))
        self.pool = [dense(hidden, next(seeds), "relu") for _ in range(3)]
        self.vertex = dense(hidden, next(seeds))
        self.own = dense(hidden, next(seeds), use_bias=False)
        self.placed = [dense(hidden, next(seeds), use_bias=False) for _ in range(2)]
        self.head = [dense(hidden // 2, next(seeds), "relu"), dense(1, next(seeds), scale=0.01)]
        self.temperature = temperatures()
        # Variables are made here once, so that no compiled function is traced twice for making them.
        self.own.build([IDENTITY])
        features, ends = tf.zeros([1, VERTEX_WIDTH]), tf.zeros([1], tf.int32)
        self._score(self._tables(features, ends, ends, tf.zeros([1, 3, 1], tf.bool), tf.ones([1, 1]), tf.ones([1, 1]))[0])

    def encode(self, graphs: OrderedGraphs) -> PlacetoTables:
        """Message passing over all graphs, and their groups pooled."""
        padded, size = graphs.padded, graphs.padded.num_vertices
        real = tf.cast(tf.reshape(padded.is_real, [-1, 1]), tf.float32)
        share = 1.0 / tf.cast(tf.repeat(padded.num_work, size), tf.float32)[:, None]
        vertex, placed = self._tables(padded.vertex, padded.source, padded.target, graphs.groups, real, share * graphs.padded.num_devices)
        return PlacetoTables(vertex, self.own(padded.device_identity), placed)

    def _tables(self, vertex: tf.Tensor, source: tf.Tensor, target: tf.Tensor, groups: tf.Tensor, real: tf.Tensor, share: tf.Tensor
                ) -> tuple[tf.Tensor, tf.Tensor]:
        """`vertex` and `placed` of PlacetoTables, of features [V, F], edges int32 [E], groups bool [V, 3, N], and float32 [V, 1] what
        counts and how much."""
        size = groups.shape[2]
        first, sweeps = self.embed(vertex), []
        for message, update, sender, receiver in zip(self.message, self.update, (source, target), (target, source), strict=True):
            hidden = first
            for _ in range(self._rounds):
                heard = tf.math.unsorted_segment_mean(tf.gather(message(hidden), sender), receiver, vertex.shape[0])
                hidden = hidden + update(heard)
            sweeps.append(hidden * real / (1.0 + self._rounds))
        hidden = tf.concat(sweeps, axis=1)
        pooled = [layer(hidden) * real * share for layer in self.pool]
        whole = [tf.reshape(tf.matmul(tf.cast(tf.reshape(groups[:, k], [-1, size, size]), tf.float32),
                                      tf.reshape(pooled[k], [-1, size, pooled[k].shape[1]])), [-1, pooled[k].shape[1]]) for k in range(3)]
        placed = [tf.reshape(layer(value), [-1, size, value.shape[1]]) for layer, value in zip(self.placed, pooled, strict=False)]
        return self.vertex(tf.concat([vertex, hidden, *whole], axis=1)), tf.concat(placed, axis=1)

    def device_logits(self, graphs: OrderedGraphs, tables: PlacetoTables, state: EpisodeState, vertex: tf.Tensor) -> tf.Tensor:
        """float32 [B, D] for `vertex` (int32 [B])."""
        row = state.graph * graphs.padded.num_vertices + vertex
        member = tf.cast(tf.gather(graphs.groups, row)[:, :CHILDREN], tf.float32)
        there = tf.one_hot(state.device, graphs.padded.num_devices, axis=1)
        among = tf.reshape(member[:, None] * there[:, :, None], [-1, graphs.padded.num_devices, 2 * graphs.padded.num_vertices])
        held = tf.gather(tables.empty, state.graph) + _product(among, tables.placed, state.graph)
        return self._score(tf.gather(tables.vertex, row)[:, None] + held)

    def episode_logits(self, graphs: OrderedGraphs, tables: PlacetoTables, episodes: Episodes) -> tf.Tensor:
        """float32 [B, T, D], of all steps in one pass: a matrix product of who is placed before whom with what is on which device."""
        size, devices = graphs.padded.num_vertices, graphs.padded.num_devices
        number = tf.range(graphs.padded.missing.shape[0])
        order = orders(graphs, number, tf.zeros([2], tf.int32), tf.ones(tf.shape(number), tf.bool))
        steps = order.shape[1]
        member = tf.gather(graphs.groups, number[:, None] * size + order)[:, :, :CHILDREN]
        before = tf.reshape(graphs.rank, [-1, 1, 1, size]) < tf.range(steps)[None, :, None, None]
        member = tf.reshape(tf.cast(member & before, tf.float32), [-1, steps, 2 * size])
        episode = tf.repeat(tf.range(tf.shape(episodes.order)[0])[:, None], steps, axis=1)
        device = tf.tensor_scatter_nd_max(tf.fill([tf.shape(episodes.order)[0], size], -1), tf.stack([episode, episodes.order], axis=2),
                                          tf.where(episodes.order < size - 1, episodes.device, -1))
        there = tf.tile(tf.one_hot(device, devices), [1, 2, 1])
        width = tables.placed.shape[2]
        added = tf.reshape(there[..., None] * tf.gather(tables.placed, episodes.graph)[:, :, None], [-1, 2 * size, devices * width])
        held = tf.reshape(tf.matmul(tf.gather(member, episodes.graph), added), [-1, steps, devices, width])
        held += tf.gather(tables.empty, episodes.graph)[:, None]
        return self._score(tf.gather(tables.vertex, episodes.graph[:, None] * size + episodes.order)[:, :, None] + held)

    def _score(self, hidden: tf.Tensor) -> tf.Tensor:
        """float32 [...] from the first layer's sums [..., hidden]."""
        hidden = tf.nn.relu(hidden)
        for layer in self.head:
            hidden = layer(hidden)
        return hidden[..., 0] / self.temperature[1]

    @property
    def parameter_groups(self) -> ParameterGroups:
        """Message passing; pooling and head."""
        return trainable(self.embed, *self.message, *self.update), trainable(*self.pool, self.vertex, self.own, *self.placed, *self.head)


def _product(among: tf.Tensor, table: tf.Tensor, graph: tf.Tensor) -> tf.Tensor:
    """float32 [B, D, hidden]: `among` [B, D, K] times each episode's graph in `table` [G, K, hidden]; one product where G is 1."""
    if table.shape[0] == 1:
        return tf.reshape(tf.matmul(tf.reshape(among, [-1, among.shape[2]]), table[0]), [-1, *among.shape[1:2], table.shape[2]])
    return tf.matmul(among, tf.gather(table, graph))
