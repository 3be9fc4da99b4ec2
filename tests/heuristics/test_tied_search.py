"""The tied search: what repeats is placed alike, everything else holds as for any search, and a stack is placed better for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.workloads import build_workload
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import Topology, ideal, preset
from doppler_tf.heuristics import Budget, climb, search_tied
from doppler_tf.heuristics.constructive.simple import round_robin
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.repetition import find_repetition
from doppler_tf.heuristics.repeats.tied_search import _short_enough, place_tied
from doppler_tf.heuristics.search.move_sets import units
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import check_constraints
from doppler_tf.schedule.simulator import simulate
from tests.heuristics.stacks import stack, stacks
from tests.strategies import examples

RULES = ("fifo", "b_level", "order", "auto")
limited = Topology.from_json({"devices": [{"name": f"d{d}", "memory_bytes": 60} for d in range(3)],
                              "links": {"bandwidth_bytes_per_s": 2, "latency_s": 0.5}})


@examples(0.5)
@given(graph=stacks(constrained=True), topology=st.sampled_from([ideal(3), limited]), rule=st.sampled_from(RULES))
def test_chains_share_a_device_and_pins_groups_and_rules_hold(graph, topology, rule):
    costs = build_costs(graph, topology)
    repetition = find_repetition(graph, costs)
    if repetition is None:
        return
    found = place_tied(Problem(graph, costs, rule), np.random.default_rng(0), Budget(400))
    device = found.assignment.device
    check_constraints(graph, costs, device, "tied")
    assert all(len(set(device[repetition.chain == c].tolist())) == 1 for c in range(len(repetition.lengths)))
    if np.isfinite(found.makespan_s):
        assert found.makespan_s == pytest.approx(simulate(graph, costs, found.assignment).makespan_s, rel=1e-12)
    assert rule in ("auto", found.assignment.dispatch)


@examples(0.5)
@given(graph=stacks(constrained=True), topology=st.sampled_from([ideal(3), limited]), rule=st.sampled_from(RULES))
def test_never_worse_than_the_start_repeatable_and_true_to_the_simulator(graph, topology, rule):
    costs = build_costs(graph, topology)
    start = round_robin(Problem(graph, costs), np.random.default_rng(0))
    first, second = (search_tied(Problem(graph, costs, rule), np.random.default_rng(0), Budget(600), start) for _ in range(2))
    assert first.assignment.device.tolist() == second.assignment.device.tolist()
    assert first.makespan_s == second.makespan_s <= FastSimulator(graph, costs, "fifo" if rule == "auto" else rule).makespans_of([start])[0]
    if np.isfinite(first.makespan_s):
        assert first.makespan_s == pytest.approx(simulate(graph, costs, first.assignment).makespan_s, rel=1e-12)
    assert first.simulations <= 600
    assert first.assignment.method == "tied_search"


def test_memory_that_the_whole_lacks_is_found_out():
    """Transfers are dear. One device holds the few layers that are searched, but not all."""
    graph = stack(30, 6)
    devices = [{"name": f"d{d}", "memory_bytes": 100} for d in range(2)]
    costs = build_costs(graph, Topology.from_json({"devices": devices, "links": {"bandwidth_bytes_per_s": 1, "latency_s": 100}}))
    problem = Problem(graph, costs)
    assert place_tied(problem, np.random.default_rng(0), Budget(2000)).makespan_s == np.inf
    assert np.isfinite(search_tied(problem, np.random.default_rng(0), Budget(4000)).makespan_s)


def test_tied_vertices_are_one_unit_with_the_groups_of_all():
    graph = stack(4, 6, constrained=True)
    costs = build_costs(graph, ideal(3))
    own, tied = units(graph, costs), units(graph, costs, find_repetition(graph, costs).chain)
    assert own.num_units == 2 + 4 * 5
    assert tied.num_units == 2 + 5
    for name, other in (("0.2", "3.3"), ("0.5", "2.5")):
        a, b = graph.ids.index(name), graph.ids.index(other)
        assert tied.unit_of[a] == tied.unit_of[b]
        assert tied.allowed[tied.unit_of[a]].tolist() == costs.allowed[a].tolist()
    assert (tied.unit_of[graph.is_input] == -1).all()


def test_as_few_copies_as_rank_like_the_whole(monkeypatch):
    graph = stack(16, 8)
    costs = build_costs(graph, ideal(3))
    problem = Problem(graph, costs)
    tied = units(graph, costs, problem.repetition.chain).unit_of

    def copies(least: float) -> int:
        monkeypatch.setitem(_short_enough.__globals__, "_AGREES", least)
        return int((_short_enough(problem, np.random.default_rng(0), tied, "fifo").problem.graph.num_vertices - 2) / 9)

    assert copies(0.0) == 2
    assert copies(1.1) == 16


@pytest.mark.parametrize("seed", range(2))
def test_a_stack_is_placed_far_better_than_by_climbing_with_as_many_simulations(seed):
    """1.74 and 1.75 times the bound; hill climbing 2.05 and 2.00."""
    graph = build_workload("llama_stack", 8, layers=6)
    costs = build_costs(graph, preset("v100x8"))
    tied, free = (search(Problem(graph, costs, "b_level"), np.random.default_rng(seed), Budget(2000)) for search in (search_tied, climb))
    assert tied.makespan_s < 0.9 * free.makespan_s


def test_place_begins_with_it_where_a_graph_repeats_itself_and_nowhere_else():
    repeats, single = (build_workload("llama_stack", 4, layers=layers) for layers in (4, 1))
    for budget_s in (None, 1.0):
        placed = place(repeats, preset("p100x4"), samples=300, budget_s=budget_s)
        assert placed.makespan_s <= placed.makespans_s["tied_search"]
        assert "tied_search" not in place(single, preset("p100x4"), samples=300, budget_s=budget_s).makespans_s
    assert "tied_search" not in place(repeats, preset("p100x4"), budget_s=1e-6).makespans_s
