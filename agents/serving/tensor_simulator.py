"""The rules of time in TensorFlow, for models that rank their own samples: `fifo` or `order`, links that never wait, one slot a
device.

Nothing waits for memory: what would have to wait, or never fits, takes infinitely long. The simulations go from instant to instant side by
side: when what starts there will end, and its output will be where it is needed, is known at once, as links never wait. Transfers take no
device's time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.serving.tensor_features import Problem

_NEVER = np.float64(np.inf)


class _Clock(NamedTuple):
    """Where the simulations of B assignments stand.

    At one instant there are several turns where something takes no time at all: what it lets start, starts in the next turn.

    Attributes:
      now_s: float64 [B]; turn: int32 [B], at that instant.
      missing: int32 [N, B], producers that have not started.
      arrival_s: float64 [N, B], arrival_turn: int32 [N, B], of the latest input, as far as known.
      ready_s: float64 [N, B], since when a vertex can start; infinite for those that cannot, or have.
      start_s: float64 [N, B], of what has started; free_s: float64 [D, B]; makespan_s: float64 [B].
    """

    now_s: tf.Tensor
    turn: tf.Tensor
    missing: tf.Tensor
    arrival_s: tf.Tensor
    arrival_turn: tf.Tensor
    ready_s: tf.Tensor
    start_s: tf.Tensor
    free_s: tf.Tensor
    makespan_s: tf.Tensor


def makespans(problem: Problem, device: tf.Tensor, position: tf.Tensor | None = None) -> tf.Tensor:
    """float64 [B]: seconds of assignments (int32 [B, N]) of a graph without cycles, as `FastSimulator` has them; infinity for those that
    use a device that cannot run a vertex, or a link that does not exist, or would wait for memory.

    Args: position: int32 [B, N], each vertex's place in the order, for the rule `order`; None: `fifo`.
    """
    where = tf.transpose(device)
    source, target = tf.unstack(problem.edges, axis=1)
    count, assignments = tf.shape(where)[0], tf.shape(where)[1]
    devices = tf.shape(problem.memory_bytes)[0]
    exec_s = tf.gather(problem.exec_s, where, batch_dims=1)
    able = tf.reduce_all(tf.math.is_finite(exec_s), axis=0)
    exec_s = tf.where(tf.math.is_finite(exec_s), exec_s, 0.0)
    cost_s, remote = _transfers(problem, where)
    able &= tf.reduce_all(tf.math.is_finite(cost_s), axis=0)
    cost_s = tf.where(tf.math.is_finite(cost_s), cost_s, 0.0)
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
        return _Clock(now, turn, missing, arrival_s, arrival_turn, ready_s, tf.where(starts, now, clock.start_s),
                      tf.maximum(clock.free_s, by_device(tf.math.unsorted_segment_max, ends)),
                      tf.maximum(clock.makespan_s, tf.reduce_max(ends, axis=0)))

    in_degree = tf.math.bincount(target, minlength=count, maxlength=count)
    missing = tf.repeat(in_degree[:, None], assignments, axis=1)
    nothing_s, no_turn = tf.zeros([count, assignments], tf.float64), tf.zeros([count, assignments], tf.int32)
    start = _Clock(tf.fill([assignments], tf.constant(-1.0, tf.float64)), tf.zeros([assignments], tf.int32), missing, nothing_s, no_turn,
                   tf.where(missing == 0, nothing_s, _NEVER), nothing_s, tf.zeros([devices, assignments], tf.float64),
                   tf.zeros([assignments], tf.float64))
    clock = _Clock(*tf.while_loop(lambda *state: tf.reduce_any(_Clock(*state).ready_s < _NEVER), step, start))
    able &= tf.cond(tf.reduce_all(tf.math.is_inf(problem.memory_bytes)), lambda: tf.ones_like(able),
                    lambda: _fits(problem, where, clock.start_s, exec_s, cost_s))
    return tf.where(able, clock.makespan_s, _NEVER)


def _fits(problem: Problem, where: tf.Tensor, start_s: tf.Tensor, exec_s: tf.Tensor, cost_s: tf.Tensor) -> tf.Tensor:
    """bool [B]: whether no device ever holds more bytes than it has, if nothing waits for memory.

    An output is held at home from its vertex's start, a copy from its producer's end, each to the end of its last use there. What is freed
    at an instant makes room for what begins then, unless the last use took no time, as it may come after that.

    Args: where: int32 [N, B]; start_s, exec_s: float64 [N, B]; cost_s: float64 [E, B].
    """
    source, target = tf.unstack(problem.edges, axis=1)
    count, assignments, devices = tf.shape(where)[0], tf.shape(where)[1], tf.shape(problem.memory_bytes)[0]
    end_s, there = start_s + exec_s, tf.gather(where, target)
    sent = tf.gather(where, source) != there
    used_s = tf.where(sent, tf.gather(end_s, source) + cost_s, tf.gather(end_s, target))
    instant = tf.where(sent, cost_s, tf.gather(exec_s, target)) == 0.0
    consumed = tf.math.unsorted_segment_sum(tf.ones_like(source), source, count)[:, None] > 0
    home_s = tf.where(consumed, tf.math.unsorted_segment_max(used_s, source, count), _NEVER)
    last = tf.cast(instant & (used_s == tf.gather(home_s, source)), tf.int32)
    late = (tf.math.unsorted_segment_max(last, source, count) > 0) | (home_s == start_s)
    # A copy serves all consumers on its device, and is counted with the first of their edges.
    copy = tf.reshape((source[:, None] * devices + there) * assignments + tf.range(assignments), [-1])

    def of_copy(reduce, values: tf.Tensor) -> tf.Tensor:
        return tf.gather(reduce(tf.reshape(values, [-1]), copy, count * devices * assignments), tf.reshape(copy, tf.shape(there)))

    number = tf.repeat(tf.range(tf.shape(source)[0])[:, None], assignments, axis=1)
    counted = sent & (of_copy(tf.math.unsorted_segment_min, number) == number)
    copy_s, arrived_s = of_copy(tf.math.unsorted_segment_max, tf.gather(end_s, target)), tf.gather(end_s, source)
    at_last = tf.cast((tf.gather(exec_s, target) == 0.0) & (tf.gather(end_s, target) == copy_s), tf.int32)
    copy_late = (of_copy(tf.math.unsorted_segment_max, at_last) > 0) | (copy_s == arrived_s)
    held = tf.concat([tf.repeat(problem.output_bytes[:, None], assignments, axis=1),
                      tf.where(counted, tf.gather(problem.output_bytes, source)[:, None], 0.0)], axis=0)
    # Bytes that begin and end to be held, by device, then by time; at one instant ends come first, late ones last.
    device = tf.tile(tf.concat([where, there], axis=0), [2, 1])
    time_s = tf.concat([start_s, arrived_s, home_s, copy_s], axis=0)
    turn = tf.concat([tf.ones_like(where), tf.ones_like(there), *(2 * tf.cast(each, tf.int32) for each in (late, copy_late))], axis=0)
    change = tf.concat([held, -held], axis=0)
    columns = [tf.transpose(each) for each in (turn, time_s, device, change)]
    for key in range(3):
        order = tf.argsort(columns[key], axis=1, stable=True)
        columns = [tf.gather(each, order, batch_dims=1) for each in columns]
    *_, device, change = columns
    return tf.reduce_all(tf.cumsum(change, axis=1) <= tf.gather(problem.memory_bytes, device), axis=1)


def _transfers(problem: Problem, where: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """float64 [E, B]: what an edge's tensor takes to its consumer's device, which it reaches once, for all its consumers there, infinity
    without a link; int32 [E, B]: 1 where that is another device."""
    source, target = tf.unstack(problem.edges, axis=1)
    count, assignments = tf.shape(where)[0], tf.shape(where)[1]
    devices = tf.shape(problem.memory_bytes)[0]
    here, there = tf.gather(where, source), tf.gather(where, target)
    link = here * devices + there
    linked = tf.gather(tf.reshape(problem.links, [-1]), link)
    bandwidth = tf.where(problem.links, problem.bandwidth_bytes_per_s, 1.0)
    link_s = (tf.gather(tf.reshape(problem.latency_s, [-1]), link)
              + problem.edge_bytes[:, None] / tf.gather(tf.reshape(bandwidth, [-1]), link))
    cost_s = tf.where(linked, tf.where(problem.explicit[:, None], problem.transfer_s[:, None], link_s), _NEVER)
    cost_s = tf.where(here == there, tf.zeros_like(cost_s), cost_s)
    copy = (source[:, None] * devices + there) * assignments + tf.range(assignments)
    largest_s = tf.math.unsorted_segment_max(tf.reshape(cost_s, [-1]), tf.reshape(copy, [-1]), count * devices * assignments)
    return tf.gather(largest_s, copy), tf.cast(here != there, tf.int32)
