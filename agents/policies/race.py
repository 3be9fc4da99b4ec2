"""SEL's choice by an exponential race among the candidates, which does not look at every vertex.

A candidate v ends its run Exp(rate e^logit) after it became one; the first to end is chosen. As exponential times have no memory,
each choice is distributed as softmax(logit) over the candidates of that moment (the clocks behind the Gumbel-max trick; Maddison et al.
2014), and a vertex needs one random number an episode. The ends are kept in blocks of about sqrt(N) with the least of each block, so that a
choice looks at two blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.episodes.episode import EpisodeState, PaddedGraphs, candidates, extent, over_rows
from agents.policies.networks import Tables
from agents.policies.random_numbers import exponential

_NEVER = np.float64(np.inf)


class Race(NamedTuple):
    """The state of the races of B episodes.

    Attributes:
      seed: int32 [2], greedy: bool [B]; as given to `start_race`.
      now: float64 [B], when the last winner ended.
      end: float64 [B, N / S, S], when a candidate ends, infinity for other vertices; float64, as rates may differ by exp(20).
      soonest: float64 [B, N / S], the least of each block.
    """

    seed: tf.Tensor
    greedy: tf.Tensor
    now: tf.Tensor
    end: tf.Tensor
    soonest: tf.Tensor


def block_size(num_vertices: int | tf.Tensor) -> int | tf.Tensor:
    """S: the largest power of two that is at most sqrt(N); every `features.bucket` is a multiple of it (m * 2^k, m from 4 to 7)."""
    if isinstance(num_vertices, int):
        return 1 << (num_vertices.bit_length() - 1) // 2
    powers = tf.constant([1 << k for k in range(16)])
    return tf.reduce_max(tf.where(powers * powers <= num_vertices, powers, 1))


def start_race(graphs: PaddedGraphs, tables: Tables, state: EpisodeState, seed: tf.Tensor, greedy: tf.Tensor) -> Race:
    """The race of all present candidates.

    Args:
      seed: int32 [2], the random numbers of these episodes.
      greedy: bool [B]: the largest logit wins (the first among equals) instead.
    """
    size = graphs.num_vertices
    now = tf.zeros(tf.shape(state.graph), tf.float64)
    everyone = tf.repeat(tf.range(size)[None], tf.shape(state.graph)[0], axis=0)
    end = tf.where(candidates(state), _ends(graphs, tables, state.graph, everyone, seed, greedy, now), _NEVER)
    block = block_size(size)
    end = tf.reshape(end, [-1, size // block, block])
    return Race(seed, greedy, now, end, tf.reduce_min(end, axis=2))


def winner(race: Race) -> tf.Tensor:
    """int32 [B]: the candidate that ends first; anything where there is none."""
    block = tf.argmin(race.soonest, axis=1, output_type=tf.int32)
    within = tf.argmin(tf.gather(race.end, block, batch_dims=1), axis=1, output_type=tf.int32)
    return block * extent(race.end, 2) + within


def run_on(graphs: PaddedGraphs, tables: Tables, state: EpisodeState, race: Race, vertex: tf.Tensor) -> Race:
    """The race after `vertex` (int32 [B]), the last winner, is placed: it leaves, and consumers that waited for it alone enter.

    Args:
      state: after the placement.
    """
    # Every array is read as it was last written: a read of an older version would make XLA copy the array in every step.
    size = extent(race.end, 2)
    ended = tf.reduce_min(race.soonest, axis=1)
    now = tf.where(tf.math.is_finite(ended), ended, race.now)
    episode = tf.range(tf.shape(vertex)[0])
    each = tf.repeat(episode[:, None], extent(graphs.successor, 1), axis=1)

    def enter(at: tf.Tensor, so_far: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        consumers = tf.gather(graphs.successor, at)
        waited = tf.gather(state.missing, consumers, batch_dims=1) == 0
        ends = tf.where(waited, _ends(graphs, tables, state.graph, consumers, race.seed, race.greedy, now), _NEVER)
        block = consumers // size
        return (tf.tensor_scatter_nd_min(so_far[0], tf.stack([each, block, consumers % size], axis=2), ends),
                tf.tensor_scatter_nd_min(so_far[1], tf.stack([each, block], axis=2), ends))

    row = state.graph * graphs.num_vertices + vertex
    end, soonest = over_rows(state.graph, tf.gather(graphs.out_row, row), graphs.successor, graphs, enter, (race.end, race.soonest))
    block = vertex // size
    end = tf.tensor_scatter_nd_update(end, tf.stack([episode, block, vertex % size], axis=1), tf.fill(tf.shape(now), _NEVER))
    soonest = tf.tensor_scatter_nd_update(soonest, tf.stack([episode, block], axis=1),
                                          tf.reduce_min(tf.gather(end, block, batch_dims=1), axis=1))
    return race._replace(now=now, end=end, soonest=soonest)


def _ends(graphs: PaddedGraphs, tables: Tables, graph: tf.Tensor, vertex: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor,
          now: tf.Tensor) -> tf.Tensor:
    """float64 [B, K]: when vertices [B, K] that become candidates now end; minus their logits where greedy."""
    logit = tf.cast(tf.gather(tables.sel_logit, graph[:, None] * graphs.num_vertices + vertex), tf.float64)
    waits = exponential(seed, tf.range(tf.shape(vertex)[0])[:, None], vertex) / tf.exp(logit)
    return tf.where(greedy[:, None], -logit, now[:, None] + waits)
