"""Devices that cannot run a vertex and missing links: whatever places uses neither, or says that nothing can, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from doppler_tf.errors import AssignmentError, CostError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records, graph_to_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import HEURISTICS, SEARCHES, Budget
from doppler_tf.heuristics.mending import legal
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment, assignment_from_devices, runnable
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.validation import validate_trace
from tests.messages import assert_says, refusal
from tests.naive_simulator import NaiveSimulator
from tests.strategies import examples


def linked(rows: list[list], **more) -> Topology:
    """Devices a, b, ... with these bandwidths."""
    devices = [{"name": "abcdefgh"[d]} for d in range(len(rows))]
    return Topology.from_json({"name": "some", "devices": devices, "links": {"bandwidth_bytes_per_s": rows}, **more})


def chain(*rows, **topology) -> tuple:
    """Vertices one after the other with these exec_s, on devices of which each is linked with the next alone."""
    graph = graph_from_records([{"id": v, "exec_s": row, "output_bytes": 1} for v, row in enumerate(rows)],
                               [{"source": v, "target": v + 1} for v in range(len(rows) - 1)], {"name": "chain"})
    count = len(rows[0])
    return graph, linked([[1.0 if d == s + 1 else 0 for d in range(count)] for s in range(count)], **topology)


@st.composite
def partial(draw, most: int = 12):
    """A graph with groups whose vertices run on some devices only, and a topology with some links only."""
    count, devices = draw(st.integers(1, most)), draw(st.integers(1, 4))
    some = st.lists(st.sampled_from([None, 1, 2, 3]), min_size=devices, max_size=devices).filter(lambda row: any(row))
    nodes = [{"id": v, "exec_s": draw(st.one_of(st.integers(1, 3), some)), "output_bytes": draw(st.integers(0, 2)),
              **({"colocate": "g"} if draw(st.integers(0, 5)) == 0 else {})} for v in range(count)]
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2 * count))
    edges = [{"source": u, "target": v, **({"transfer_s": 1} if draw(st.booleans()) else {})} for u, v in sorted(pairs) if u < v]
    row = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=devices, max_size=devices)
    topology = linked(draw(st.lists(row, min_size=devices, max_size=devices)), link_slots=draw(st.sampled_from([None, 1])))
    return graph_from_records(nodes, edges), topology


def possible(graph, topology) -> np.ndarray:
    """int32 [K, N]: every assignment to eligible devices over existing links that keeps groups together."""
    able = np.broadcast_to(np.isfinite(np.nan_to_num(graph.exec_s, posinf=np.inf)), (graph.num_vertices, topology.num_devices))
    members = np.flatnonzero(graph.colocate >= 0)
    links = topology.bandwidth_bytes_per_s > 0
    every = (np.array(each, np.int32) for each in itertools.product(*map(np.flatnonzero, able)))
    return np.array([d for d in every if links[d[graph.sources], d[graph.targets]].all() and len(set(d[members])) < 2], np.int32)


@examples(0.1)
@given(partial(most=5))
def test_against_brute_force(case):
    """What is proven impossible is; else the search that sees everything has the optimum, and bounds are below it."""
    graph, topology = case
    every = possible(graph, topology)
    if not len(every):
        message = refusal(CostError, place, graph, topology, "local_search", 50)
        assert any(words in message for words in ("no assignment is possible", "proved that there is none", "colocate group"))
        return
    costs = build_costs(graph, topology)
    placement = place(graph, costs, "local_search", 200)
    assert all(costs.allowed[np.arange(graph.num_vertices), device].all() for device in every)
    optimum = min(FastSimulator(graph, costs, rule).makespans(every).min() for rule in ("fifo", "b_level"))
    assert math.isfinite(lower_bounds(graph, costs).best_s)
    assert lower_bounds(graph, costs).best_s <= min(optimum, placement.makespan_s) * (1 + 1e-12)
    assert runnable(graph, costs, placement.assignment.device)
    rng = np.random.default_rng(0)
    exact = SEARCHES["cp_sat"](Problem(graph, costs), rng, Budget(200))
    assert exact.lower_bound_s <= optimum * (1 + 1e-12)
    assert min(placement.makespan_s, exact.makespan_s) <= optimum * 1.5


@pytest.mark.parametrize("name", HEURISTICS)
@examples(0.15)
@given(case=partial())
def test_every_method_uses_eligible_devices_and_existing_links(name, case):
    graph, topology = case
    try:
        costs = build_costs(graph, topology)
        if name in SEARCHES:
            found = SEARCHES[name](Problem(graph, costs), np.random.default_rng(7), Budget(50))
            assignment = found.assignment
            assert math.isfinite(found.makespan_s)
        else:
            assignment = HEURISTICS[name](Problem(graph, costs), np.random.default_rng(7))
    except CostError:
        reject()
    assert assignment_from_devices(graph, costs, assignment.device.tolist()).device.tolist() == assignment.device.tolist()
    trace = simulate(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace).valid
    assert trace.makespan_s == NaiveSimulator(graph, costs, assignment, assignment.dispatch, None).makespan_s()


@examples(0.3)
@given(partial(most=6), st.integers(0, 99))
def test_the_fast_simulator_refuses_by_infinity_what_the_exact_one_refuses_in_words(case, seed):
    graph, topology = case
    try:
        costs = build_costs(graph, topology)
    except CostError:
        reject()
    devices = np.random.default_rng(seed).integers(0, topology.num_devices, (8, graph.num_vertices)).astype(np.int32)
    for device, makespan_s in zip(devices, FastSimulator(graph, costs).makespans(devices).tolist(), strict=True):
        if math.isinf(makespan_s):
            refusal(AssignmentError, Simulator().execute, graph, costs, Assignment(device))
        else:
            assert Simulator().execute(graph, costs, Assignment(device)).makespan_s == makespan_s
    for mixture in spread_assignments(Problem(graph, costs), 6, np.random.default_rng(seed)):
        assert runnable(graph, costs, mixture.device)


def test_null_infinity_and_numbers_by_device_are_kept():
    rows = [[0.5, None], [None, 2], [1, 1]]
    graph = graph_from_records([{"id": v, "exec_s": row} for v, row in enumerate(rows)] + [{"id": 3, "flops": 1}], [])
    assert [node.get("exec_s") for node in graph_to_records(graph)[0]] == [*rows, None]
    same = [[0.5, math.inf], [np.inf, 2.0], [1, 1]]
    again = graph_from_records([{"id": v, "exec_s": row} for v, row in enumerate(same)] + [{"id": 3, "flops": 1}], [])
    assert again.graph_hash == graph.graph_hash


def test_means_are_over_the_devices_that_can():
    graph, topology = chain([1, None, 3], [2, 4, None], [None, None, 5])
    costs = build_costs(graph, topology)
    assert costs.mean_exec_s.tolist() == [2, 3, 5]
    assert costs.eligible.tolist() == [[True, False, True], [True, True, False], [False, False, True]]
    assert costs.allowed.tolist() == [[True, False, False], [False, True, False], [False, False, True]]  # a leads to b, b to c
    assert costs.mean_transfer_s.tolist() == [1, 1]
    assert place(graph, topology).makespan_s == 1 + 1 + 4 + 1 + 5
    assert lower_bounds(graph, costs).path_s == pytest.approx(12, rel=1e-12)


def test_restricted_vertices_bound_the_work_of_their_devices():
    graph = graph_from_records([{"id": v, "exec_s": [None, 1, 1, 1]} for v in range(8)] + [{"id": 8, "exec_s": 1}], [])
    assert lower_bounds(graph, build_costs(graph, linked([[1] * 4] * 4))).work_s == pytest.approx(8 / 3)


def test_refusals_name_vertices_devices_and_why():
    graph, topology = chain([1, 1, None], [1, 1, 1])
    costs = build_costs(graph, topology)
    assert_says(refusal(AssignmentError, simulate, graph, topology, Assignment(np.array([2, 2]))),
                "chain: vertex 0: device: expected one that can run it (a, b), got 'c', where its exec_s is null")
    words = ("edge 0 -> 1: device: expected devices that are linked, got 'b' and 'a', between which some has no link in this direction",)
    assert_says(refusal(AssignmentError, simulate, graph, topology, Assignment(np.array([1, 0]))), *words)
    assert_says(refusal(AssignmentError, assignment_from_devices, graph, costs, [1, 0]), *words)
    back = chain([None, 1], [1, None])
    assert_says(refusal(CostError, build_costs, *back), "links of some: expected that one of its devices", "no assignment is possible")


def test_a_complete_search_proves_what_neighbours_do_not_show():
    """u on a or b, v on c or d, w on e or f: every device has a partner for each neighbour, but a-c-e ends at f, and b-d-f at e."""
    nodes = [{"id": v, "exec_s": [1 if d // 2 == k else None for d in range(6)], "output_bytes": 1} for k, v in enumerate("uvw")]
    graph = graph_from_records(nodes, [{"source": u, "target": v} for u, v in ("uv", "vw", "uw")], {"name": "triangle"})
    rows: list[list] = [[None] * 6 for _ in range(6)]
    for s, d in ((0, 2), (1, 3), (2, 4), (3, 5), (0, 5), (1, 4)):
        rows[s][d] = 1
    build_costs(graph, linked(rows))
    for method in ("heft", "local_search", "auto"):
        assert_says(refusal(CostError, place, graph, linked(rows), method), "triangle: links of some: expected an assignment over existing "
                    "links alone, got none, as a complete search proved that there is none")
    rows[0][4] = 1
    assert place(graph, linked(rows), "heft").assignment.device.tolist() == [0, 2, 4]


def test_mending_keeps_the_devices_it_can():
    """Two islands: what is joined goes to one of them, what is apart stays."""
    islands = linked([[1 if a // 2 == b // 2 else None for b in range(4)] for a in range(4)])
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 1} for v in range(6)],
                               [{"source": 0, "target": 2}, {"source": 1, "target": 2}, {"source": 3, "target": 4}])
    costs = build_costs(graph, islands)
    mended = legal(graph, costs, Assignment(np.array([0, 2, 1, 3, 2, 3], np.int32)))
    assert runnable(graph, costs, mended.device)
    assert mended.device[[0, 2, 3, 4, 5]].tolist() == [0, 1, 3, 2, 3]
    assert mended.device[1] in (0, 1)


def test_simulate_refuses_assignments_that_break_pins_and_groups():
    graph = graph_from_records([{"id": "a", "exec_s": 1, "pin": 1}, {"id": "b", "exec_s": 1, "colocate": "g"},
                                {"id": "c", "exec_s": 1, "colocate": "g"}], [])
    for device, words in (([0, 0, 0], "vertex 'a': device: expected one of [1]"), ([1, 0, 1], "colocate group 'g': device: expected one"),
                          ([1, 2, 2], "vertex 'b': device: expected 0 to 1"), ([1.0, 0, 0], "device: expected integers")):
        assert_says(refusal(AssignmentError, simulate, graph, ideal(2), Assignment(np.array(device))), words)
