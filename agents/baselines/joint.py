"""One policy over pairs: a softmax over every candidate on every device that it may go to.

The logit of (v, d) is a score of v, plus the product of a code of v with a code of what is on d, plus the features of the pair weighted
by v. Nothing in it is a network by pair, so that a step is a few passes over [N, D]; still it takes time by the number of vertices, where
SEL and PLC take none.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import tensorflow as tf

from agents.baselines.pairs import PairBatch, Seen, nothing_seen, pair_features, pair_mask, place_pair
from agents.driver import Choice, Episodes, choose_device, real_steps, record_episodes, replay, say_compiling
from agents.episode import DEVICE_FEATURES, EpisodeState, finished, initial_state
from agents.features import IDENTITY
from agents.losses import LogProbability, masked_log_probability
from agents.networks import Encoder, dense, one_edge, temperatures, vertex_inputs
from agents.random_numbers import gumbel


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

    def encode(self, batch: PairBatch) -> JointTables:
        """Message passing over all graphs, and all that steps need; by graph: [G, N, ...]."""
        score, code, placed, weight = (tf.reshape(part, [-1, batch.num_vertices, part.shape[1]]) for part in self._vertices(batch.graphs))
        share = batch.num_devices / tf.cast(batch.graphs.num_work, tf.float32)[:, None, None]
        weights = (tf.convert_to_tensor(layer.kernel) for layer in self.device)
        return JointTables(score[..., 0], code, placed * share, weight, self.own(batch.graphs.device_identity), *weights)

    def _vertices(self, graphs) -> list[tf.Tensor]:
        hidden = self.vertex(vertex_inputs(graphs, self.encoder(graphs)))
        return [head(hidden) for head in self.heads]

    def logits(self, batch: PairBatch, tables: JointTables, state: EpisodeState, seen: Seen) -> tf.Tensor:
        """float32 [B, N, D]; tables: by episode."""
        there = tf.one_hot(state.device, batch.num_devices, axis=1)
        busy = tf.stack([state.busy_s, state.busy_s - tf.reduce_min(state.busy_s, axis=1, keepdims=True)], axis=2)
        held = tf.nn.relu(tf.matmul(there, tables.placed) + tf.tensordot(busy, tables.busy, 1) + tables.own)
        code = tf.tensordot(held, tables.out, 1)
        # A step of the optimizer moves all products of a sum alike; the mean keeps the policy from collapsing in the first.
        logits = tables.score[..., None] + tf.matmul(tables.code, code, transpose_b=True) / code.shape[2]
        *features, wait = pair_features(batch, state, seen)
        for i, feature in enumerate([wait, *features[:self.num_features]]):
            logits += tables.weight[..., i, None] * feature
        return logits / self.temperature[1]

    @property
    def sel_variables(self) -> list[tf.Variable]:
        """What the first optimizer trains: the encoder."""
        return [v for layer in self.encoder.layers for v in layer.trainable_variables]

    @property
    def plc_variables(self) -> list[tf.Variable]:
        """What the second optimizer trains: the head."""
        return [v for layer in (self.vertex, *self.heads, self.own, *self.device) for v in layer.trainable_variables]


class JointDriver:
    """Runs episodes of the joint policy; same `run` and `replay` as `FusedDriver`."""

    def __init__(self, network: JointNetwork, jit_compile: bool = True):
        """Args: jit_compile: compile with XLA."""
        self._network, self._jit_compile = network, jit_compile
        self.run = tf.function(self._run, autograph=False, jit_compile=jit_compile)
        self.replay = tf.function(self._replay, autograph=False, jit_compile=jit_compile)

    def _run(self, batch: PairBatch, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
        """As `FusedDriver.run`."""
        if self._jit_compile:
            say_compiling(batch.graphs, graph.shape[0])
        tables = by_episode(self._network.encode(batch), graph)

        def step(t: tf.Tensor, state: EpisodeState, seen: Seen):
            logits, mask = self._network.logits(batch, tables, state, seen), pair_mask(batch, state)
            vertex, device = choose_pair(batch, state, logits, mask, seed, greedy)
            allowed = tf.gather(mask, vertex, batch_dims=1)
            return (Choice(vertex, device, logits[:, 0, :, None][..., :0], allowed, logits[:, 0]),
                    *place_pair(batch, state, seen, vertex, device))

        return record_episodes(batch.graphs, initial_state(batch.graphs, graph), step, nothing_seen(batch, graph))

    def _replay(self, batch: PairBatch, graph: tf.Tensor, order: tf.Tensor, device: tf.Tensor) -> Episodes:
        """The record of given episodes (int32 [B, T] each)."""
        episodes = replay(batch.graphs, graph, order, device)
        return episodes._replace(features=episodes.features[..., :0])


def choose_pair(batch: PairBatch, state: EpisodeState, logits: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor
                ) -> tuple[tf.Tensor, tf.Tensor]:
    """Vertex and device int32 [B], the likeliest pair where `greedy` [B], else drawn from the softmax of `logits` [B, N, D] where `mask`.

    Drawn as the vertex from its own probability, then the device given the vertex.
    """
    size, devices = batch.num_vertices, batch.num_devices
    kept = tf.where(mask, logits, -tf.float32.max)
    by_vertex = tf.reduce_logsumexp(kept, axis=2)
    # Numbers of their own: 0 to D - 1 are the devices' in `choose_device`.
    noise = gumbel(seed, tf.range(tf.shape(logits)[0])[:, None], state.step[:, None], devices + tf.range(size)[None])
    score = tf.where(greedy[:, None], tf.reduce_max(kept, axis=2), by_vertex + noise)
    score = tf.where(tf.reduce_any(mask, axis=2), score, -tf.float32.max)
    vertex = tf.where(finished(batch.graphs, state), size - 1, tf.argmax(score, axis=1, output_type=tf.int32))
    given = [tf.gather(value, vertex, batch_dims=1) for value in (logits, mask)]
    return vertex, choose_device(batch.graphs, state, *given, seed, greedy)


def joint_log_probability(network: JointNetwork, batch: PairBatch, episodes: Episodes) -> tuple[LogProbability, LogProbability, tf.Tensor]:
    """As `driver.log_probability`: zeros, and of the pairs.

    The episodes are gone through twice, once for the values and once for the gradient, which is summed up step by step: a softmax over all
    pairs for all steps at once would take memory by steps times vertices.
    """
    tables = by_episode(network.encode(batch), episodes.graph)
    chosen, entropy = _step_by_step(network, batch, episodes)(*tables)
    nothing = tf.zeros_like(chosen)
    return LogProbability(nothing, nothing), LogProbability(chosen, entropy), real_steps(batch.graphs, episodes)


def by_episode(tables: JointTables, graph: tf.Tensor) -> JointTables:
    """Tables of the graphs of B episodes."""
    return JointTables(*(tf.gather(table, graph) for table in tables[:5]), *tables[5:])


def _step_by_step(network: JointNetwork, batch: PairBatch, episodes: Episodes):
    steps, count = episodes.order.shape[1], tf.shape(episodes.order)[0]
    valid = real_steps(batch.graphs, episodes)

    def log_p(tables: JointTables, state: EpisodeState, seen: Seen, t: tf.Tensor) -> LogProbability:
        logits, mask = network.logits(batch, tables, state, seen), pair_mask(batch, state)
        pairs = batch.num_vertices * batch.num_devices
        pair = episodes.order[:, t] * batch.num_devices + episodes.device[:, t]
        found = masked_log_probability(tf.reshape(logits, [-1, pairs]), tf.reshape(mask, [-1, pairs]), pair)
        return LogProbability(*(tf.where(valid[:, t], value, 0.0) for value in found))

    def along(turn, *carried):
        def body(t, state, seen, carried):
            carried = turn(t, state, seen, carried)
            return t + 1, *place_pair(batch, state, seen, episodes.order[:, t], episodes.device[:, t]), carried

        start = tf.constant(0), initial_state(batch.graphs, episodes.graph), nothing_seen(batch, episodes.graph), carried
        longest = tf.reduce_max(tf.gather(batch.graphs.num_work, episodes.graph))
        return tf.while_loop(lambda t, *_: t < longest, body, start, maximum_iterations=steps)[3]

    @tf.custom_gradient
    def values(*tables):
        given = JointTables(*tables)

        def note(t, state, seen, carried):
            return tuple(tf.tensor_scatter_nd_update(rows, [[t]], value[None])
                         for rows, value in zip(carried, log_p(given, state, seen, t), strict=True))

        def gradient(*above):
            def add(t, state, seen, carried):
                with tf.GradientTape() as tape:
                    tape.watch(given)
                    found = log_p(given, state, seen, t)
                below = tape.gradient(found, given, [rows[:, t] for rows in above])
                return tuple(total + value for total, value in zip(carried, below, strict=True))

            return along(add, *(tf.zeros_like(table) for table in tables))

        rows = tf.zeros([steps, count])
        return tuple(tf.transpose(values) for values in along(note, rows, rows)), gradient

    return values
