"""The fused driver: whole batches of episodes inside one compiled graph. Same choices as the standard TF-Agents drivers."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from agents.episode import NEVER, EpisodeState, GraphBatch, candidates, device_options, finished, initial_state, place_vertex
from agents.losses import LogProbability, masked_log_probability, order_log_probability
from agents.networks import DualNetwork, Tables
from agents.random_numbers import gumbel


class Episodes(NamedTuple):
    """The compact record of B episodes of T steps; all that an update needs.

    Attributes:
      graph: int32 [B].
      order, device: int32 [B, T], what was chosen; the null vertex after the end.
      features: float32 [B, T, D, F], mask: bool [B, T, D], PLC's view at each step.
      log_p: float32 [B, T, 2], log-probabilities of vertex and device when they were chosen.
    """

    graph: tf.Tensor
    order: tf.Tensor
    device: tf.Tensor
    features: tf.Tensor
    mask: tf.Tensor
    log_p: tf.Tensor


class Choice(NamedTuple):
    """One step's actions with PLC's view of it."""

    vertex: tf.Tensor
    device: tf.Tensor
    features: tf.Tensor
    mask: tf.Tensor
    log_p: tf.Tensor
    start_s: tf.Tensor


def choose(network: DualNetwork, batch: GraphBatch, tables: Tables, state: EpisodeState, placed: tf.Tensor, seed: tf.Tensor,
           temperature: tf.Tensor) -> Choice:
    """SEL picks a vertex among the candidates, PLC its device.

    Args:
      placed: float32 [B, D, hidden], sums of `tables.plc_placed` by device.
      seed: int32 [2], this step's random numbers.
      temperature: float32 [B]: 1 samples from the policies, 0 takes the most likely (the first among equals).
    """
    size, devices = batch.num_vertices, batch.num_devices
    logits = tf.gather(tf.reshape(tables.sel_logit, [-1, size]), state.graph)
    # A finished episode has no candidate left; it "chooses" the null vertex, so that no row is fully masked.
    done = finished(batch, state)
    mask = tf.where(done[:, None], tf.range(size)[None] == size - 1, candidates(state))
    noise = gumbel(seed, tf.shape(logits)[0], size + devices) * temperature[:, None]
    vertex = tf.argmax(tf.where(mask, logits + noise[:, :size], -tf.float32.max), axis=1, output_type=tf.int32)
    options = device_options(batch, state, vertex)
    row = state.graph * size + vertex
    device_logits = network.device_logits(tf.gather(tables.plc_vertex, row), placed, options.features)
    device = tf.argmax(tf.where(options.mask, device_logits + noise[:, size:], -tf.float32.max), axis=1, output_type=tf.int32)
    log_p = tf.stack([masked_log_probability(logits, mask, vertex).chosen,
                      masked_log_probability(device_logits, options.mask, device).chosen], axis=1)
    return Choice(vertex, device, options.features, options.mask, log_p, options.start_s)


def after_placing(batch: GraphBatch, tables: Tables, state: EpisodeState, placed: tf.Tensor, vertex: tf.Tensor,
                  device: tf.Tensor) -> tf.Tensor:
    """`placed` [B, D, hidden] once `vertex` is on `device`; finished episodes stay as they are."""
    active = tf.cast(tf.logical_not(finished(batch, state)), tf.float32)
    row = state.graph * batch.num_vertices + vertex
    added = tf.gather(tables.plc_placed, row) * active[:, None]
    return placed + tf.one_hot(device, batch.num_devices)[..., None] * added[:, None, :]


class FusedDriver:
    """Runs B episodes of the graphs in `batch` in one compiled graph."""

    def __init__(self, network: DualNetwork, batch: GraphBatch, jit_compile: bool = True):
        """Args: jit_compile: compile with XLA (once a shape); without it the same graph runs op by op."""
        self._network, self._batch = network, batch
        self.run = tf.function(self._run, jit_compile=jit_compile, reduce_retracing=True)
        self.replay = tf.function(self._replay, jit_compile=jit_compile, reduce_retracing=True)

    def _run(self, graph: tf.Tensor, seed: tf.Tensor, temperature: tf.Tensor) -> Episodes:
        """Episodes of the graphs `graph` (int32 [B]) with the policies as they are; see `choose` for seed and temperature."""
        tables = self._network.encode(self._batch)

        def step(t: tf.Tensor, state: EpisodeState, placed: tf.Tensor) -> Choice:
            return choose(self._network, self._batch, tables, state, placed, step_seed(seed, t), temperature)

        return self._loop(graph, tables, step)

    def _replay(self, graph: tf.Tensor, order: tf.Tensor, device: tf.Tensor) -> Episodes:
        """The record of given episodes (int32 [B, T] each), the teacher's for instance."""
        tables = Tables(*(tf.zeros([self._batch.vertex.shape[0], 1]) for _ in Tables._fields))

        def step(t: tf.Tensor, state: EpisodeState, placed: tf.Tensor) -> Choice:
            vertex, target = order[:, t], device[:, t]
            options = device_options(self._batch, state, vertex)
            return Choice(vertex, target, options.features, options.mask, tf.zeros([tf.shape(vertex)[0], 2]), options.start_s)

        return self._loop(graph, tables, step)

    def _loop(self, graph: tf.Tensor, tables: Tables, step) -> Episodes:
        batch, steps = self._batch, self._batch.num_vertices - 1
        state = initial_state(batch, graph)
        placed = tf.zeros([tf.shape(graph)[0], batch.num_devices, tables.plc_placed.shape[1]])
        kinds = (tf.int32, tf.int32, tf.float32, tf.bool, tf.float32)
        records = tuple(tf.TensorArray(kind, steps) for kind in kinds)

        def body(t, state, placed, records):
            choice = step(t, state, placed)
            records = tuple(record.write(t, value) for record, value in zip(records, choice[:5], strict=True))
            placed = after_placing(batch, tables, state, placed, choice.vertex, choice.device)
            return t + 1, place_vertex(batch, state, choice.vertex, choice.device, choice.start_s), placed, records

        records = tf.while_loop(lambda t, *_: t < steps, body, (tf.constant(0), state, placed, records), maximum_iterations=steps)[3]
        order, device, features, mask, log_p = (tf.transpose(r.stack(), _batch_first(rank)) for r, rank in
                                                zip(records, (2, 2, 4, 3, 3), strict=True))
        return Episodes(graph, order, device, features, mask, log_p)


