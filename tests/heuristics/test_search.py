"""Searches: never worse than their start, more is never worse, the same by seed, within their budget; and the pieces they move."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import Budget, anneal, climb, draw_best
from doppler_tf.heuristics.constructive.simple import round_robin
from doppler_tf.heuristics.judging import ranks
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search import walker as walker_module
from doppler_tf.heuristics.search.annealing import cool
from doppler_tf.heuristics.search.move_sets import move_sets
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from tests.messages import assert_says, refusal
from tests.strategies import cases, cases_short_of_memory

SEARCHES = {"annealing": anneal, "local_search": climb, "random_search": draw_best}
every_search = pytest.mark.parametrize("name", SEARCHES)


def search(name: str, case, simulations: int, seed: int = 3):
    return SEARCHES[name](case.problem, np.random.default_rng(seed), Budget(simulations), case.assignment)


def judged(case, assignment: Assignment) -> float:
    """The makespan by `FastSimulator`, apart from the search's own loop."""
    return float(FastSimulator(case.graph, case.costs, case.rule).makespans_of([assignment])[0])


@every_search
@given(case=st.one_of(cases(max_devices=5, constrained=True, noise=False), cases_short_of_memory()))
def test_never_worse_than_the_start_and_true_to_the_simulator(name, case):
    found = search(name, case, 120)
    assert found.makespan_s <= judged(case, case.assignment)
    assert found.makespan_s == judged(case, found.assignment)
    assert found.simulations <= 120


@pytest.mark.parametrize("name", ["annealing", "local_search"])
@given(case=st.one_of(cases(max_devices=5, constrained=True, noise=False), cases_short_of_memory()))
def test_the_steadiest_is_true_to_the_simulator(name, case):
    pool = Pool(case.problem)
    SEARCHES[name](case.problem, np.random.default_rng(3), Budget(1000), case.assignment, pool)
    if name in pool.steadiest:
        assert pool.steadiest[name].makespan_s == judged(case, pool.steadiest[name].assignment)


@pytest.mark.parametrize("name", ["annealing", "local_search"])
@given(case=cases(max_devices=5, constrained=True, noise=False))
def test_more_simulations_are_never_worse(name, case):
    makespans = [search(name, case, n).makespan_s for n in (1, 20, 300, 2500)]
    assert makespans == sorted(makespans, reverse=True)
    assert search(name, case, 300).assignment.device.tolist() == search(name, case, 300).assignment.device.tolist()


def components(count: int = 4, length: int = 9):
    """As many equal tangles as devices, dear to cut: the best is one on each device, no heuristic by time sees it."""
    rng, nodes, edges = np.random.default_rng(0), [], []
    for c in range(count):
        for v in range(length):
            nodes.append({"id": c * length + v, "exec_s": 1})
            edges += [{"source": c * length + int(u), "target": c * length + v, "transfer_s": 3}
                      for u in rng.choice(v, min(v, 2), replace=False)]
    return graph_from_records(nodes, edges)


@pytest.mark.parametrize("name", ["annealing", "local_search"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("link_slots", [None, 1])
def test_components_are_found(name, seed, link_slots):
    graph = components()
    topology = Topology.from_json({"devices": [{"name": f"d{d}"} for d in range(4)], "link_slots": link_slots})
    start = Assignment(np.arange(36, dtype=np.int32) % 4, np.arange(36, dtype=np.int32))
    found = SEARCHES[name](Problem(graph, build_costs(graph, topology)), np.random.default_rng(seed), Budget(30_000), start)
    assert found.makespan_s == 9
    assert sorted(np.bincount(found.assignment.device).tolist()) == [9] * 4


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_a_start_that_runs_out_of_memory_is_left(name):
    """All on one device that holds 3 of 9 outputs; only three a device fit."""
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 1} for v in range(9)], [])
    costs = build_costs(graph, Topology.from_json({"devices": [{"name": f"d{d}", "memory_bytes": 3} for d in range(3)]}))
    found = SEARCHES[name](Problem(graph, costs), np.random.default_rng(0), Budget(3000), Assignment(np.zeros(9, np.int32), np.arange(9)))
    assert found.makespan_s == 3
    assert np.bincount(found.assignment.device).tolist() == [3, 3, 3]


