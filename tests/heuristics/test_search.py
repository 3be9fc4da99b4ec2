"""Searches: never worse than their start, more is never worse, the same by seed, within their budget; and the pieces they move."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppler_tf.assignment import Assignment
from doppler_tf.costs import build_costs
from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.records import graph_from_records
from doppler_tf.heuristics import Budget, anneal, climb, draw_best
from doppler_tf.heuristics.kin import kin
from doppler_tf.heuristics.search import Exchange, Walker
from doppler_tf.topology import Topology, ideal
from tests.messages import assert_says, refusal
from tests.strategies import cases, cases_short_of_memory

SEARCHES = {"annealing": anneal, "local_search": climb, "random_search": draw_best}
every_search = pytest.mark.parametrize("name", SEARCHES)


def search(name: str, case, simulations: int, seed: int = 3):
    return SEARCHES[name](case.graph, case.costs, np.random.default_rng(seed), Budget(simulations), case.assignment, case.rule)


def judged(case, assignment: Assignment) -> float:
    """The makespan by `FastSimulator`, apart from the search's own loop."""
    return float(FastSimulator(case.graph, case.costs, case.rule).makespans(assignment.device[None], assignment.order[None])[0])


@every_search
@settings(max_examples=40, deadline=None)
@given(case=st.one_of(cases(max_devices=5, constrained=True, noise=False), cases_short_of_memory()))
def test_never_worse_than_the_start_and_true_to_the_simulator(name, case):
    found = search(name, case, 120)
    assert found.makespan_s <= judged(case, case.assignment)
    assert found.makespan_s == judged(case, found.assignment)
    assert found.simulations <= 120


@pytest.mark.parametrize("name", ["annealing", "local_search"])
@settings(max_examples=15, deadline=None)
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
    found = SEARCHES[name](graph, build_costs(graph, topology), np.random.default_rng(seed), Budget(30_000), start)
    assert found.makespan_s == 9
    assert sorted(np.bincount(found.assignment.device).tolist()) == [9] * 4


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_a_start_that_runs_out_of_memory_is_left(name):
    """All on one device that holds 3 of 9 outputs; only three a device fit."""
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 1} for v in range(9)], [])
    costs = build_costs(graph, Topology.from_json({"devices": [{"name": f"d{d}", "memory_bytes": 3} for d in range(3)]}))
    found = SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(3000), Assignment(np.zeros(9, np.int32), np.arange(9)))
    assert found.makespan_s == 3
    assert np.bincount(found.assignment.device).tolist() == [3, 3, 3]


@every_search
def test_seconds_are_kept_and_a_target_ends_it(name):
    graph = components(6, 30)
    costs = build_costs(graph, ideal(4))
    SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(10))  # compiles
    started = time.perf_counter()
    found = SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(seconds=0.3))
    assert 0.25 < time.perf_counter() - started < 3
    assert found.simulations > 100
    at_once = SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(10**9, target_s=math.inf))
    assert at_once.simulations <= 1000


@every_search
def test_a_bound_is_reached_but_for_rounding(name):
    """Two equal tasks on two devices: the start takes 1 s, as the bound says up to its last digits."""
    costs = build_costs(graph := graph_from_records([{"id": v, "exec_s": 1} for v in "ab"], []), ideal(2))
    assert SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(10**6, target_s=1 - 1e-12)).simulations < 10**6
    assert not Budget(1, target_s=1.0).reached(1 + 1e-9)


