"""Assignments of all qualities, all of them legal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics.mixtures import FAMILIES, rank_correlation, spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import check_constraints
from tests.strategies import cases


@given(case=cases(constrained=True, noise=False))
def test_legal_whatever_the_constraints(case):
    for assignment in spread_assignments(case.problem, 7, np.random.default_rng(1)):
        assert (assignment.device[case.graph.is_input] == -1).all()
        check_constraints(case.graph, case.costs, assignment.device, "spread")


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_from_one_device_to_all(count):
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(64)], [])
    costs = build_costs(graph, ideal(4))
    made = spread_assignments(Problem(graph, costs), count, np.random.default_rng(0))
    assert [assignment.method for assignment in made[:3]] == list(FAMILIES)[:count]
    assert len(made) == count
    away = [float((assignment.device != 0).mean()) for assignment in made if assignment.method == FAMILIES[0]]
    assert away[0] == 0.0
    if count == 30:
        assert away[-1] > 0.6
        assert np.all(np.diff(away) > -0.2)
        assert len({assignment.device.tobytes() for assignment in made}) == count


def test_the_same_for_a_seed():
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(16)], [])
    costs = build_costs(graph, ideal(3))
    first, second = ([a.device.tolist() for a in spread_assignments(Problem(graph, costs), 9, np.random.default_rng(5))] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("x", "y", "expected"), [
    ([1, 2, 3], [10, 20, 21], 1.0), ([1, 2, 3], [3, 2, 1], -1.0), ([1, 2, 3], [10, 30, 20], 0.5), ([1, 2, 3, 4], [2, 1, 4, 3], 0.6),
    ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / math.sqrt(4.5 * 5)), ([1, 1, 2, 2], [5, 5, 7, 7], 1.0), ([0, 1e9, 1], [0, 3, 2], 1.0),
])
def test_rank_correlation_by_hand(x, y, expected):
    assert rank_correlation(np.array(x), np.array(y)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [([1, 1, 1], [1, 2, 3]), ([1, 2], [4, 4]), ([1], [2]), ([], [])])
def test_equal_values_have_no_rank_correlation(x, y):
    assert math.isnan(rank_correlation(np.array(x), np.array(y)))
