"""GDP (Zhou et al. 2019, arXiv 1910.01578): GraphSAGE, then attention over the sequence of vertices; all devices in one pass.

As published: max-pooling GraphSAGE; a Transformer-XL over the vertices in topological order, in segments that also attend to the one
before, through which no gradient passes; no position within the attention; one softmax a vertex, blind to where the others go.
Not as published: vertices bring the five static features of all methods here and, instead of the ids of their neighbours, their
place in the sequence; a device is scored by a code of its number, not by an output unit of its own, so that one network serves any
number of devices (from 64 on codes come again); layers add to their input, without which all vertices soon looked alike; the
parameter superposition for batches of graphs is left out; pins, groups and memory mask devices.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import tensorflow as tf

from agents.baselines.ordered import OrderedGraphs, orders
from agents.episodes.episode import EpisodeState
from agents.episodes.features import VERTEX_WIDTH
from agents.policies.networks import ParameterGroups, dense, temperatures, trainable
from agents.policies.rollout import Episodes

SEGMENT, LAYERS, HEADS = 64, 2, 4
_FREQUENCIES = tuple(2.0**i for i in range(-5, 7))


class GdpTables(NamedTuple):
    """What one encoding yields: float32 [G * N, D] device logits."""

    logits: tf.Tensor


class GdpNetwork(tf.Module):
    """GraphSAGE, Transformer-XL, and a product of vertex and device codes."""

    def __init__(self, hidden: int = 64, rounds: int = 4, seed: int = 0):
        """Args: hidden: width of every layer, made a multiple of HEADS; rounds: GraphSAGE layers; seed: of the weights."""
        super().__init__(name="gdp")
        hidden = HEADS * -(-hidden // HEADS)
        seeds = itertools.count(1000 * seed)
        self.embed = dense(hidden, next(seeds))
        self.pool = [dense(hidden, next(seeds), "sigmoid") for _ in range(rounds)]
        self.join = [dense(hidden, next(seeds), "relu") for _ in range(rounds)]
        self.transformer = [_Attention(hidden, seeds) for _ in range(LAYERS)]
        self.norm = tf.keras.layers.LayerNormalization(dtype=tf.float32)
        self.vertex, self.device = dense(hidden, next(seeds), scale=0.01), dense(hidden, next(seeds))
        self.temperature = temperatures()
        self._make()

    def _make(self) -> None:
        """Makes all variables once, so that no compiled function is traced twice for it."""
        ends = tf.zeros([1], tf.int32)
        self._place(self._sage(tf.zeros([2, VERTEX_WIDTH + 2 * len(_FREQUENCIES)]), ends, ends)[None], tf.ones([1, 2], tf.bool), 1)

    def encode(self, graphs: OrderedGraphs) -> GdpTables:
        """All device logits of all graphs."""
        padded, size = graphs.padded, graphs.padded.num_vertices
        place = tf.cast(graphs.rank, tf.float32) / tf.cast(tf.repeat(padded.num_work, size), tf.float32)
        hidden = self._sage(tf.concat([padded.vertex, waves(place * math.pi)], axis=1), padded.source, padded.target)
        number = tf.range(padded.missing.shape[0])
        order = orders(graphs, number, tf.zeros([2], tf.int32), tf.ones(tf.shape(number), tf.bool))
        sequence = tf.gather(tf.reshape(hidden, [-1, size, hidden.shape[1]]), order, batch_dims=1)
        logits = self._place(sequence, order < size - 1, graphs.padded.num_devices)
        step = tf.minimum(tf.reshape(graphs.rank, [-1, size]), size - 2)
        return GdpTables(tf.reshape(tf.gather(logits, step, batch_dims=1), [-1, graphs.padded.num_devices]))

    def _sage(self, vertex: tf.Tensor, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """float32 [V, hidden] from features [V, F] and edges int32 [E], over neighbours in both directions."""
        sender, receiver = tf.concat([source, target], axis=0), tf.concat([target, source], axis=0)
        hidden = self.embed(vertex)
        for pool, join in zip(self.pool, self.join, strict=True):
            most = tf.math.unsorted_segment_max(tf.gather(pool(hidden), sender), receiver, vertex.shape[0])
            # Without neighbours the maximum is the least number. What is added up keeps vertices apart that have like neighbours.
            hidden += join(tf.concat([hidden, tf.maximum(most, 0.0)], axis=1))
        return hidden

    def _place(self, sequence: tf.Tensor, real: tf.Tensor, devices: int) -> tf.Tensor:
        """float32 [G, T, D] logits of vertices float32 [G, T, hidden] in order; real: bool [G, T]."""
        count, steps, width = sequence.shape
        segments = -(-steps // SEGMENT)
        padding = [[0, 0], [0, segments * SEGMENT - steps]]
        hidden = tf.reshape(tf.pad(sequence, [*padding, [0, 0]]), [count, segments, SEGMENT, width])
        real = tf.reshape(tf.pad(real, padding), [count, segments, SEGMENT])
        for layer in self.transformer:
            hidden = layer(hidden, real)
        vertex = self.vertex(self.norm(tf.reshape(hidden, [count, segments * SEGMENT, width])[:, :steps]))
        device = self.device(waves(tf.range(devices, dtype=tf.float32) * math.pi))
        return tf.einsum("gth,dh->gtd", vertex, device) / math.sqrt(width) / self.temperature[1]

    def device_logits(self, graphs: OrderedGraphs, tables: GdpTables, state: EpisodeState, vertex: tf.Tensor) -> tf.Tensor:
        """float32 [B, D] for `vertex` (int32 [B]), whatever the state."""
        return tf.gather(tables.logits, state.graph * graphs.padded.num_vertices + vertex)

    def episode_logits(self, graphs: OrderedGraphs, tables: GdpTables, episodes: Episodes) -> tf.Tensor:
        """float32 [B, T, D], of all steps."""
        return tf.gather(tables.logits, episodes.graph[:, None] * graphs.padded.num_vertices + episodes.order)

    @property
    def parameter_groups(self) -> ParameterGroups:
        """GraphSAGE; the Transformer and the output."""
        return trainable(self.embed, *self.pool, *self.join), trainable(*self.transformer, self.norm, self.vertex, self.device)


class _Attention(tf.Module):
    """One layer of a Transformer-XL (Dai et al. 2019), normalised before it: every segment attends to itself and to the one before."""

    def __init__(self, hidden: int, seeds):
        super().__init__(name="attention")
        self.query, self.key, self.value, self.out = (dense(hidden, next(seeds), use_bias=False) for _ in range(4))
        self.inner, self.outer = dense(2 * hidden, next(seeds), "relu"), dense(hidden, next(seeds))
        self.norms = [tf.keras.layers.LayerNormalization(dtype=tf.float32) for _ in range(2)]

    def __call__(self, hidden: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """float32 [G, n, S, hidden] from such, n segments of S vertices; real: bool [G, n, S]."""
        count, segments, length, width = hidden.shape
        own = self.norms[0](hidden)
        before = tf.stop_gradient(tf.pad(own[:, :-1], [[0, 0], [1, 0], [0, 0], [0, 0]]))
        seen = tf.concat([before, own], axis=2)
        visible = tf.concat([tf.pad(real[:, :-1], [[0, 0], [1, 0], [0, 0]]), real], axis=2)

        def heads(layer: tf.keras.layers.Layer, given: tf.Tensor) -> tf.Tensor:
            return tf.reshape(layer(given), [count, segments, given.shape[2], HEADS, width // HEADS])

        score = tf.einsum("gnqhc,gnkhc->gnhqk", heads(self.query, own), heads(self.key, seen)) / math.sqrt(width / HEADS)
        share = tf.nn.softmax(tf.where(visible[:, :, None, None], score, -1e9), axis=-1)
        found = tf.einsum("gnhqk,gnkhc->gnqhc", share, heads(self.value, seen))
        hidden += self.out(tf.reshape(found, [count, segments, length, width]))
        return hidden + self.outer(self.inner(self.norms[1](hidden)))


def waves(angle: tf.Tensor) -> tf.Tensor:
    """float32 [..., 2 * frequencies]: sines and cosines of multiples of an angle."""
    turned = angle[..., None] * tf.constant(_FREQUENCIES)
    return tf.concat([tf.sin(turned), tf.cos(turned)], axis=-1)
