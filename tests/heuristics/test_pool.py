"""The pool: it judges what it is given, remembers who found what, and says when to stop."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Found
from doppler_tf.schedule.assignment import Assignment


def four(bound_s: float = 2.0) -> Pool:
    """For four vertices of 1 s on two devices."""
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(4)], [])
    return Pool(Problem(graph, build_costs(graph, ideal(2))), bound_s)


def on(*device: int) -> Assignment:
    return Assignment(np.array(device, np.int32), np.arange(4, dtype=np.int32))


def test_what_heuristics_make_is_judged_and_ranked():
    pool = four()
    pool.take("first", [on(0, 0, 0, 0), on(1, 0, 0, 0), on(0, 0, 0, 1)])
    pool.take("second", [on(1, 1, 1, 1), on(1, 1, 1, 0)])
    assert {name: candidate.makespan_s for name, candidate in pool.members.items()} == {"first": 3, "second": 3}
    assert pool.leader == pool.best[1].method == "first"
    assert [start.device.tolist() for start in pool.starts()] == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert not pool.over
    pool.take("third", [on(0, 1, 0, 1)])
    assert (pool.leader, pool.over) == ("third", True)


def test_what_searches_find_is_remembered_by_search():
    pool = four(0.0)
    for makespan_s in range(100, 0, -1):
        pool.offer(float(makespan_s), Assignment(np.zeros(4, np.int32), None, "search"))
    assert [candidate.makespan_s for candidate in pool.improvements["search"]] == list(range(64, 0, -1))
    assert pool.best[0] == 1
    pool.enter("other", Found(on(0, 0, 1, 1), 2.0, simulations=7, lower_bound_s=1.0))
    assert (pool.simulations, pool.best[0], pool.over) == ({"other": 7}, 1, True)


def test_where_nothing_fits_nothing_is_best():
    pool = four()
    pool.put("heuristic", math.inf, on(0, 0, 0, 0))
    assert (pool.best, pool.leader, pool.over) == ((math.inf, None), "heuristic", False)
    pool.stop()
    assert pool.over
