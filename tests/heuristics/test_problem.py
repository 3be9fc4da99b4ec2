"""A problem: what is derived from it is computed once, by whichever thread asks first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics import problem as problem_module
from doppler_tf.heuristics.problem import Problem
from doppler_tf.placement import place
from doppler_tf.schedule.bounds import lower_bounds
from tests.strategies import cases


def fork(count: int = 6) -> Problem:
    """A vertex and others that await it."""
    graph = graph_from_records([{"id": v, "exec_s": 1 + v % 3} for v in range(count)],
                               [{"source": 0, "target": v, "transfer_s": 1} for v in range(1, count)])
    return Problem(graph, build_costs(graph, ideal(2)), "auto")


def test_each_part_is_computed_once_whoever_asks():
    problem = fork()
    with ThreadPoolExecutor(4) as threads:
        sets = list(threads.map(lambda _: problem.move_sets, range(8)))
    assert all(each is sets[0] for each in sets)
    fifo = problem.under("fifo")
    assert (problem.dispatch, fifo.dispatch) == ("auto", "fifo")
    assert fifo.move_sets is problem.move_sets
    assert fifo.simulator("b_level") is problem.simulator("b_level") is not problem.simulator("fifo")
    assert problem.bounds == lower_bounds(problem.graph, problem.costs)
    assert problem.order.tolist() == list(range(6))


@given(case=cases(noise=False))
def test_noise_on_a_simulator_that_exists_is_that_of_a_new_one(case):
    problem = case.problem
    noise = draw_noise(case.graph.num_vertices, case.costs.num_devices, 0.2, 3)
    made, anew = problem.noisy_simulator(case.rule, 0.2, 3), FastSimulator(case.graph, case.costs, case.rule, noise)
    assert made.makespans_of([case.assignment]).tolist() == anew.makespans_of([case.assignment]).tolist()
    plain = FastSimulator(case.graph, case.costs, case.rule)
    assert problem.simulator(case.rule).makespans_of([case.assignment]).tolist() == plain.makespans_of([case.assignment]).tolist()


def test_placed_again_it_is_the_same_and_nothing_is_prepared_again(monkeypatch):
    problem = fork(12)
    apart, first = place(problem.graph, problem.costs, samples=20), place(problem, samples=20)
    monkeypatch.setattr(problem_module, "FastSimulator", None)
    second = place(problem, samples=20)
    for placed in (first, second):
        assert placed.makespans_s == apart.makespans_s
        assert np.array_equal(placed.assignment.device, apart.assignment.device)
