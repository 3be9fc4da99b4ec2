"""Losses and log-probabilities as pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from agents.episodes.episode import extent

MASKED_LOGIT = -1e9


class LogProbability(NamedTuple):
    """float32: log-probability of what was chosen, and entropy of the distribution it was chosen from."""

    chosen: tf.Tensor
    entropy: tf.Tensor


# SEL's and PLC's of whole episodes by step [B, T], and the mask of real steps (bool [B, T]).
EpisodeLogProbability = tuple[LogProbability, LogProbability, tf.Tensor]


def masked_log_softmax(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Log-softmax over the entries of the last axis where `mask` is True; MASKED_LOGIT elsewhere. A row may not be all False."""
    kept = tf.where(mask, logits, MASKED_LOGIT)
    return tf.where(mask, tf.nn.log_softmax(kept, axis=-1), MASKED_LOGIT)


def masked_log_probability(logits: tf.Tensor, mask: tf.Tensor, chosen: tf.Tensor) -> LogProbability:
    """Of `chosen` (int32 [...]) under the softmax over the unmasked entries of `logits` [..., K]; masked ones add no entropy."""
    log_p = masked_log_softmax(logits, mask)
    entropy = -tf.reduce_sum(tf.where(mask, tf.exp(log_p) * log_p, 0.0), axis=-1)
    return LogProbability(tf.gather(log_p, chosen, batch_dims=len(chosen.shape)), entropy)


@tf.custom_gradient
def sums_before(amount: tf.Tensor) -> tf.Tensor:
    """Sums over the steps before each, of [B, T, ...]: `tf.cumsum(amount, axis=1, exclusive=True)`.

    In a loop over the steps, there and back: XLA on CPUs makes of `tf.cumsum` windows that it sums one by one, three times as long.
    """
    return _running(amount, reverse=False), lambda gradient: _running(gradient, reverse=True)


def _running(amount: tf.Tensor, reverse: bool) -> tf.Tensor:
    """Sums of [B, T, ...] over the steps before each; reverse: after each."""
    steps = extent(amount, 1)
    rank = len(amount.shape)
    by_step = tf.transpose(amount, [1, 0, *range(2, rank)])

    def body(i: tf.Tensor, so_far: tf.Tensor, sums: tf.TensorArray) -> tuple:
        t = steps - 1 - i if reverse else i
        return i + 1, so_far + by_step[t], sums.write(t, so_far)

    start = tf.constant(0), tf.zeros_like(by_step[0]), tf.TensorArray(amount.dtype, steps)
    sums = tf.while_loop(lambda i, *_: i < steps, body, start, maximum_iterations=steps)[2]
    return tf.transpose(sums.stack(), [1, 0, *range(2, rank)])


def order_log_probability(logits: tf.Tensor, order: tf.Tensor, available: tf.Tensor, valid: tf.Tensor) -> LogProbability:
    """SEL's log-probability of every step of whole episodes in one pass, without a mask by step and vertex.

    A vertex is a candidate from step `available` until it is chosen, so the softmax's normaliser over time is a running sum of
    exp(logit) that enter and leave; in float64, as they may differ by exp(20).

    Args:
      logits: float32 [B, N], constant within an episode.
      order: int32 [B, T], the vertex chosen at each step.
      available: int32 [B, N], the step at which each vertex becomes a candidate (T or more: never).
      valid: bool [B, T], False on padding; those steps yield zeros.

    Returns:
      float32 [B, T] log-probabilities and entropies.
    """
    steps = extent(order, 1)
    logits = tf.cast(logits, tf.float64)
    weight = tf.exp(logits - tf.reduce_max(logits, axis=1, keepdims=True))
    shifted = logits - tf.reduce_max(logits, axis=1, keepdims=True)
    chosen_at = tf.gather(tf.stack([weight, weight * shifted], axis=2), order, batch_dims=1) * tf.cast(valid, tf.float64)[..., None]
    entering = tf.stack([weight, weight * shifted], axis=2) * tf.cast(available < steps, tf.float64)[..., None]
    episode = tf.repeat(tf.range(tf.shape(order)[0])[:, None], extent(available, 1), axis=1)
    entered = tf.scatter_nd(tf.stack([episode, tf.minimum(available, steps - 1)], axis=2), entering,
                            [tf.shape(order)[0], steps, 2])
    running = entered + sums_before(entered - chosen_at)
    total = tf.where(valid, running[..., 0], 1.0)
    log_total = tf.math.log(tf.maximum(total, 1e-30))
    log_p = tf.gather(shifted, order, batch_dims=1) - log_total
    entropy = log_total - running[..., 1] / tf.maximum(total, 1e-30)
    log_p, entropy = tf.where(valid, log_p, 0.0), tf.where(valid, tf.maximum(entropy, 0.0), 0.0)
    return LogProbability(tf.cast(log_p, tf.float32), tf.cast(entropy, tf.float32))


