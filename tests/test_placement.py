"""`place`: the best by simulation wins and is named; it is never worse than a constructive method."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from data.layered import Layered, layered_graph
from doppler_tf import stages
from doppler_tf.errors import ConfigError, DeadlockError
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal, preset
from doppler_tf.heuristics import CONSTRUCTIVE, HEURISTICS, SEARCHES, Budget, Pool, Problem, heft
from doppler_tf.heuristics.search import portfolio as portfolio_module
from doppler_tf.heuristics.search.portfolio import TOGETHER, search_together
from doppler_tf.heuristics.steadiness import Steadiness, noisy_means
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.simulator import simulate
from tests.heuristics.stacks import stack
from tests.messages import assert_says, refusal
from tests.strategies import cases, examples


@examples(0.2)  # each calls all constructive methods twice
@given(case=cases(constrained=True, noise=False))
def test_never_worse_than_any_member(case):
    placement = place(case.graph, case.costs, samples=5, dispatch=case.rule)
    alone = {name: place(case.graph, case.costs, name, samples=5, dispatch=case.rule).makespan_s for name in CONSTRUCTIVE}
    assert {name: placement.makespans_s[name] for name in CONSTRUCTIVE} == alone
    assert placement.makespan_s == placement.makespans_s[placement.assignment.method] <= min(alone.values())
    assert placement.makespan_s <= 1.003 * min(placement.makespans_s.values())
    assert placement.makespan_s == simulate(case.graph, case.costs, placement.assignment, case.rule).makespan_s
    assert placement.lower_bound_s == lower_bounds(case.graph, case.costs).best_s
    assert placement.gap >= -1e-12


def pipeline(count: int = 6):
    return graph_from_records([{"id": f"v{v}", "exec_s": 1} for v in range(count)],
                              [{"source": f"v{v}", "target": f"v{v + 1}", "transfer_s": 5} for v in range(count - 1)])


def test_the_winner_is_named_and_devices_are_given_by_vertex_id():
    """A chain with dear transfers belongs on one device; networkx in, names out."""
    source = nx.DiGraph()
    source.add_node("weights", input=True)
    source.add_edge("weights", "first")
    source.add_edge("first", 2, transfer_s=5)
    source.nodes["first"]["exec_s"] = 1
    source.nodes[2]["exec_s"] = 1
    placement = place(read_graph(source), ideal(3), "one_device")
    assert placement.device_of == {"first": "device:0", 2: "device:0"}
    assert placement.assignment.method == "one_device"
    assert (placement.makespan_s, placement.lower_bound_s, placement.gap) == (2, 2, 0)


def test_a_learned_policy_joins_the_portfolio_and_may_win():
    """Two interleaved chains with dear transfers: best one chain a device."""
    nodes = [{"id": v, "exec_s": 1} for v in range(8)]
    graph = graph_from_records(nodes, [{"source": v, "target": v + 2, "transfer_s": 9} for v in range(6)])
    seen = []

    def policy(graph, costs, samples, seed):
        seen.append((samples, seed))
        return [Assignment(np.zeros(8, np.int32), np.arange(8)), Assignment(np.arange(8, dtype=np.int32) % 2, np.arange(8))]

    placement = place(graph, ideal(2), "sel_plc", samples=3, seed=11, learned={"sel_plc": policy})
    assert (placement.makespan_s, placement.assignment.method, placement.makespans_s) == (4, "sel_plc", {"sel_plc": 4})
    assert seen == [(3, 11)]
    assert set(place(graph, ideal(2), learned={"sel_plc": policy}).makespans_s) == {*CONSTRUCTIVE, "sel_plc"}


def test_more_samples_are_never_worse_and_a_seed_repeats():
    graph = pipeline(12)
    few, many = (place(graph, ideal(3), "random", samples=k, seed=3).makespan_s for k in (2, 200))
    assert many < few
    first, second = (place(graph, ideal(3), "random", samples=9, seed=5).assignment.device.tolist() for _ in range(2))
    assert first == second
    assert first != place(graph, ideal(3), "random", samples=9, seed=6).assignment.device.tolist()


@pytest.mark.parametrize("budget_s", [0, 1e-6])
def test_an_exhausted_budget_still_places(budget_s):
    placement = place(pipeline(), ideal(2), samples=10**9, budget_s=budget_s)
    assert len(placement.makespans_s) == 1
    assert placement.assignment.method == "critical_path"
    assert placement.makespan_s == simulate(pipeline(), ideal(2), placement.assignment).makespan_s


@pytest.mark.parametrize("rule", DISPATCH_RULES)
def test_the_rule_of_dispatch_is_the_one_that_judges(rule):
    graph = graph_from_records([{"id": v, "exec_s": 1 + v % 3} for v in range(9)],
                               [{"source": u, "target": v, "transfer_s": 1} for u in range(4) for v in range(4, 9)])
    placement = place(graph, ideal(2), samples=4, dispatch=rule)
    assert placement.makespan_s == simulate(graph, ideal(2), placement.assignment, rule).makespan_s


@pytest.mark.parametrize(("options", "fragments"), [
    ({"method": "magic"}, ["method: expected one of auto, critical_path,", "critical_path", "got 'magic'"]),
    ({"samples": 0}, ["samples: expected an integer >= 1, got 0"]),
    ({"samples": 2.5}, ["samples: expected an integer >= 1, got 2.5"]),
    ({"samples": True}, ["samples: expected an integer >= 1, got True"]),
    ({"budget_s": 10**400}, ["budget_s: expected a finite number of seconds >= 0 or None, got 1000"]),
    ({"budget_s": -1}, ["budget_s: expected a finite number of seconds >= 0 or None, got -1"]),
    ({"budget_s": math.nan}, ["budget_s: expected a finite number of seconds >= 0 or None, got nan"]),
    ({"budget_s": "soon"}, ["budget_s: expected a finite number of seconds >= 0 or None, got 'soon'"]),
    ({"seed": "x"}, ["seed: expected an integer >= 0, got 'x'"]),
    ({"seed": -1}, ["seed: expected an integer >= 0, got -1"]),
    ({"noise": 0}, ["noise: expected a number above 0 and up to 1, or None, got 0"]),
    ({"noise": 1.5}, ["noise: expected a number above 0 and up to 1, or None, got 1.5"]),
    ({"dispatch": "lifo"}, ["place: dispatch: expected one of auto, fifo, b_level, order, got 'lifo'"]),
])
def test_bad_options(options, fragments):
    assert_says(refusal(ConfigError, place, pipeline(), ideal(2), **options), *fragments)


def tied(pinned: bool = True):
    """A short and a long vertex on device 0 become ready at one instant. More follows the short one, and it comes first in the file."""
    nodes = [{"id": "a", "exec_s": 1.0, "pin": 1}, {"id": "b", "exec_s": 1.0, "pin": 2}, {"id": "short", "exec_s": 1.0, "pin": 0},
             {"id": "long", "exec_s": 5.0, "pin": 0}, {"id": "after", "exec_s": 5.0, "pin": 1}]
    nodes = [node if pinned else {"id": node["id"], "exec_s": node["exec_s"]} for node in nodes]
    edges = [{"source": u, "target": v, "transfer_s": 0} for u, v in (("b", "short"), ("a", "long"), ("short", "after"))]
    return graph_from_records(nodes, edges, {"name": "tied"})


def test_noise_shows_what_hangs_on_a_tie():
    graph, costs = tied(), build_costs(tied(), ideal(3))
    by_chance = Assignment(np.array([1, 2, 0, 0, 1], np.int32))
    assert simulate(graph, costs, by_chance).makespan_s == 7.0
    means_s = noisy_means(Problem(graph, costs), [by_chance, replace(by_chance, method="the same")], 0.01, seed=0)
    assert means_s[0] == means_s[1] > 8.0  # if a ends before b, the long vertex delays the short one, and it takes 12 s
    placed = place(graph, costs, "one_device", noise=0.01)
    assert placed.makespans_s.keys() == placed.noisy_means_s.keys() > {"one_device", "one_device, order"}
    assert placed.assignment.method == min(placed.noisy_means_s, key=placed.noisy_means_s.get)
    assert placed.makespan_s == simulate(graph, costs, placed.assignment).makespan_s


def test_the_steadiest_does_not_hang_on_a_tie():
    graph = tied(pinned=False)
    costs = build_costs(graph, ideal(3))
    by_chance, apart, one = (Assignment(np.array(device, np.int32)) for device in ([1, 2, 0, 0, 1], [1, 2, 0, 2, 1], [0] * 5))
    assert [simulate(graph, costs, a).makespan_s for a in (by_chance, apart, one)] == [7.0, 7.0, 13.0]
    steadiness = Steadiness(Problem(graph, costs))
    assert [steadiness.offer(7.0, by_chance), steadiness.offer(13.0, one), steadiness.offer(7.0, apart)] == [True, False, True]
    assert not steadiness.offer(7.0, by_chance)
    assert steadiness.offer(6.9, apart)  # among equally steady ones the faster


def test_no_placement_fits():
    graph = graph_from_records([{"id": "big", "exec_s": 1, "output_bytes": 11}], [])
    topology = Topology.from_json({"devices": [{"name": "p", "memory_bytes": 10}, {"name": "q", "memory_bytes": 9}]})
    assert_says(refusal(DeadlockError, place, graph, topology), "out of memory with any assignment: vertex 'big' alone needs 11 bytes",
                "no device has more than 10 bytes; give devices more memory")


def test_memory_makes_the_portfolio_spread():
    """One device is fastest, but holds only half of the outputs."""
    graph = graph_from_records([{"id": v, "exec_s": [1, 5], "output_bytes": 1} for v in range(4)], [])
    topology = Topology.from_json({"devices": [{"name": "p", "memory_bytes": 2}, {"name": "q"}]})
    placement = place(graph, topology)
    assert placement.makespans_s["one_device"] == math.inf
    assert (placement.makespan_s, sorted(placement.assignment.device.tolist())) == (10, [0, 0, 1, 1])
    assert build_costs(graph, topology).memory_bytes.tolist() == [2, math.inf]


@examples(0.05)  # each lets three searches run to the end
@given(case=cases(max_devices=4, constrained=True, noise=False))
def test_with_a_budget_it_is_never_worse_than_without_searches(case):
    plain = place(case.graph, case.costs, samples=100, dispatch=case.rule)
    whole = place(case.graph, case.costs, samples=100, dispatch=case.rule, budget_s=600)
    constructed_s = {name: plain.makespans_s[name] for name in CONSTRUCTIVE}
    assert {name: whole.makespans_s[name] for name in CONSTRUCTIVE} == constructed_s
    assert whole.lower_bound_s <= whole.makespan_s * (1 + 1e-12) <= min(constructed_s.values()) * (1 + 1e-12)
    assert whole.makespan_s == whole.makespans_s[whole.assignment.method] <= 1.003 * min(whole.makespans_s.values())
    assert whole.makespan_s == simulate(case.graph, case.costs, whole.assignment, case.rule).makespan_s


def knapsack(count: int = 30):
    """Vertices of many lengths: hard to part into two equal halves, so that no heuristic meets the bound at once."""
    lengths = np.random.default_rng(1).integers(10**6, 10**7, count)
    lengths[0] += lengths.sum() % 2 == 0  # an odd sum has no equal halves: no search ends before its time
    return graph_from_records([{"id": v, "exec_s": int(s)} for v, s in enumerate(lengths)], [])


def test_a_budget_brings_in_the_searches():
    placement = place(knapsack(), ideal(2), budget_s=2.0)
    members = {*CONSTRUCTIVE, *SEARCHES} - {"random_search", "tied_search"}
    assert {name for name in placement.makespans_s if "steadier" not in name} == members
    assert placement.seconds < 10
    assert placement.makespan_s < min(placement.makespans_s[name] for name in CONSTRUCTIVE)


def test_a_proven_optimum_ends_the_search():
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(8)], [])
    placement = place(graph, ideal(4), budget_s=60)
    assert (placement.makespan_s, placement.lower_bound_s) == (2, 2)
    assert set(placement.makespans_s) == set(CONSTRUCTIVE)
    assert placement.seconds < 30


def test_a_bound_that_cp_sat_proves_ends_the_searches():
    """One vertex of 3 s and two of 2 s on two devices take 4 s; without CP-SAT the bound is 3.5 s."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in enumerate((3, 2, 2))], [])
    placement = place(graph, ideal(2), budget_s=60)
    assert (placement.makespan_s, placement.lower_bound_s) == (4, 4)
    assert placement.assignment.method in CONSTRUCTIVE  # it found nothing better
    assert placement.seconds < 30


