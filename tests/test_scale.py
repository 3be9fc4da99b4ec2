"""Graphs of thousands of vertices: shapes with long queues, deep chains and large degrees are simulated alike everywhere."""

from __future__ import annotations

import dataclasses

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from doppler_tf.errors import AssignmentError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal, p100x4, v100x8
from doppler_tf.heuristics import CONSTRUCTIVE, Problem
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import by_link, memory_profiles
from doppler_tf.schedule.validation import validate_trace
from tests.strategies import Case, cases, makespan_or_inf

COUNT = 3_000


def build(pairs, count: int = COUNT, bytes_of=lambda v: 1 + v * 7919 % 997) -> DataflowGraph:
    """Vertices of unlike costs and sizes, few of them alike."""
    nodes = [{"id": v, "exec_s": (1 + v * 31 % 7) * 1e-6, "output_bytes": bytes_of(v)} for v in range(count)]
    return graph_from_records(nodes, [{"source": int(u), "target": int(v)} for u, v in pairs])


def two_layers() -> list[tuple[int, int]]:
    rng, half = np.random.default_rng(5), COUNT // 2
    return sorted({(int(u), int(v)) for v in range(half, COUNT) for u in rng.integers(0, half, 2)})


SHAPES = {
    "chain": [(v, v + 1) for v in range(COUNT - 1)],
    "one to all": [(0, v) for v in reversed(range(1, COUNT))],
    "all to one": [(v, COUNT - 1) for v in range(COUNT - 1)],
    "independent": [],
    "two layers": two_layers(),
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_rule = pytest.mark.parametrize("rule", DISPATCH_RULES)


def spread(graph: DataflowGraph, topology: Topology) -> Assignment:
    """Any devices; any order that the level order allows."""
    rng = np.random.default_rng(3)
    order = np.concatenate([rng.permutation(level) for level in graph.levels]).astype(np.int32)
    return Assignment(rng.integers(0, topology.num_devices, graph.num_vertices).astype(np.int32), order)


def limited(topology: Topology, memory_bytes: float) -> Topology:
    devices = tuple(dataclasses.replace(device, memory_bytes=memory_bytes) for device in topology.devices)
    return dataclasses.replace(topology, devices=devices)


def fast(case: Case, patience: int | None = None) -> float:
    simulator = FastSimulator(case.graph, case.costs, case.rule, case.noise, patience)
    return float(simulator.makespans_of([case.assignment])[0])


@every_rule
@every_shape
@pytest.mark.parametrize("link_slots", [None, 1])
def test_large_shapes_agree_to_the_last_bit(shape, rule, link_slots):
    graph, topology = build(SHAPES[shape]), dataclasses.replace(v100x8(), link_slots=link_slots)
    case = Case(graph, build_costs(graph, topology), spread(graph, topology), rule, None)
    trace = simulate(graph, case.costs, case.assignment, rule)
    assert fast(case) == trace.makespan_s
    report = validate_trace(graph, case.costs, case.assignment, trace)
    assert (report.violations, report.idle) == ((), ())


@every_rule
@pytest.mark.parametrize("shape", ["two layers", "all to one", "one to all"])
@pytest.mark.parametrize("share", [0.9, *(pytest.param(share, marks=pytest.mark.thorough) for share in (0.98, 0.7))])
def test_long_queues_beside_full_memory_agree_to_the_last_bit(shape, rule, share):
    """What waits is unlike in size, so that queues must be searched for what fits."""
    graph = build(SHAPES[shape])
    assignment = spread(graph, p100x4())
    free = build_costs(graph, p100x4())
    peak = max(p.used_bytes.max() for p in memory_profiles(graph, free, assignment, simulate(graph, free, assignment, rule)))
    case = Case(graph, build_costs(graph, limited(p100x4(), float(int(share * peak)))), assignment, rule, None)
    makespan_s = makespan_or_inf(case)
    assert fast(case) == makespan_s
    if np.isfinite(makespan_s):
        report = validate_trace(graph, case.costs, assignment, simulate(graph, case.costs, assignment, rule))
        assert (report.violations, report.idle) == ((), ())


@given(case=cases())
def test_heaps_agree_with_the_simulator(case):
    """Queues become heaps at the first entry, as else long ones alone do."""
    assert fast(case, patience=-1) == simulate(case.graph, case.costs, case.assignment, case.rule, case.noise).makespan_s


@every_shape
def test_levels_are_networkx_generations(shape):
    assert_generations(build(SHAPES[shape], bytes_of=lambda v: 1))


@given(case=cases(constrained=True))
def test_levels_of_any_graph_are_networkx_generations(case):
    assert_generations(case.graph)


def assert_generations(graph: DataflowGraph) -> None:
    """Levels, the order that they give and the depth without inputs."""
    whole = nx.DiGraph(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    whole.add_nodes_from(range(graph.num_vertices))
    assert [level.tolist() for level in graph.levels] == [sorted(level) for level in nx.topological_generations(whole)]
    assert graph.topological_order.tolist() == np.concatenate(graph.levels).tolist()
    assert graph.topological_order.dtype == np.int32
    whole.remove_nodes_from(np.flatnonzero(graph.is_input).tolist())
    assert graph.depth == nx.dag_longest_path_length(whole, default_weight=1) + 1


@pytest.mark.parametrize("method", CONSTRUCTIVE)
def test_a_thousand_groups_stay_together(method):
    """Groups of three, some pinned by their last member."""
    nodes = [{"id": v, "exec_s": 1, "colocate": f"g{v // 3}", **({"pin": v % 4} if v % 30 == 29 else {})} for v in range(COUNT)]
    graph = graph_from_records(nodes, [{"source": v, "target": v + 7, "bytes": 1} for v in range(COUNT - 7)])
    costs = build_costs(graph, p100x4())
    device = CONSTRUCTIVE[method](Problem(graph, costs), np.random.default_rng(0)).device
    rows = device.reshape(-1, 3)
    assert (rows == rows[:, :1]).all()
    assert device[29::30].tolist() == [v % 4 for v in range(29, COUNT, 30)]


def test_links_are_grouped_in_order():
    source, destination = np.array([2, 0, 2, 0, 1]), np.array([0, 1, 0, 2, 0])
    assert {link: members.tolist() for link, members in by_link(source, destination).items()} == {
        (0, 1): [1], (0, 2): [3], (1, 0): [4], (2, 0): [0, 2]}
    assert by_link(source[:0], destination[:0]) == {}


def test_batches_of_another_shape_are_refused():
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(3)], [])
    fast = FastSimulator(graph, build_costs(graph, ideal(2)), "order")
    with pytest.raises(AssignmentError, match=r"device: expected shape \[assignments, 3\], got \[3\]"):
        fast.makespans(np.zeros(3, np.int32), np.arange(3)[None])
    for orders in ([[0, 1]], [[0, 1, 1]], [[-1, 1, 2]], [[0.0, 1.0, 2.0]], [[0, 1, 2], [0, 1, 2]]):
        with pytest.raises(AssignmentError, match="order: expected for each of 1 assignments all 3 vertices"):
            fast.makespans(np.zeros((1, 3), np.int32), np.array(orders))
    assert fast.makespans(np.zeros((1, 3), np.int32), np.array([[2, 0, 1]])) == 3
