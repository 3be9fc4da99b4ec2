"""The race of starts: never worse than the fastest start, and as many starts as time allows."""

from __future__ import annotations

import time

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search import race as race_module
from doppler_tf.heuristics.search import walker as walker_module
from doppler_tf.heuristics.search.race import race
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment


def two_sums(sums: int = 12):
    """Vertices of 1 to `sums` seconds without edges, on two devices."""
    graph = graph_from_records([{"id": v, "exec_s": v + 1} for v in range(sums)], [])
    return graph, build_costs(graph, ideal(2))


def test_the_winner_is_simulated_truly_and_never_slower_than_any_start():
    graph, costs = two_sums()
    rng = np.random.default_rng(0)
    starts = [Assignment(rng.integers(2, size=12).astype(np.int32), np.arange(12, dtype=np.int32)) for _ in range(5)]
    starts.sort(key=lambda start: FastSimulator(graph, costs).makespans(start.device[None])[0])
    found = race(Pool(Problem(graph, costs), 39.0), 0, 5.0, starts)
    assert found.makespan_s == FastSimulator(graph, costs).makespans_of([found.assignment])[0]
    assert found.makespan_s <= FastSimulator(graph, costs).makespans(starts[0].device[None])[0]
    assert found.makespan_s == 39  # half of the work, which ends the race


def test_without_time_the_fastest_start_is_returned():
    graph, costs = two_sums()
    starts = [Assignment((np.arange(12) % 2).astype(np.int32), np.arange(12, dtype=np.int32)),
              *(Assignment(np.full(12, d, np.int32), np.arange(12, dtype=np.int32)) for d in range(2))]
    found = race(Pool(Problem(graph, costs)), 0, 0.0, starts)
    assert found.assignment.device.tolist() == starts[0].device.tolist()
    assert found.makespan_s == 42


class Raced:
    """A race by a clock on which a start and a step take so many seconds.

    Attributes: begun: the starts that race; stood: where each walk ended; resumed: what goes on, in all later rounds; steps: of each walk.
    """

    def __init__(self, monkeypatch, seconds: float, start_s: float, starts: int, step_s: float = 0.001):
        (graph, costs), now_s, walk = two_sums(), 0.0, walker_module.walk
        begin_at, resume, standing = Walker.begin_at, Walker.resume, Walker.standing
        self.begun, self.resumed, self.stood, self.steps = [], [], [], []

        def slow_walk(*arguments):
            nonlocal now_s
            now_s += step_s * len(arguments[5])
            self.steps += [len(arguments[5])] if len(arguments[5]) > 1 else []  # one simulates a start
            return walk(*arguments)

        def slow_begin(walker, start):
            nonlocal now_s
            now_s += start_s
            self.begun.append(start)
            begin_at(walker, start)

        def noted_resume(walker, where):
            self.resumed.append(where)
            resume(walker, where)

        def noted_standing(walker):
            self.stood.append(standing(walker))
            return self.stood[-1]

        monkeypatch.setattr(time, "perf_counter", lambda: now_s)
        monkeypatch.setattr(walker_module, "walk", slow_walk)
        monkeypatch.setattr(Walker, "begin_at", slow_begin)
        monkeypatch.setattr(Walker, "resume", noted_resume)
        monkeypatch.setattr(Walker, "standing", noted_standing)
        monkeypatch.setattr(Walker, "_judge", lambda walker: None)
        monkeypatch.setattr(race_module.os, "cpu_count", lambda: 1)
        self.starts = [Assignment((np.arange(12) < split).astype(np.int32), np.arange(12, dtype=np.int32)) for split in range(starts)]
        race(Pool(Problem(graph, costs)), 0, seconds, self.starts)


def test_the_better_half_goes_on_twice_as_long_until_one_is_left(monkeypatch):
    raced = Raced(monkeypatch, 100.0, 0.0, starts=8)
    assert raced.steps == [30, *[12] * 8, *[24] * 4, *[48] * 2]
    for begin, end, count in ((0, 8, 4), (8, 12, 2)):
        gone_on = raced.resumed[:4] if begin == 0 else raced.resumed[4:]
        assert [each.level_s for each in gone_on] == sorted(each.level_s for each in raced.stood[begin:end])[:count]


def test_as_many_starts_race_as_can_take_all_rounds(monkeypatch):
    """Four starts take 12 * (4 + 2 * 2) = 96 steps, five 12 * (5 + 2 * 3 + 4 * 2) = 228."""
    raced = Raced(monkeypatch, 0.03 + 0.1, 0.0, starts=8)
    assert (len(raced.begun), len(raced.resumed)) == (4, 2)


def test_without_time_for_two_there_is_no_race(monkeypatch):
    raced = Raced(monkeypatch, 0.03 + 0.023, 0.0, starts=8)
    assert (raced.begun, raced.resumed) == ([], [])


def test_starts_that_take_long_to_set_up_race_all_the_same(monkeypatch):
    raced = Raced(monkeypatch, 100.0, 10.0, starts=2)
    assert {start.device.tobytes() for start in raced.starts} <= {start.device.tobytes() for start in raced.begun}
    assert raced.steps == [30, 12, 12]