def failing(graph, costs, samples, seed):
    """A policy that breaks."""
    raise RuntimeError("broken policy")


def test_an_error_ends_the_searches():
    with pytest.raises(RuntimeError, match="broken policy"):
        place(knapsack(), ideal(2), budget_s=600, learned={"policy": failing})


@pytest.mark.parametrize("name", TOGETHER)
def test_an_error_in_one_search_ends_the_others(name):
    def broken(*_):
        raise RuntimeError("broken search")

    pool = Pool(Problem(knapsack(), build_costs(knapsack(), ideal(2))))
    pool.take("heft", [heft(pool.problem, None)])
    with pytest.raises(RuntimeError, match="broken search"):
        search_together(pool, 0, Budget(seconds=600), {**TOGETHER, name: broken})


def test_of_starts_on_equal_devices_the_first_races(monkeypatch):
    raced = []
    monkeypatch.setattr(portfolio_module, "race", lambda *arguments: raced.extend(arguments[3]) or 1 / 0)
    pool = Pool(Problem(knapsack(), build_costs(knapsack(), ideal(2)), "auto"))
    first = heft(pool.problem, None)
    for name, device in (("first", first.device), ("other", np.where(first.device < 0, -1, 1 - first.device)), ("later", first.device)):
        pool.take(name, [replace(first, device=device.astype(np.int32))])
    with pytest.raises(ZeroDivisionError):
        search_together(pool, 0, Budget(seconds=1))
    assert "other" in {start.method for start in raced}
    assert "later" not in {start.method for start in raced}


