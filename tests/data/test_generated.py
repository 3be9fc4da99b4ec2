"""Generated problems: legal, as large as asked, of every kind, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from data.generated import FAMILIES, generated_problem
from doppler_tf.heuristics import critical_path
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.simulator import Simulator


@pytest.mark.parametrize("family", FAMILIES)
def test_problems_of_every_kind_are_as_large_as_asked_and_can_be_placed(family):
    for seed in range(12):
        problem = generated_problem(seed, (20, 80), family=family)
        assert problem.family == family
        assert 20 <= problem.graph.work_vertices.size <= 80
        assert np.isfinite(problem.costs.exec_s).all()
        assigned = critical_path(Problem(problem.graph, problem.costs), np.random.default_rng(0))
        assert Simulator().execute(problem.graph, problem.costs, assigned).makespan_s > 0


def test_seeds_repeat_and_differ():
    first, again, other = (generated_problem(seed) for seed in (5, 5, 6))
    assert first.graph.graph_hash == again.graph.graph_hash != other.graph.graph_hash
    assert first.costs.topology.topology_hash == again.costs.topology.topology_hash


def test_what_is_drawn_varies():
    problems = [generated_problem(seed) for seed in range(80)]
    assert {problem.family for problem in problems} == set(FAMILIES)
    assert {problem.costs.num_devices for problem in problems} == {2, 3, 4, 6, 8, 16}
    ratios = [p.costs.mean_transfer_s[p.graph.work_edges].sum() / p.costs.mean_exec_s.sum() for p in problems]
    assert min(ratios) < 0.2
    assert max(ratios) > 5
    assert any((problem.graph.colocate >= 0).any() for problem in problems)
    assert any(np.ptp(problem.costs.exec_s[problem.graph.work_vertices[0]]) > 0 for problem in problems)
    assert any(problem.costs.topology.link_slots is None for problem in problems)


def test_the_number_of_devices_can_be_asked_for():
    assert generated_problem(3, devices=5).costs.num_devices == 5