def step_by_step(log_p: Callable, place: Callable, start, valid: tf.Tensor, tables: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
    """The values of `log_p` by step, each float32 [B, T], differentiable in tables and variables; zeros after the longest episode.

    A second pass over the episodes sums the gradient step by step and repeats each step's forward pass, so that memory is that of one step.

    Args:
      log_p: (t, state, *tables) -> float32 [B] each, of step t.
      place: (t, state) -> the state after step t, without a gradient.
      start: the state before the first step, any nest of tensors.
      valid: bool [B, T], False after the end of an episode.
      tables: tensors that every step reads, constant within an episode.
    """
    steps, longest = valid.shape[1], tf.reduce_max(tf.reduce_sum(tf.cast(valid, tf.int32), axis=1))

    def along(turn: Callable, carried):
        def body(t, state, carried):
            return t + 1, place(t, state), turn(t, state, carried)

        return tf.while_loop(lambda t, *_: t < longest, body, (tf.constant(0), start, carried), maximum_iterations=steps)[2]

    @tf.custom_gradient
    def values(*tables):
        def note(t, state, rows: tf.TensorArray) -> tf.TensorArray:
            return rows.write(t, tf.stack(log_p(t, state, *tables)))

        def gradient(above, variables=()):
            sources = [*tables, *variables]

            def add(t, state, sums):
                with tf.GradientTape() as tape:
                    tape.watch(tables)
                    found = tf.stack(log_p(t, state, *tables))
                below = tape.gradient(found, sources, above[t], unconnected_gradients=tf.UnconnectedGradients.ZERO)
                return [total + value for total, value in zip(sums, below, strict=True)]

            sums = along(add, [tf.zeros_like(source) for source in sources])
            return (sums[:len(tables)], sums[len(tables):]) if variables else sums

        return along(note, tf.TensorArray(tf.float32, steps)).stack(), gradient

    return tf.unstack(tf.transpose(values(*tables), [1, 2, 0]))


def rank_advantage(reward: tf.Tensor, graph: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """How an episode's reward ranks among those of the same graph in the batch, scaled to mean 0 and variance 1 (at many episodes).

    Ranks are the baseline by graph, and bounded: one very bad episode of a graph full of plateaus does not drown the others. (Fitness
    shaping, Wierstra et al. 2014.) Equal rewards share their mean rank.

    Args:
      reward, weight: float32 [B], episodes of weight 0 do not count; graph: int32 [B].

    Returns:
      float32 [B]; zero where the weight is 0 or all episodes of a graph earn the same.
    """
    rivals = tf.cast(graph[:, None] == graph[None], tf.float32) * weight[None]
    below = tf.reduce_sum(rivals * tf.cast(reward[:, None] > reward[None], tf.float32), axis=1)
    above = tf.reduce_sum(rivals * tf.cast(reward[:, None] < reward[None], tf.float32), axis=1)
    count = tf.maximum(tf.reduce_sum(rivals, axis=1), 1.0)
    return weight * (below - above) / count * math.sqrt(3.0)


def reinforce_loss(log_p: LogProbability, advantage: tf.Tensor, valid: tf.Tensor, weight: tf.Tensor,
                   entropy_weight: tf.Tensor) -> tf.Tensor:
    """REINFORCE with reward at the end only and gamma = 1 (Williams 1992), less an entropy bonus; means over steps and episodes.

    Args:
      log_p: float32 [B, T] each; valid: bool [B, T]; advantage, weight: float32 [B].
    """
    steps = tf.cast(valid, tf.float32)
    length = tf.maximum(tf.reduce_sum(steps, axis=1), 1.0)
    gain = advantage * tf.reduce_sum(log_p.chosen * steps, axis=1) / length
    bonus = entropy_weight * tf.reduce_sum(log_p.entropy * steps, axis=1) / length
    return -tf.reduce_sum(weight * (gain + bonus)) / tf.maximum(tf.reduce_sum(weight), 1.0)


def imitation_loss(log_p: LogProbability, valid: tf.Tensor) -> tf.Tensor:
    """Mean negative log-likelihood of the teacher's choices a step."""
    steps = tf.cast(valid, tf.float32)
    return -tf.reduce_sum(log_p.chosen * steps) / tf.maximum(tf.reduce_sum(steps), 1.0)