def step_seed(seed: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
    """int32 [2]: the seed of step t of a run; the same for every driver."""
    return tf.stack([seed[0], seed[1] * (1 << 14) + tf.cast(t, tf.int32)])


def episode_log_probability(network: DualNetwork, batch: GraphBatch, tables: Tables, episodes: Episodes
                            ) -> tuple[LogProbability, LogProbability, tf.Tensor]:
    """SEL's and PLC's log-probabilities of recorded episodes in one pass, differentiable, and the mask of real steps (bool [B, T])."""
    size, steps = batch.num_vertices, episodes.order.shape[1]
    valid = tf.range(steps)[None] < tf.gather(batch.num_work, episodes.graph)[:, None]
    row = episodes.graph[:, None] * size + episodes.order
    logits = tf.gather(tf.reshape(tables.sel_logit, [-1, size]), episodes.graph)
    sel = order_log_probability(logits, episodes.order, available_steps(batch, episodes), valid)
    added = tf.gather(tables.plc_placed, row) * tf.cast(valid, tf.float32)[..., None]
    placed = tf.cumsum(tf.one_hot(episodes.device, batch.num_devices)[..., None] * added[:, :, None, :], axis=1, exclusive=True)
    plc_logits = network.device_logits(tf.gather(tables.plc_vertex, row), placed, episodes.features)
    return sel, masked_log_probability(plc_logits, episodes.mask, episodes.device), valid


def available_steps(batch: GraphBatch, episodes: Episodes) -> tf.Tensor:
    """int32 [B, N]: the step from which each vertex is a candidate, one after its last predecessor; NEVER for padding."""
    size, steps = batch.num_vertices, episodes.order.shape[1]
    episode = tf.repeat(tf.range(tf.shape(episodes.order)[0])[:, None], steps, axis=1)
    real = tf.range(steps)[None] < tf.gather(batch.num_work, episodes.graph)[:, None]
    at = tf.stack([episode, tf.where(real, episodes.order, size - 1)], axis=2)
    position = tf.tensor_scatter_nd_update(tf.zeros([tf.shape(episodes.order)[0], size], tf.int32), at,
                                           tf.where(real, tf.range(steps)[None] + 1, 0))
    before = tf.gather(tf.reshape(batch.predecessor, [-1, size, batch.predecessor.shape[1]]), episodes.graph)
    last = tf.reduce_max(tf.gather(position, before, batch_dims=1), axis=2)
    return tf.where(tf.gather(batch.is_real, episodes.graph), last, NEVER)


def _batch_first(rank: int) -> list[int]:
    return [1, 0, *range(2, rank)]
