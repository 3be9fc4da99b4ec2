"""The exact solver against everything: all assignments by simulation, all schedules by hand-made enumeration."""

from __future__ import annotations

import itertools
import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import Budget, solve
from doppler_tf.heuristics.exact.cp_sat import small_enough
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import DISPATCH_RULES, plan_transfers
from doppler_tf.schedule.bounds import lower_bounds
from tests.messages import assert_says, refusal
from tests.strategies import graphs


@st.composite
def tiny(draw, link_slots=(None, 1, 2), memory: bool = False):
    """Up to six vertices on two or three devices, unlike ones too."""
    count = draw(st.integers(2, 3))
    numbers = st.sampled_from([1, 2, 3])
    devices = [{"name": f"d{d}", "flops_per_s": draw(numbers), "slots": draw(st.sampled_from([1, 1, 2])),
                "memory_bytes": draw(st.sampled_from([None, 4, 7])) if memory else None} for d in range(count)]
    row = st.lists(numbers, min_size=count, max_size=count)
    links = {"bandwidth_bytes_per_s": draw(st.lists(row, min_size=count, max_size=count)), "latency_s": draw(st.sampled_from([0, 1, 0.1]))}
    topology = Topology.from_json({"devices": devices, "links": links, "link_slots": draw(st.sampled_from(link_slots))})
    graph = draw(graphs(topology, max_layers=3, max_width=2, constrained=draw(st.booleans())))
    return graph, build_costs(graph, topology)


def every_assignment(graph, costs) -> np.ndarray:
    """int32 [K, N]: all that pins and groups allow."""
    devices = np.full((costs.num_devices ** graph.work_vertices.size, graph.num_vertices), -1, np.int32)
    devices[:, graph.work_vertices] = list(itertools.product(range(costs.num_devices), repeat=graph.work_vertices.size))
    good = costs.allowed[graph.work_vertices, devices[:, graph.work_vertices]].all(axis=1)
    for g in range(len(graph.groups)):
        members = np.flatnonzero((graph.colocate == g) & ~graph.is_input)
        good &= (devices[:, members] == devices[:, members[:1]]).all(axis=1)
    return devices[good]


@given(case=tiny(memory=True))
def test_no_assignment_beats_the_bound(case):
    graph, costs = case
    proven = solve(Problem(graph, costs), np.random.default_rng(0), Budget(20_000))
    devices = every_assignment(graph, costs)
    for rule in DISPATCH_RULES[:2]:
        best_s = FastSimulator(graph, costs, rule).makespans(devices).min()
        assert proven.lower_bound_s <= best_s * (1 + 1e-12)
    assert proven.lower_bound_s >= lower_bounds(graph, costs).best_s
    assert proven.lower_bound_s <= proven.makespan_s


def best_schedule_s(graph, costs) -> float:
    """The earliest end of all: every assignment, every sequence on every device, links that never wait, one vertex at a time."""
    best_s = np.inf
    work = graph.work_vertices.tolist()
    before = {v: [u for u in graph.sources[graph.targets == v].tolist() if not graph.is_input[u]] for v in work}
    orders = [order for order in itertools.permutations(work)
              if all(order.index(u) < order.index(v) for v in work for u in before[v])]
    for device in every_assignment(graph, costs):
        plan = plan_transfers(graph, costs, device)
        arrive_s = {(int(u), int(d)): float(s) for u, d, s in zip(plan.producer, plan.destination, plan.cost_s, strict=True)}
        for order in orders:
            free_s, end_s = np.zeros(costs.num_devices), {}
            for v in order:
                d = int(device[v])
                ready_s = max((end_s[u] + arrive_s.get((u, d), 0.0) for u in before[v]), default=0.0)
                end_s[v] = free_s[d] = max(free_s[d], ready_s) + costs.exec_s[v, d]
            best_s = min(best_s, max(end_s.values()))
    return best_s


@st.composite
def whole_numbers(draw):
    """Up to five vertices with whole costs on two devices, so that the model is exact."""
    count = draw(st.integers(2, 5))
    whole = st.integers(0, 5)
    nodes = [{"id": v, "exec_s": draw(st.one_of(whole, st.tuples(whole, whole).map(list)))} for v in range(count)]
    pairs = [pair for pair in itertools.combinations(range(count), 2) if draw(st.booleans())]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": draw(whole)} for u, v in pairs])
    return graph, build_costs(graph, ideal(2))


@given(case=whole_numbers())
def test_the_model_is_exact_where_links_never_wait(case):
    proven = solve(Problem(*case), np.random.default_rng(0), Budget(50_000))
    assert proven.lower_bound_s == pytest.approx(best_schedule_s(*case), rel=1e-12)  # the solver's bound is a sum in another order