@every_search
def test_seconds_are_kept_and_a_target_ends_it(name):
    graph = components(6, 30)
    costs = build_costs(graph, ideal(4))
    SEARCHES[name](Problem(graph, costs), np.random.default_rng(0), Budget(10))  # compiles
    started = time.perf_counter()
    found = SEARCHES[name](Problem(graph, costs), np.random.default_rng(0), Budget(seconds=0.3))
    assert 0.25 < time.perf_counter() - started < 20  # its budget of simulations has no end
    assert found.simulations > 100
    at_once = SEARCHES[name](Problem(graph, costs), np.random.default_rng(0), Budget(10**9), pool=Pool(None, math.inf))
    assert at_once.simulations <= 1000


@every_search
def test_a_bound_is_reached_but_for_rounding(name):
    """Two equal tasks on two devices: the start takes 1 s, as the bound says up to its last digits."""
    costs = build_costs(graph := graph_from_records([{"id": v, "exec_s": 1} for v in "ab"], []), ideal(2))
    assert SEARCHES[name](Problem(graph, costs), np.random.default_rng(0), Budget(10**6), pool=Pool(None, 1 - 1e-7)).simulations < 10**6
    assert not Pool(None, 1.0).reached(1 + 1e-5)


def test_units_and_sets_by_hand():
    """a and b are one group; c follows them; x and y are a component of their own; w is an input."""
    nodes = [{"id": "w", "input": True}, *({"id": v, "exec_s": 1} for v in "abcxy")]
    for node in nodes[1:3]:
        node["colocate"] = "g"
    nodes[4]["pin"] = 1
    edges = [("w", "a"), ("a", "c"), ("b", "c"), ("x", "y")]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in edges])
    made = move_sets(graph, build_costs(graph, ideal(2)))
    unit = dict(zip(graph.ids, made.unit_of.tolist(), strict=True))
    assert unit["w"] == -1
    assert unit["a"] == unit["b"]
    assert made.num_units == 4
    assert made.allowed[unit["x"]].tolist() == [False, True]
    sets = {frozenset(made.set_unit[i:j].tolist()) for i, j in zip(made.set_ptr[:-1], made.set_ptr[1:], strict=True)}
    assert frozenset((unit["a"], unit["c"])) in sets
    assert frozenset((unit["x"], unit["y"])) in sets
    assert all(len(each) in (2, 3) for each in sets)


@pytest.mark.parametrize(("options", "fragments"), [
    ({}, ["simulations: expected a number of simulations, or of seconds, or both, got None"]),
    ({"simulations": 0}, ["simulations: expected an integer >= 1 or None, got 0"]),
    ({"seconds": math.nan}, ["seconds: expected a number >= 0 or None, got nan"]),
])
def test_bad_budgets(options, fragments):
    assert_says(refusal(ConfigError, Budget, **options), *fragments)