def test_what_cp_sat_finds_and_proves_is_credited():
    """It solves this with a budget that is too small for the searches beside it."""
    graph = knapsack(14)
    placement = place(graph, ideal(2), samples=50, budget_s=600)
    assert placement.assignment.method.startswith("cp_sat")
    assert placement.makespans_s["cp_sat"] < min(s for name, s in placement.makespans_s.items() if not name.startswith("cp_sat"))
    assert lower_bounds(graph, build_costs(graph, ideal(2))).best_s < placement.lower_bound_s < placement.makespan_s


def test_with_a_budget_too_where_nothing_fits_is_said():
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 2} for v in range(3)], [])
    topology = Topology.from_json({"devices": [{"name": "p", "memory_bytes": 3}]})
    with pytest.raises(DeadlockError):
        place(graph, topology, budget_s=0.2)


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.thorough) for number in (1, 2))])
def test_where_simulations_are_counted_the_searches_share_nothing_and_repeat(number):
    graph = layered_graph(Layered(40, 6, 1.5, 2, 5, 1e10, 8e6, 0.5), number)
    first, second = (place(graph, preset("p100x4"), samples=2_000, budget_s=600) for _ in range(2))
    assert first.gap > 0
    assert first.makespans_s == second.makespans_s
    assert {name: a.device.tolist() for name, a in first.assignments.items()} == {
        name: a.device.tolist() for name, a in second.assignments.items()}
    for name in ("annealing", "local_search"):
        assert first.assignments[name].method == name


