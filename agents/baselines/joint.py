"""One policy over pairs: a softmax over every candidate on every device that it may go to.

The logit of (v, d) is a score of v, plus the product of a code of v with a code of what is on d, plus the features of the pair weighted
by v. Nothing in it is a network by pair, so that a step is a few passes over [N, D]; still it takes time by the number of vertices, where
SEL and PLC take none.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import tensorflow as tf

from agents.baselines.pairs import PairedGraphs, Seen, nothing_seen, pair_features, pair_mask, place_pair
from agents.episodes.episode import DEVICE_FEATURES, EpisodeState, initial_state
from agents.episodes.features import IDENTITY
from agents.policies.losses import EpisodeLogProbability, LogProbability, masked_log_probability, step_by_step
from agents.policies.networks import Encoder, ParameterGroups, dense, one_edge, temperatures, trainable, vertex_inputs
from agents.policies.rollout import Choice, Episodes, choose_device, choose_vertex, real_steps, record_episodes, replayed


class JointTables(NamedTuple):
    """What one encoding yields, the weights that a step needs included; constant within an episode.

    Attributes:
      score: float32 [..., N]; code, placed: float32 [..., N, r], of a vertex, and what it adds to the code of its device; weight: float32
        [..., N, F], of the features of a pair.
      own: float32 [..., D, r], what a device's code begins with.
      busy: float32 [2, r]; out: float32 [r, r], of the layers that make a device's code.
    """

    score: tf.Tensor
    code: tf.Tensor
    placed: tf.Tensor
    weight: tf.Tensor
    own: tf.Tensor
    busy: tf.Tensor
    out: tf.Tensor


class JointNetwork(tf.Module):
    """DOPPLER's encoder with a head for pairs."""

    def __init__(self, hidden: int = 64, rounds: int = 4, features: str = "relational", seed: int = 0):
        """Args: as `DualNetwork`."""
        super().__init__(name="joint")
        seeds = itertools.count(1000 * seed)
        width = max(hidden // 2, 1)
        self.num_features = len(DEVICE_FEATURES[features])
        self.encoder = Encoder(hidden, rounds, seeds)
        self.vertex = dense(hidden, next(seeds), "relu")
        self.heads = [dense(size, next(seeds), scale=scale) for size, scale in ((1, 0.01), (width, 1.0), (width, 1.0),
                                                                                (self.num_features + 1, 0.01))]
        self.own = dense(width, next(seeds))
        self.device = [dense(width, next(seeds), use_bias=False) for _ in range(2)]
        self.own.build([IDENTITY]), self.device[0].build([2]), self.device[1].build([width])
        self.temperature = temperatures()
        self._vertices(one_edge())

    def encode(self, graphs: PairedGraphs) -> JointTables:
        """Message passing over all graphs, and all that steps need; by graph: [G, N, ...]."""
        padded = graphs.padded
        score, code, placed, weight = (tf.reshape(part, [-1, padded.num_vertices, part.shape[1]]) for part in self._vertices(padded))
        share = padded.num_devices / tf.cast(padded.num_work, tf.float32)[:, None, None]
        weights = (tf.convert_to_tensor(layer.kernel) for layer in self.device)
        return JointTables(score[..., 0], code, placed * share, weight, self.own(padded.device_identity), *weights)

    def _vertices(self, padded) -> list[tf.Tensor]:
        hidden = self.vertex(vertex_inputs(padded, self.encoder(padded)))
        return [head(hidden) for head in self.heads]

    def logits(self, graphs: PairedGraphs, tables: JointTables, state: EpisodeState, seen: Seen) -> tf.Tensor:
        """float32 [B, N, D]; tables: by episode."""
        there = tf.one_hot(state.device, graphs.padded.num_devices, axis=1)
        busy = tf.stack([state.busy_s, state.busy_s - tf.reduce_min(state.busy_s, axis=1, keepdims=True)], axis=2)
        held = tf.nn.relu(tf.matmul(there, tables.placed) + tf.tensordot(busy, tables.busy, 1) + tables.own)
        code = tf.tensordot(held, tables.out, 1)
        # A step of the optimizer moves all products of a sum alike; the mean keeps the policy from collapsing in the first.
        logits = tables.score[..., None] + tf.matmul(tables.code, code, transpose_b=True) / code.shape[2]
        *features, wait = pair_features(graphs, state, seen)
        for i, feature in enumerate([wait, *features[:self.num_features]]):
            logits += tables.weight[..., i, None] * feature
        return logits / self.temperature[1]

    @property
    def parameter_groups(self) -> ParameterGroups:
        """The encoder; the head."""
        return trainable(*self.encoder.layers), trainable(self.vertex, *self.heads, self.own, *self.device)


def joint_episodes(network: JointNetwork, graphs: PairedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
    """Episodes of the joint policy; arguments as `Rollout.run` takes them."""
    with tf.name_scope("encode"):
        tables = by_episode(network.encode(graphs), graph)

    def step(t: tf.Tensor, state: EpisodeState, seen: Seen):
        logits, mask = network.logits(graphs, tables, state, seen), pair_mask(graphs, state, seen)
        vertex, device = choose_pair(graphs, state, logits, mask, seed, greedy)
        allowed = tf.gather(mask, vertex, batch_dims=1)
        return (Choice(vertex, device, logits[:, 0, :, None][..., :0], allowed, logits[:, 0]),
                *place_pair(graphs, state, seen, vertex, device))

    return record_episodes(graphs.padded, initial_state(graphs.padded, graph), step, nothing_seen(graphs, graph))


def joint_replayed(graphs: PairedGraphs, graph: tf.Tensor, order: tf.Tensor, device: tf.Tensor) -> Episodes:
    """The record of given episodes (int32 [B, T] each), without features of devices."""
    episodes = replayed(graphs, graph, order, device)
    return episodes._replace(features=episodes.features[..., :0])


def choose_pair(graphs: PairedGraphs, state: EpisodeState, logits: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor
                ) -> tuple[tf.Tensor, tf.Tensor]:
    """Vertex and device int32 [B], the likeliest pair where `greedy` [B], else drawn from the softmax of `logits` [B, N, D] where `mask`.

    Drawn as the vertex from its own probability, then the device given the vertex.
    """
    kept = tf.where(mask, logits, -tf.float32.max)
    by_vertex = tf.where(greedy[:, None], tf.reduce_max(kept, axis=2), tf.reduce_logsumexp(kept, axis=2))
    vertex = choose_vertex(graphs.padded, state, by_vertex, tf.reduce_any(mask, axis=2), seed, greedy)
    given = [tf.gather(value, vertex, batch_dims=1) for value in (logits, mask)]
    return vertex, choose_device(graphs.padded, state, *given, seed, greedy)


def joint_log_probability(network: JointNetwork, graphs: PairedGraphs, episodes: Episodes) -> EpisodeLogProbability:
    """As `rollout.log_probability`: zeros, and of the pairs. Step by step: a softmax over all pairs for all steps at once would take
    memory by steps times vertices."""
    padded, pairs = graphs.padded, graphs.padded.num_vertices * graphs.padded.num_devices
    valid = real_steps(padded, episodes)

    def log_p(t: tf.Tensor, state: tuple[EpisodeState, Seen], *tables: tf.Tensor) -> list[tf.Tensor]:
        logits, mask = network.logits(graphs, JointTables(*tables), *state), pair_mask(graphs, *state)
        pair = episodes.order[:, t] * graphs.padded.num_devices + episodes.device[:, t]
        found = masked_log_probability(tf.reshape(logits, [-1, pairs]), tf.reshape(mask, [-1, pairs]), pair)
        return [tf.where(valid[:, t], value, 0.0) for value in found]

    def place(t: tf.Tensor, state: tuple[EpisodeState, Seen]) -> tuple[EpisodeState, Seen]:
        return place_pair(graphs, *state, episodes.order[:, t], episodes.device[:, t])

    start = initial_state(padded, episodes.graph), nothing_seen(graphs, episodes.graph)
    chosen, entropy = step_by_step(log_p, place, start, valid, by_episode(network.encode(graphs), episodes.graph))
    nothing = tf.zeros_like(chosen)
    return LogProbability(nothing, nothing), LogProbability(chosen, entropy), valid


def by_episode(tables: JointTables, graph: tf.Tensor) -> JointTables:
    """Tables of the graphs of B episodes."""
    return JointTables(*(tf.gather(table, graph) for table in tables[:5]), *tables[5:])