def test_units_and_sets_by_hand():
    """a and b are one group; c follows them; x and y are a component of their own; w is an input."""
    nodes = [{"id": "w", "input": True}, *({"id": v, "exec_s": 1} for v in "abcxy")]
    for node in nodes[1:3]:
        node["colocate"] = "g"
    nodes[4]["pin"] = 1
    edges = [("w", "a"), ("a", "c"), ("b", "c"), ("x", "y")]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in edges])
    made = kin(graph, build_costs(graph, ideal(2)))
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
    return graph, Assignment((where // count).astype(np.int32), np.arange(2 * count, dtype=np.int32)), float(halves[0].sum())


@pytest.fixture
def stood(monkeypatch):
    """Where searches stood whenever they went back to the best."""
    places, returned = [], Walker.return_to_best

    def return_to_best(walker):
        returned(walker)
        places.append(walker.current[0].tolist())

    monkeypatch.setattr(Walker, "return_to_best", return_to_best)
    return places


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_side_by_side_a_search_takes_its_own_steps_until_nothing_can_be_better(name, stood):
    graph, best, best_s = planted()

    def run(exchange: Exchange | None):
        return SEARCHES[name](graph, build_costs(graph, ideal(2)), np.random.default_rng(0), Budget(14_000), exchange=exchange)

    alone, beside, over = run(None), Exchange(0.0), Exchange(best_s)
    beside.offer(best_s, best)
    apart = run(beside)
    assert len(stood) > 2
    assert best.device.tolist() not in stood
    assert (apart.makespan_s, apart.assignment.device.tolist()) == (alone.makespan_s, alone.assignment.device.tolist())
    assert alone.makespan_s > best_s
    over.offer(best_s, best)
    assert run(over).simulations == 1


@pytest.mark.parametrize("name", ["annealing", "local_search"])
@pytest.mark.parametrize(("seconds", "follows"), [(1e-9, True), (math.inf, False)])
def test_what_is_far_behind_goes_on_from_the_best_of_all(name, seconds, follows, stood, monkeypatch):
    """Here the time is over, so that it is as soon as it is behind at all."""
    monkeypatch.setattr("doppler_tf.heuristics.following._MOST_STEPS", 5_000)
    graph, best, best_s = planted()
    costs, exchange = build_costs(graph, ideal(2)), Exchange(0.0, seconds)
    exchange.offer(best_s, best)
    found = SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(14_000), exchange=exchange)
    assert found.simulations >= 14_000  # a look at what another found is one more
    assert (best.device.tolist() in stood) is follows
    assert found.makespan_s == FastSimulator(graph, costs).makespans(found.assignment.device[None])[0]
    assert found.makespan_s > best_s  # what is another's is not its own


@pytest.mark.parametrize("name", ["annealing", "local_search"])
def test_who_follows_takes_over_what_is_a_little_better_too(name, stood, monkeypatch):
    graph, best, best_s = planted()
    monkeypatch.setattr("doppler_tf.heuristics.following._MOST_STEPS", 5_000)
    costs, exchange, returned = build_costs(graph, ideal(2)), Exchange(0.0, 1e6), Walker.return_to_best
    longer = climb(graph, costs, np.random.default_rng(1), Budget(100_000))
    exchange.offer(longer.makespan_s, longer.assignment)
    monkeypatch.setattr(Walker, "far_behind", property(lambda walker: walker.levels[1] > longer.makespan_s))

    def return_to_best(walker):
        returned(walker)
        exchange.offer(best_s, best)

    stood.clear()
    monkeypatch.setattr(Walker, "return_to_best", return_to_best)
    SEARCHES[name](graph, costs, np.random.default_rng(0), Budget(14_000), exchange=exchange)
    assert longer.assignment.device.tolist() == stood[0]
    assert best.device.tolist() in stood[1:]


def test_what_a_search_finds_from_anothers_best_is_its_own():
    """What was found before, between and after stays known; 15 is the best there is."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in enumerate((8, 7, 6, 5, 4))], [])
    costs, exchange = build_costs(graph, ideal(2)), Exchange(0.0)
    order = np.arange(5, dtype=np.int32)
    walker = Walker(graph, costs, np.random.default_rng(1), Budget(1000), Assignment(np.zeros(5, np.int32), order), "fifo", exchange)
    assert walker.found("first").makespan_s == 30
    walker.follows = True
    exchange.offer(19.0, Assignment(np.array([0, 0, 1, 1, 0], np.int32), order))
    for _ in range(2):  # the second time there is nothing better to take over
        walker.return_to_best()
        assert walker.current[0].tolist() == [0, 0, 1, 1, 0]
        assert (walker.found("own").makespan_s, walker.found("own").assignment.device.tolist()) == (30, [0] * 5)
    while walker.levels[1] == 19:
        walker.walk(np.zeros(1))
    own = walker.found("own")
    assert 15 < own.makespan_s == exchange.best[0] < 19
    exchange.offer(15.0, Assignment(np.array([0, 0, 1, 1, 1], np.int32), order))
    walker.return_to_best()
    assert (walker.current[0].tolist(), walker.levels[1]) == ([0, 0, 1, 1, 1], 15)
    assert walker.found("own").assignment.device.tolist() == own.assignment.device.tolist()


@pytest.mark.parametrize(("spent_s", "lag", "far"), [(39, 0.5, False), (40, 0.031, True), (40, 0.029, False), (80, 0.011, True),
                                                    (80, 0.009, False), (120, 0.001, True), (120, 0.0, False)])
def test_when_others_are_far_ahead(spent_s, lag, far, monkeypatch):
    """After 40% of the time, by more than 5% of the share of it that is left."""
    now_s = 1000.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    exchange = Exchange(0.0, 100.0)
    exchange.offer(7.0, None)
    now_s += spent_s
    assert exchange.far_ahead(7.0 * (1 + lag)) is far


def test_who_waits_is_woken_at_the_end():
    exchange = Exchange(5.0)
    began_s = time.perf_counter()
    exchange.wait(0.02)
    assert time.perf_counter() - began_s >= 0.02
    watch = threading.Timer(0.1, exchange.offer, (5.0, None))  # the bound itself
    watch.start()
    for _ in range(2):  # and no more once it is over
        exchange.wait(600.0)
    watch.join()
    assert time.perf_counter() - began_s < 300


def test_a_walk_is_left_once_it_is_far_behind(monkeypatch):
    """Between two slices, and once only: who follows is not asked again."""
    graph, best, best_s = planted()
    exchange, behind = Exchange(0.0), iter([False, True])
    walker = Walker(graph, build_costs(graph, ideal(2)), np.random.default_rng(0), Budget(10**6), None, "fifo", exchange)
    exchange.offer(best_s, best)
    walker._slice = 10
    monkeypatch.setattr(Walker, "far_behind", property(lambda _: next(behind)))
    walker.walk(np.zeros(100))
    assert (walker.steps, walker.follows) == (1 + 10, True)
    walker.return_to_best()
    assert walker.current[0].tolist() == best.device.tolist()
    walker.walk(np.zeros(100))
    assert walker.steps == 1 + 10 + 1 + 100


@pytest.mark.parametrize(("seconds_allow", "rounds", "follows"), [
    ((7_300, 99_999), ((12_000, 0.3, 0.001), (18_000, 0.3, 0.001)), ()),
    # Less than 40% of the second round: others.
    ((7_100, 4_000, 9_000), ((12_000, 0.3, 0.001), (2_000, 0.1, 0.0005), (3_000, 0.03, 0.0005)), (1, 2, 3)),
    ((7_100, 2_000, 3_300, 700), ((12_000, 0.3, 0.001), (1_200, 0.1, 0.0005), (1_200, 0.03, 0.0005), (700, 0.03, 0.0005)), (1, 2, 3, 4)),
])
def test_annealing_without_the_seconds_for_a_round_goes_on_from_the_best_of_all(seconds_allow, rounds, follows, stood, monkeypatch):
    """The first round is 300 steps a unit, each other one half as long again as the one before; who follows begins a round with half of the
    steps that the seconds allow, others with a third, or 30 a unit if they allow it. Each cools from so many typical losses to so many."""
    graph, best, best_s = planted()
    exchange, allowed, walked, walk = Exchange(0.0, 1e6), iter(seconds_allow), [], Walker.walk
    exchange.offer(best_s, best)
    monkeypatch.setattr(Walker, "affordable", property(lambda _: next(allowed)))
    monkeypatch.setattr(Walker, "typical_loss_s", lambda _: 1000.0)

    def walking(walker, temperature):
        walked.append((len(temperature), temperature[0] / 1000, temperature[-1] / 1000))
        return walk(walker, temperature)

    monkeypatch.setattr(Walker, "walk", walking)
    budget = Budget(1 + sum(steps for steps, _, _ in rounds))
    found = anneal(graph, build_costs(graph, ideal(2)), np.random.default_rng(0), budget, exchange=exchange)
    assert found.makespan_s > best_s
    assert walked == [(steps, pytest.approx(hot), pytest.approx(cold)) for steps, hot, cold in rounds]
    assert [i for i, place in enumerate(stood) if place == best.device.tolist()] == list(follows)


def test_what_seconds_afford_where_a_search_may_give_way(monkeypatch):
    """At the pace of the last walk; else they shorten nothing."""
    graph, now_s = planted()[0], 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)

    def walker(budget: Budget, exchange: Exchange | None) -> Walker:
        return Walker(graph, build_costs(graph, ideal(2)), np.random.default_rng(0), budget, None, "fifo", exchange)

    timed = walker(Budget(seconds=100.0), Exchange(0.0, 100.0))
    rest = (Budget(seconds=100.0), None), (Budget(1000, 100.0), Exchange(0.0)), (Budget(9), Exchange(0.0, 9.0))
    walkers = [timed, *(walker(*given) for given in rest)]
    assert timed.affordable == math.inf  # nobody knows yet
    for each in walkers:
        each._pace_s = 0.25
    now_s = 25.0
    assert [each.affordable for each in walkers] == [300.0, math.inf, math.inf, math.inf]
    assert timed.typical_loss_s() > 0
    assert timed.affordable == 300.0  # to measure takes longer
    now_s = 101.0
    assert timed.affordable == 0.0


def test_side_by_side_searches_tell_what_they_find():
    exchange = Exchange(0.0)
    found = climb(components(), build_costs(components(), ideal(4)), np.random.default_rng(0), Budget(5000), exchange=exchange)
    assert exchange.best[0] == found.makespan_s
    assert exchange.best[1].device.tolist() == found.assignment.device.tolist()
