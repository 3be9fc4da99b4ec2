"""Simulations that are abandoned: what they return is a bound, and no search decides otherwise for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import build_workload
from data.layered import Layered, layered_graph
from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.prepared import makespan_bound
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal, preset
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.metropolis import DRAWS, walk, walk_state
from doppler_tf.heuristics.search.move_sets import move_sets
from doppler_tf.heuristics.search.proposals import shipped_proposals
from doppler_tf.heuristics.search.starting_point import starting_point
from tests.heuristics.one_simulation import simulated
from tests.messages import assert_says, refusal
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf

ABOUT = 1 + 1e-9
NOTHING_NOTED = np.empty(0, np.int32)


@given(case=cases(constrained=True, noise=False) | cases_short_of_memory(), share=st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0, 2.0]),
       least=st.booleans())
def test_what_an_abandoned_simulation_returns_is_a_bound_above_the_limit(case, share, least):
    case = replace(case, noise=None)
    exact_s = makespan_or_inf(case)
    prepared = case.prepared
    devices, tail = case.assignment.device[None].astype(np.int32), np.zeros(case.graph.num_vertices)
    bound_s = makespan_bound(devices, prepared, np.inf, tail)
    assert 0 <= bound_s <= exact_s * ABOUT
    assert (prepared.least_tail <= tail * ABOUT)[case.graph.work_vertices].all()
    limit_s = share * (exact_s if np.isfinite(exact_s) else bound_s)
    found_s = simulated(devices, prepared, limit_s, prepared.least_tail if least else tail, NOTHING_NOTED)
    if found_s != exact_s:
        assert limit_s < found_s <= exact_s * ABOUT


def graph_abc():
    """a -> b, and c by itself."""
    return graph_from_records([{"id": v, "exec_s": s} for v, s in (("a", 3), ("b", 2), ("c", 6))],
                              [{"source": "a", "target": "b", "transfer_s": 4}])


def test_a_bound_by_hand():
    """Two devices, a -> b of 3 + 2 s with 4 s between them, c of 6 s beside a: the path takes 9 s, and so does what a and c share."""
    prepared = FastSimulator(graph_abc(), build_costs(graph_abc(), ideal(2))).prepared()
    assert prepared.least_tail.tolist() == [5, 2, 6]
    for device, tail_s, bound_s in (([0, 1, 1], [9, 2, 6], 9), ([0, 0, 0], [5, 2, 6], 11), ([0, 0, 1], [5, 2, 6], 6)):
        tail = np.zeros(3)
        assert makespan_bound(np.array([device], np.int32), prepared, np.inf, tail) == bound_s
        assert tail.tolist() == tail_s


@pytest.mark.parametrize("links", ["free", "queue"])
def test_a_simulation_ends_as_soon_as_enough_is_known(links):
    """Beside the graph above: with limits of 4, 7 and 8.5 s at a's start (5 s to the end of b), at c's, and when b's input is sent."""
    topology = replace(ideal(2), link_slots=None if links == "free" else 1)
    prepared = FastSimulator(graph_abc(), build_costs(graph_abc(), topology)).prepared()
    apart = np.array([[0, 1, 1]], np.int32)
    for limit_s, told_s in ((4.0, 5), (7.0, 8), (8.5, 9), (9.0, 9), (99.0, 9)):
        assert simulated(apart, prepared, limit_s, prepared.least_tail, NOTHING_NOTED) == told_s


@pytest.mark.parametrize("link_slots", [None, 1])
def test_most_of_what_is_hopeless_is_abandoned(link_slots):
    graph = build_workload("ffnn", 4)
    simulator = FastSimulator(graph, build_costs(graph, replace(preset("p100x4"), link_slots=link_slots)))
    devices = np.random.default_rng(0).integers(4, size=(40, graph.num_vertices)).astype(np.int32)
    exact_s, prepared = simulator.makespans(devices), simulator.prepared()
    told_s = np.array([simulated(devices[b:b + 1], prepared, 0.8 * exact_s[b], prepared.least_tail, NOTHING_NOTED) for b in range(40)])
    assert ((told_s > 0.8 * exact_s) & (told_s <= exact_s * ABOUT)).all()
    assert (told_s < exact_s).mean() > 0.8


@given(case=cases(min_devices=2, constrained=True, noise=False) | cases_short_of_memory(), hot=st.sampled_from([0.0, 0.1, np.inf]))
def test_a_walk_decides_as_if_nothing_were_abandoned(case, hot):
    graph, costs = case.graph, case.costs
    related = move_sets(graph, costs)
    draws = np.random.default_rng(1).random((200, DRAWS))
    temperature = np.zeros(len(draws)) if hot == 0 else np.full(len(draws), hot) * (1 if hot == np.inf else 1 + costs.exec_s.max())

    def walked(measure: bool) -> list:
        state = walk_state(case.assignment.device, graph.num_edges, ordered=case.rule == "order")
        state.priority[:] = case.prepared.priority[0] if case.rule == "order" else 0.0
        prepared = case.prepared._replace(priority=state.priority[:1]) if case.rule == "order" else case.prepared
        walk(related, prepared, shipped_proposals(), state, draws, temperature, 1e6, measure)
        return [state.current.tolist(), state.best.tolist(), state.priority.tolist(), state.levels.tolist()]

    assert walked(False) == walked(True)


@pytest.mark.parametrize("name", ["p100x4", "v100x8", "cpu:2"])
def test_a_long_walk_decides_so_too_and_measures_nothing(name):
    graph = layered_graph(Layered(60, 8, 1.8, 2, 6, 1e10, 8e6, 0.5), 1)
    costs = build_costs(graph, preset(name))
    start = starting_point(Problem(graph, costs), np.random.default_rng(0))
    related, prepared = move_sets(graph, costs), FastSimulator(graph, costs).prepared()
    draws, started_s = np.random.default_rng(1).random((3000, DRAWS)), FastSimulator(graph, costs).makespans(start.device[None])[0]

    temperature = np.geomspace(0.03, 1e-4, len(draws)) * started_s

    def walked(measure: bool):
        state = walk_state(start.device, graph.num_edges)
        losses = walk(related, prepared, shipped_proposals(), state, draws, temperature, 1e3, measure)
        return [state.current.tolist(), state.best.tolist(), state.levels.tolist()], losses, state.looks

    (measured, losses, unlooked), (abandoning, nothing, looks) = walked(True), walked(False)
    assert abandoning == measured
    assert measured[2][1] < started_s
    assert losses[1] > 300
    assert nothing == (0.0, 0)
    assert unlooked[1] == 0
    assert looks[1] >= 32


def test_noise_is_refused_where_bounds_would_not_hold():
    graph = graph_abc()
    noisy = FastSimulator(graph, build_costs(graph, ideal(2)), noise=draw_noise(3, 2, 0.3, 0))
    assert_says(refusal(ConfigError, noisy.prepared), "noise", "expected none if simulations may be abandoned", "leave it out")