def test_samples_of_a_search_are_its_simulations():
    graph = knapsack()
    few, many = (place(graph, ideal(2), "annealing", samples=n) for n in (50, 5000))
    assert many.makespan_s < few.makespan_s
    assert place(graph, ideal(2), "annealing", samples=5000).assignment.device.tolist() == many.assignment.device.tolist()


def test_the_bound_of_the_exact_solver_is_reported():
    """One vertex of 3 s and two of 2 s on two devices: 4 s, which neither work (3.5 s) nor path (3 s) shows."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in enumerate((3, 2, 2))], [])
    assert lower_bounds(graph, build_costs(graph, ideal(2))).best_s == 3.5
    placement = place(graph, ideal(2), "cp_sat")
    assert (placement.makespan_s, placement.lower_bound_s) == (4, 4)


def test_a_policy_is_asked_for_no_sample_after_the_deadline():
    graph, drawn = pipeline(), []

    def policy(graph, costs, samples, seed):
        for d in range(samples):
            drawn.append(d)
            yield Assignment(np.full(graph.num_vertices, d, np.int32), np.arange(graph.num_vertices, dtype=np.int32), "policy")

    assert place(graph, ideal(4), "policy", 3, learned={"policy": policy}).makespan_s == 6
    assert drawn == [0, 1, 2]
    drawn.clear()
    place(graph, ideal(4), "policy", 3, budget_s=0, learned={"policy": policy})
    assert drawn == [0]


def test_repeated_layers_are_searched_where_the_whole_graph_could_not_be(monkeypatch):
    """As if the set-up of other searches outlasted any budget."""
    monkeypatch.setattr(portfolio_module, "_SETUP_S", 1e6)
    placed = place(stack(12), ideal(2), samples=50, budget_s=30.0)
    assert "tied_search" in placed.makespans_s
    assert not {"annealing", "local_search"} & set(placed.makespans_s)


def test_slow_draws_leave_half_of_the_seconds_to_searches(monkeypatch):
    calls = []

    def slow(problem, rng):
        calls.append(time.sleep(0.05))
        return CONSTRUCTIVE["critical_path"](problem, rng)

    graph, topology = layered_graph(Layered(60, 6, 2.0, 2, 6, 1e10, 8e6, 0.5), 0), preset("p100x4")
    place(graph, topology, budget_s=0.5)  # compiles
    monkeypatch.setattr(stages, "HEURISTICS", {**HEURISTICS, "critical_path": slow})
    placed = place(graph, topology, budget_s=2.0)
    assert {"annealing", "local_search"} <= placed.simulations.keys()
    assert "heft" in placed.makespans_s  # each method makes one
    calls.clear()
    place(graph, topology, "critical_path", budget_s=1.0)  # which has no searches to leave time for
    assert len(calls) > 12
