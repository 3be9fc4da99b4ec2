"""Simulations that are abandoned: what they return is a bound, and no search decides otherwise for it."""

from __future__ import annotations

import dataclasses

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.layered import Layered, layered_graph
from doppler_tf.costs import build_costs
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.remaining import remaining
from doppler_tf.fastsim.single import makespan
from doppler_tf.formats.records import graph_from_records
from doppler_tf.heuristics.chain import DRAWS, walk
from doppler_tf.heuristics.kin import kin
from doppler_tf.heuristics.start import starting_point
from doppler_tf.topology import ideal, preset
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf

ABOUT = 1 + 1e-9


@numba.njit
def simulated(devices, prepared, limit_s, tail):
    return makespan(devices, prepared, limit_s, tail)


@settings(max_examples=150, deadline=None)
@given(case=cases(constrained=True, noise=False) | cases_short_of_memory(), share=st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0, 2.0]),
       least=st.booleans())
def test_what_an_abandoned_simulation_returns_is_a_bound_above_the_limit(case, share, least):
    case = dataclasses.replace(case, noise=None)
    exact_s = makespan_or_inf(case)
    prepared = FastSimulator(case.graph, case.costs, case.rule).prepared(case.assignment.order)
    devices, tail = case.assignment.device[None].astype(np.int32), np.zeros(case.graph.num_vertices)
    bound_s = remaining(devices, prepared, np.inf, tail)
    assert 0 <= bound_s <= exact_s * ABOUT
    assert (prepared.least_tail <= tail * ABOUT)[case.graph.work_vertices].all()
    limit_s = share * (exact_s if np.isfinite(exact_s) else bound_s)
    found_s = simulated(devices, prepared, limit_s, prepared.least_tail if least else tail)
    if found_s != exact_s:
        assert limit_s < found_s <= exact_s * ABOUT


def test_a_bound_by_hand():
    """Two devices, a -> b of 3 + 2 s with 4 s between them, c of 6 s beside a: the path takes 9 s, and so does what a and c share."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in (("a", 3), ("b", 2), ("c", 6))],
                               [{"source": "a", "target": "b", "transfer_s": 4}])
    prepared = FastSimulator(graph, build_costs(graph, ideal(2))).prepared()
    assert prepared.least_tail.tolist() == [5, 2, 6]
    for device, tail_s, bound_s in (([0, 1, 1], [9, 2, 6], 9), ([0, 0, 0], [5, 2, 6], 11), ([0, 0, 1], [5, 2, 6], 6)):
        tail = np.zeros(3)
        assert remaining(np.array([device], np.int32), prepared, np.inf, tail) == bound_s
        assert tail.tolist() == tail_s
    # 0.5 s below the makespan of 11 s, known as soon as something starts.
    assert simulated(np.zeros((1, 3), np.int32), prepared, 10.5, prepared.least_tail) == 11


@pytest.mark.parametrize("name", ["p100x4", "v100x8", "cpu:2"])
@pytest.mark.parametrize("hot", [0.0, 0.03])
def test_a_walk_decides_as_if_nothing_were_abandoned(name, hot):
    graph = layered_graph(Layered(60, 8, 1.8, 2, 6, 1e10, 8e6, 0.5), 1)
    costs = build_costs(graph, preset(name))
    start = starting_point(graph, costs, np.random.default_rng(0), "fifo")
    related, prepared = kin(graph, costs), FastSimulator(graph, costs).prepared(start.order)
    draws = np.random.default_rng(1).random((3000, DRAWS))

    def walked(measure: bool):
        current, levels = start.device[None].astype(np.int32).copy(), np.array([np.inf, np.inf])
        best = current.copy()
        first = FastSimulator(graph, costs).makespans(current)[0]
        temperature = np.geomspace(hot, hot / 300, len(draws)) * first if hot else np.zeros(len(draws))
        losses = walk(related, prepared, draws, temperature, 1e3, current, best, levels, measure)
        return current.tolist(), best.tolist(), levels.tolist(), losses

    measured, abandoning = walked(True), walked(False)
    assert abandoning[:3] == measured[:3]
    assert measured[3][1] > 300
    assert abandoning[3] == (0.0, 0)
    assert measured[2][1] < FastSimulator(graph, costs).makespans(start.device[None].astype(np.int32))[0]