def planted(count: int = 20):
    """Vertices of many lengths that two devices can share equally, an assignment that does, and its makespan; no search finds it soon."""
    halves = np.random.default_rng(1).integers(10**6, 10**7, (2, count))
    missing = halves.sum(axis=1).max() - halves.sum(axis=1)
    halves += (missing // count)[:, None]
    halves[:, -1] += missing % count
    where = np.random.default_rng(2).permutation(2 * count)
    graph = graph_from_records([{"id": v, "exec_s": int(s)} for v, s in enumerate(halves.ravel()[where])], [])
    return graph, Assignment((where // count).astype(np.int32), np.arange(2 * count, dtype=np.int32), "planted"), float(halves[0].sum())


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_side_by_side_and_not_shared_a_search_takes_its_own_steps_until_nothing_can_be_better(name):
    graph, best, best_s = planted()

    def run(pool: Pool | None):
        return SEARCHES[name](Problem(graph, build_costs(graph, ideal(2))), np.random.default_rng(0), Budget(14_000), pool=pool)

    alone, beside, over = run(None), Pool(None), Pool(None, best_s)
    beside.offer(best_s, best)
    apart = run(beside)
    assert (apart.makespan_s, apart.assignment.device.tolist()) == (alone.makespan_s, alone.assignment.device.tolist())
    assert apart.assignment.method == name
    assert alone.makespan_s > best_s
    over.offer(best_s, best)
    assert run(over).simulations == 1


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_what_is_shared_is_taken_over_and_keeps_the_name_of_its_finder(name):
    graph, best, best_s = planted()
    pool = Pool(None, shared=True)
    pool.offer(best_s, best)
    found = SEARCHES[name](Problem(graph, build_costs(graph, ideal(2))), np.random.default_rng(0), Budget(14_000), pool=pool)
    assert (found.makespan_s, found.assignment.device.tolist()) == (best_s, best.device.tolist())
    assert found.assignment.method == best.method == "planted"


def test_what_is_found_from_anothers_best_is_its_own_and_is_shared():
    """15 is the best there is; what is offered last is worse than what the walker has."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in enumerate((8, 7, 6, 5, 4))], [])
    problem = Problem(graph, build_costs(graph, ideal(2)))
    pool = Pool(problem, shared=True)
    order = np.arange(5, dtype=np.int32)
    start = Assignment(np.zeros(5, np.int32), order)
    walker = Walker("own", problem, np.random.default_rng(1), Budget(1000), start, pool)
    assert (walker.found().makespan_s, walker.found().assignment.method) == (30, "own")
    pool.offer(19.0, Assignment(np.array([0, 0, 1, 1, 0], np.int32), order, "other"))
    walker.return_to_best()
    assert walker.state.current[0].tolist() == [0, 0, 1, 1, 0]
    assert (walker.found().makespan_s, walker.found().assignment.method) == (19, "other")
    while walker.state.levels[1] == 19:
        walker.walk(np.zeros(1))
    own = walker.found()
    assert own.makespan_s == pool.best[0] < 19
    assert own.assignment.method == pool.best[1].method == "own"
    assert pool.best[1].device.tolist() == own.assignment.device.tolist()
    pool.offer(18.5, start)
    walker.return_to_best()
    assert walker.found().assignment.device.tolist() == own.assignment.device.tolist()


def test_all_that_cannot_ask_are_called_at_the_end():
    pool, called = Pool(None, 5.0), []
    pool.at_end(lambda: called.append("early"))
    pool.offer(6.0, Assignment(np.zeros(1, np.int32)))
    assert not pool.over
    assert not called
    pool.raise_bound(6.0)
    assert pool.over
    assert called == ["early"]
    pool.at_end(lambda: called.append("late"))
    assert called[-1] == "late"


def test_how_many_steps_the_seconds_left_afford(monkeypatch):
    """At the pace of the steps walked, whatever else takes time; no limit where simulations are counted."""
    graph, now_s, walk = planted()[0], 0.0, walker_module.walk

    def slow(*arguments):
        nonlocal now_s
        now_s += 0.25 * len(arguments[5])
        return walk(*arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(walker_module, "walk", slow)

    def walker(budget: Budget) -> Walker:
        found = Walker("own", Problem(graph, build_costs(graph, ideal(2))), np.random.default_rng(0), budget)
        found.walk(np.zeros(80))
        return found

    timed = walker(Budget(seconds=100.0))
    now_s = 40.0
    assert timed.affordable == 240  # four a second
    now_s = 101.0
    assert timed.affordable == 1
    assert walker(Budget(1000)).affordable == walker(Budget(1000, 1e6)).affordable == math.inf


def test_a_round_of_annealing_is_shortened_to_the_seconds_left():
    """The first round is 300 steps a unit, each other one half as long again; each cools from 0.3 to 0.001 typical losses."""
    affordable, walked = iter([99_999, 99_999, 5_000]), []

    class Noting(Walker):
        affordable = property(lambda _: next(affordable))

        def typical_loss_s(self):
            return 1000.0

        def walk(self, temperature_s):
            walked.append((len(temperature_s), temperature_s[0] / 1000, temperature_s[-1] / 1000))
            return super().walk(temperature_s)

    graph, budget = planted()[0], Budget(1 + 12_000 + 18_000 + 5_000)
    cool(Noting("noting", Problem(graph, build_costs(graph, ideal(2))), np.random.default_rng(0), budget))
    assert walked == [(steps, pytest.approx(0.3), pytest.approx(0.001)) for steps in (12_000, 18_000, 5_000)]


def pinned_chains(count: int = 3):
    """Chains of a short vertex on the first device and a vertex on the second, each longer than the one before; only the order is free.

    The shop of two machines of Johnson (1954): if every first vertex takes 1 s, the longest second vertices should be reached first.
    """
    nodes, edges = [], []
    for c in range(count):
        nodes += [{"id": f"a{c}", "exec_s": 1.0 + c, "pin": 0}, {"id": f"b{c}", "exec_s": 1.0 + 3 * (count - c), "pin": 1}]
        edges.append({"source": f"a{c}", "target": f"b{c}", "transfer_s": 0})
    return graph_from_records(nodes[::-1], edges, {"name": "chains"})


@pytest.mark.parametrize("dispatch", ["order", "auto"])
@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_priorities_are_found_where_devices_are_given(name, dispatch):
    graph = pinned_chains()
    costs = build_costs(graph, ideal(2))
    start = replace(round_robin(Problem(graph, costs), np.random.default_rng(0)), order=None, dispatch="fifo")
    assert simulate(graph, costs, start).makespan_s == 24.0  # fifo runs the longest first vertex first
    found = SEARCHES[name](Problem(graph, costs, dispatch), np.random.default_rng(0), Budget(400), start)
    assert found.makespan_s == simulate(graph, costs, found.assignment).makespan_s == 22.0  # Johnson's rule: a0, a1, a2
    assert found.assignment.dispatch == "order"
    assert found.assignment.priority.tolist() == ranks(found.assignment.priority).tolist()  # small numbers are written


@given(case=cases(max_devices=5, noise=False))
def test_under_auto_the_result_is_never_worse_than_the_start_and_true_to_the_simulator(case):
    start = replace(case.assignment, dispatch=case.rule)
    found = climb(Problem(case.graph, case.costs, "auto"), np.random.default_rng(0), Budget(50), start)
    assert found.makespan_s == simulate(case.graph, case.costs, found.assignment).makespan_s
    assert found.makespan_s <= simulate(case.graph, case.costs, start).makespan_s


def test_ties_of_priorities_stay_ties():
    """Two transfers that wait for equally urgent consumers go by tensor, in what is written as in the search."""
    assert ranks(np.array([5.0, -1.0, 5.0, 0.0])).tolist() == [2, 0, 2, 1]
    long, large = {2, 3, 8, 11, 12, 14, 15, 18}, {0, 1, 2, 5, 9, 11, 13, 14, 16, 18, 19}
    nodes = [{"id": v, "exec_s": 1 + (v in long), "output_bytes": 1 + (v in large)} for v in range(20)]
    pairs = ((1, 8), (2, 0), (2, 13), (2, 8), (4, 6), (4, 16), (4, 0), (5, 16), (6, 13), (6, 8), (9, 4), (9, 2), (10, 9), (10, 4),
             (10, 11), (11, 5), (11, 0), (11, 8), (12, 4), (12, 0), (12, 13), (15, 5), (15, 13), (15, 8), (16, 0), (17, 19),
             (17, 6), (17, 8), (19, 2))
    graph = graph_from_records(nodes, [{"source": u, "target": v} for u, v in pairs], {"name": "tied"})
    devices = [{"name": name, "flops_per_s": 1.0, "mem_bytes_per_s": 1.0, "launch_s": 0.0} for name in "ab"]
    links = {"bandwidth_bytes_per_s": 1.0, "latency_s": 0.0}
    costs = build_costs(graph, Topology.from_json({"name": "two", "devices": devices, "links": links, "link_slots": 1}))
    for seed in range(20):
        found = climb(Problem(graph, costs, "order"), np.random.default_rng(seed), Budget(3000))
        assert simulate(graph, costs, found.assignment).makespan_s == found.makespan_s
