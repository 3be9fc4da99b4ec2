"""The rules of time in TensorFlow, for models that rank their own samples: `fifo` or `order`, links that never wait, one slot a
device.

Nothing waits for memory. The simulations go from instant to instant side by side: when what starts there will end, and its output will be
where it is needed, is known at once, as links never wait. Transfers take no device's time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.tensor_features import Problem

_NEVER = np.float64(np.inf)


class _Clock(NamedTuple):
    """Where the simulations of B assignments stand.

    At one instant there are several turns where something takes no time at all: what it lets start, starts in the next turn.

    Attributes:
      now_s: float64 [B]; turn: int32 [B], at that instant.
      missing: int32 [N, B], producers that have not started.
      arrival_s: float64 [N, B], arrival_turn: int32 [N, B], of the latest input, as far as known.
      ready_s: float64 [N, B], since when a vertex can start; infinite for those that cannot, or have.
      free_s: float64 [D, B]; makespan_s: float64 [B].
    """

    now_s: tf.Tensor
    turn: tf.Tensor
    missing: tf.Tensor
    arrival_s: tf.Tensor
    arrival_turn: tf.Tensor
    ready_s: tf.Tensor
    free_s: tf.Tensor
    makespan_s: tf.Tensor


def makespans(problem: Problem, device: tf.Tensor, position: tf.Tensor | None = None) -> tf.Tensor:
    """float64 [B]: seconds of assignments (int32 [B, N]) of a graph without cycles, as `FastSimulator` has them.

    Args: position: int32 [B, N], each vertex's place in the order, for the rule `order`; None: `fifo`.
    """
    where = tf.transpose(device)
    source, target = tf.unstack(problem.edges, axis=1)
    count, assignments = tf.shape(where)[0], tf.shape(where)[1]
    devices = tf.shape(problem.memory_bytes)[0]
    exec_s = tf.gather(problem.exec_s, where, batch_dims=1)
    cost_s, remote = _transfers(problem, where)
    lane = where * assignments + tf.range(assignments)
    vertex = tf.repeat(tf.range(count)[:, None], assignments, axis=1)

    def by_device(reduce, values: tf.Tensor) -> tf.Tensor:
        """[N, B] -> [D, B]"""
        return tf.reshape(reduce(tf.reshape(values, [-1]), tf.reshape(lane, [-1]), devices * assignments), [devices, assignments])

    def of_device(values: tf.Tensor) -> tf.Tensor:
        """[D, B] -> [N, B]"""
        return tf.gather(tf.reshape(values, [-1]), lane)

    def starting(clock: _Clock, now: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
        """bool [N, B]: on each free device the ready vertex that is first in the order, or ready for longest, the first among equals."""
        ready = (clock.ready_s < now) | ((clock.ready_s == now) & (clock.arrival_turn <= turn))
        ready &= of_device(clock.free_s) <= now
        if position is not None:
            place = tf.where(ready & (clock.ready_s < _NEVER), tf.transpose(position), count)
            return (place < count) & (place == of_device(by_device(tf.math.unsorted_segment_min, place)))
        ready_s = tf.where(ready, clock.ready_s, _NEVER)
        longest = (ready_s < _NEVER) & (ready_s == of_device(by_device(tf.math.unsorted_segment_min, ready_s)))
        first = by_device(tf.math.unsorted_segment_min, tf.where(longest, vertex, count))
        return longest & (vertex == of_device(first))

    def step(*state: tf.Tensor) -> _Clock:
        clock = _Clock(*state)
        now = tf.reduce_min(tf.maximum(by_device(tf.math.unsorted_segment_min, clock.ready_s), clock.free_s), axis=0)
        turn = tf.where(now == clock.now_s, clock.turn + 1, 0)
        starts = starting(clock, now, turn)
        end_s = now + exec_s
        end_turn = tf.where(end_s > now, 0, turn + 1)
        ends = tf.where(starts, end_s, 0.0)
        sent, left_s = tf.gather(starts, source), tf.gather(end_s, source)
        there_s = left_s + cost_s
        there_turn = tf.where(there_s > left_s, 0, tf.gather(end_turn, source) + remote)
        latest_s = tf.math.unsorted_segment_max(tf.where(sent, there_s, 0.0), target, count)
        arrival_s = tf.maximum(clock.arrival_s, latest_s)
        last = sent & (there_s == tf.gather(arrival_s, target))
        last_turn = tf.math.unsorted_segment_max(tf.where(last, there_turn, 0), target, count)
        arrival_turn = tf.maximum(tf.where(arrival_s > clock.arrival_s, 0, clock.arrival_turn), last_turn)
        missing = clock.missing - tf.math.unsorted_segment_sum(tf.cast(sent, tf.int32), target, count)
        ready_s = tf.where(starts, _NEVER, tf.where((missing == 0) & (clock.missing > 0), arrival_s, clock.ready_s))
        return _Clock(now, turn, missing, arrival_s, arrival_turn, ready_s,
                      tf.maximum(clock.free_s, by_device(tf.math.unsorted_segment_max, ends)),
                      tf.maximum(clock.makespan_s, tf.reduce_max(ends, axis=0)))

    in_degree = tf.math.bincount(target, minlength=count, maxlength=count)
    missing = tf.repeat(in_degree[:, None], assignments, axis=1)
    nothing_s, no_turn = tf.zeros([count, assignments], tf.float64), tf.zeros([count, assignments], tf.int32)
    start = _Clock(tf.fill([assignments], tf.constant(-1.0, tf.float64)), tf.zeros([assignments], tf.int32), missing, nothing_s, no_turn,
                   tf.where(missing == 0, nothing_s, _NEVER), tf.zeros([devices, assignments], tf.float64),
                   tf.zeros([assignments], tf.float64))
    return _Clock(*tf.while_loop(lambda *state: tf.reduce_any(_Clock(*state).ready_s < _NEVER), step, start)).makespan_s


def _transfers(problem: Problem, where: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """float64 [E, B]: what an edge's tensor takes to its consumer's device, which it reaches once, for all its consumers there; int32
    [E, B]: 1 where that is another device."""
    source, target = tf.unstack(problem.edges, axis=1)
    count, assignments = tf.shape(where)[0], tf.shape(where)[1]
    devices = tf.shape(problem.memory_bytes)[0]
    here, there = tf.gather(where, source), tf.gather(where, target)
    link = here * devices + there
    link_s = (tf.gather(tf.reshape(problem.latency_s, [-1]), link)
              + problem.edge_bytes[:, None] / tf.gather(tf.reshape(problem.bandwidth_bytes_per_s, [-1]), link))
    cost_s = tf.where(problem.explicit[:, None], problem.transfer_s[:, None], link_s)
    cost_s = tf.where(here == there, tf.zeros_like(cost_s), cost_s)
    copy = (source[:, None] * devices + there) * assignments + tf.range(assignments)
    largest_s = tf.math.unsorted_segment_max(tf.reshape(cost_s, [-1]), tf.reshape(copy, [-1]), count * devices * assignments)
    return tf.gather(largest_s, copy), tf.cast(here != there, tf.int32)