def test_links_are_scarce():
    """Two pinned producers feed two pinned consumers over one link of 3 s a tensor: 1 + 3 + 3 + 1 s with one slot, 6 s with two."""
    nodes = [{"id": v, "exec_s": 1, "pin": "p" if v < "c" else "q"} for v in "abcd"]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 3} for u, v in ("ac", "bd")])
    for link_slots, makespan_s in ((1, 8), (2, 6), (None, 6)):
        topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "link_slots": link_slots})
        proven = solve(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0), Budget(50_000))
        assert (proven.makespan_s, proven.lower_bound_s) == (makespan_s, makespan_s)


def test_cards_are_scarce():
    """Two pinned producers feed two consumers on different devices, 3 s a tensor: 6 s over two links, 8 s over one card."""
    nodes = [{"id": v, "exec_s": 1, "pin": pin} for v, pin in zip("abcd", "ppqr", strict=True)]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 3} for u, v in ("ac", "bd")])
    for card, makespan_s in ((None, 6), ([[None, 0, 0], [None] * 3, [None] * 3], 8)):
        topology = Topology.from_json({"devices": [{"name": name} for name in "pqr"], "links": {"card": card}})
        proven = solve(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0), Budget(50_000))
        assert (proven.makespan_s, proven.lower_bound_s) == (makespan_s, makespan_s)


def test_memory_forbids_devices():
    """The only device fast enough cannot hold the vertex with its input: 9 s, not 1 s."""
    nodes = [{"id": "w", "input": True, "output_bytes": 6}, {"id": "v", "exec_s": [1, 9], "output_bytes": 5}]
    graph = graph_from_records(nodes, [{"source": "w", "target": "v"}])
    topology = Topology.from_json({"devices": [{"name": "p", "memory_bytes": 10}, {"name": "q"}]})
    proven = solve(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0), Budget(20_000))
    assert (proven.makespan_s, proven.lower_bound_s, proven.assignment.device.tolist()) == (9, 9, [-1, 1])


def test_large_graphs_are_refused():
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(301)], [])
    costs = build_costs(graph, ideal(2))
    assert not small_enough(Problem(graph, costs))
    refused = refusal(ConfigError, solve, Problem(graph, costs), np.random.default_rng(0))
    assert_says(refused, "cp_sat", "at most 300 vertices", "got 301", "annealing")


def chained_pairs(count: int):
    """Vertices of many lengths, half of which await one of the others, and costs on three devices."""
    lengths = np.random.default_rng(1).integers(10**6, 10**7, count)
    graph = graph_from_records([{"id": v, "exec_s": int(s)} for v, s in enumerate(lengths)],
                               [{"source": v, "target": v + count // 2, "transfer_s": 10**6} for v in range(count // 2)])
    return graph, build_costs(graph, ideal(3))


def test_a_budget_in_simulations_repeats():
    first, second = (solve(Problem(*chained_pairs(12)), np.random.default_rng(5), Budget(3000)) for _ in range(2))
    assert first.assignment.device.tolist() == second.assignment.device.tolist()
    assert (first.makespan_s, first.lower_bound_s, first.simulations) == (second.makespan_s, second.lower_bound_s, second.simulations)


def hard(count: int = 40):
    """Vertices of many lengths, and costs on three devices: no solver proves in minutes how to part them best."""
    lengths = np.random.default_rng(1).integers(10**6, 10**7, count)
    graph = graph_from_records([{"id": v, "exec_s": int(s)} for v, s in enumerate(lengths)], [])
    return graph, build_costs(graph, ideal(3))


def test_it_ends_with_the_searches_beside_it():
    problem = Problem(*hard())
    pool, started = Pool(problem), time.perf_counter()
    pool.alone, watch = False, threading.Timer(1.0, pool.stop)
    watch.start()
    proven = solve(problem, np.random.default_rng(0), Budget(seconds=600), pool=pool)
    watch.join()
    assert time.perf_counter() - started < 300
    assert proven.lower_bound_s <= proven.makespan_s
    too_late = solve(problem, np.random.default_rng(0), Budget(seconds=600), pool=pool)
    assert too_late.simulations == 1
    assert 0 < too_late.lower_bound_s <= too_late.makespan_s < math.inf


def test_it_tells_the_searches_beside_it_of_its_bounds():
    """While it works, and at the end."""
    told_s = []

    class Listening(Pool):
        alone = property(lambda _: False, lambda _, value: None)

        def raise_bound(self, bound_s: float) -> None:
            told_s.append(bound_s)
            super().raise_bound(bound_s)

    graph, costs = chained_pairs(16)
    problem = Problem(graph, costs)
    proven = solve(problem, np.random.default_rng(0), Budget(10_000), pool=Listening(problem))
    assert told_s == sorted(told_s)
    assert lower_bounds(graph, costs).best_s < told_s[-2] <= told_s[-1] == proven.lower_bound_s
    assert len(told_s) > 2


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_little_time_still_gives_an_assignment_and_a_bound(seconds):
    graph, costs = hard()
    proven = solve(Problem(graph, costs), np.random.default_rng(5), Budget(seconds=seconds))
    assert lower_bounds(graph, costs).best_s <= proven.lower_bound_s <= proven.makespan_s


