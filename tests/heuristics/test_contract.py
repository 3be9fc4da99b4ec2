"""What every heuristic must do, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import HEURISTICS, SEARCHES, Budget
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import assignment_from_devices
from tests.strategies import cases, cases_short_of_memory, examples

every_heuristic = pytest.mark.parametrize("name", HEURISTICS)
# These look at neither time nor memory.
every_thoughtful_one = pytest.mark.parametrize("name", [name for name in HEURISTICS if name not in ("one_device", "round_robin", "random")])


def made_by(name: str, case, seed: int = 7):
    """One assignment; searches take few steps, where the examples are many."""
    rng = np.random.default_rng(seed)
    if name in SEARCHES:
        return SEARCHES[name](Problem(case.graph, case.costs), rng, Budget(100)).assignment
    return HEURISTICS[name](Problem(case.graph, case.costs), rng)


def assert_legal(graph, costs, assignment) -> None:
    """A device in range for each work vertex and -1 for inputs, pins and groups kept, an order that is topological."""
    assert assignment.device.dtype == np.int32
    assert assignment.device.shape == (graph.num_vertices,)
    assert (assignment.device[graph.is_input] == -1).all()
    listed = [None if d < 0 else d for d in assignment.device.tolist()]
    checked = assignment_from_devices(graph, costs, listed, assignment.order.tolist())
    assert checked.device.tolist() == assignment.device.tolist()


@every_heuristic
@examples(0.25)
@given(case=cases(max_devices=6, constrained=True, noise=False))
def test_legal_and_deterministic_by_seed(name, case):
    first, second = (made_by(name, case) for _ in range(2))
    assert_legal(case.graph, case.costs, first)
    assert first.device.tolist() == second.device.tolist()
    assert first.order.tolist() == second.order.tolist()
    assert first.method == name


@every_heuristic
def test_one_device_takes_all(name):
    graph = graph_from_records([{"id": "x", "input": True}, *({"id": v, "exec_s": v} for v in range(5))],
                               [{"source": "x", "target": 0}, {"source": 0, "target": 4, "transfer_s": 1}])
    assignment = HEURISTICS[name](Problem(graph, build_costs(graph, ideal(1))), np.random.default_rng(0))
    assert assignment.device.tolist() == [-1, 0, 0, 0, 0, 0]


@every_heuristic
def test_a_group_follows_the_pin_of_any_member(name):
    """The pin stands on the last vertex of the chain; the first one chosen must obey it too."""
    nodes = [{"id": v, "exec_s": [1, 1, 100], "colocate": "g"} for v in "abc"] + [{"id": "d", "exec_s": 1, "pin": "device:1"}]
    nodes[2]["pin"] = 2
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in ("ab", "bc", "cd")])
    assignment = HEURISTICS[name](Problem(graph, build_costs(graph, ideal(3))), np.random.default_rng(0))
    assert assignment.device.tolist() == [2, 2, 2, 1]


@every_heuristic
@examples(0.15)
@given(case=cases_short_of_memory())
def test_legal_where_memory_is_short(name, case):
    assert_legal(case.graph, case.costs, made_by(name, case))


@every_thoughtful_one
def test_memory_decides_where_it_must(name):
    """All would end soonest on `fast`, which holds two outputs; `slow` holds the other six, `small` none."""
    graph = graph_from_records([{"id": v, "exec_s": [1, 9, 1], "output_bytes": 2} for v in range(8)], [])
    devices = [{"name": "fast", "memory_bytes": 5}, {"name": "slow", "memory_bytes": 12}, {"name": "small", "memory_bytes": 1}]
    costs = build_costs(graph, Topology.from_json({"devices": devices}))
    assignment = HEURISTICS[name](Problem(graph, costs), np.random.default_rng(0))
    assert np.bincount(assignment.device, minlength=3).tolist() == [2, 6, 0]


@every_thoughtful_one
def test_fast_devices_get_more(name):
    """Eleven equal vertices, one device ten times as fast: ten and one end at 10 s, halves at 50 s or more."""
    graph = graph_from_records([{"id": v, "exec_s": [10, 1]} for v in range(11)], [])
    costs = build_costs(graph, ideal(2))
    assignment = HEURISTICS[name](Problem(graph, costs), np.random.default_rng(0))
    assert FastSimulator(graph, costs).makespans(assignment.device[None])[0] <= 11


def unlike(*speeds: float):
    """Six independent vertices on devices of these speeds."""
    graph = graph_from_records([{"id": v, "flops": 6} for v in range(6)], [])
    topology = Topology.from_json({"devices": [{"name": f"d{d}", "flops_per_s": speed} for d, speed in enumerate(speeds)]})
    return Problem(graph, build_costs(graph, topology))


def test_one_device_is_the_fastest():
    assert HEURISTICS["one_device"](unlike(1, 3, 2), np.random.default_rng(0)).device.tolist() == [1] * 6


def test_round_robin_deals_in_turn():
    assert HEURISTICS["round_robin"](unlike(1, 1, 1, 1), np.random.default_rng(0)).device.tolist() == [0, 1, 2, 3, 0, 1]


def test_random_reaches_every_device_about_equally():
    rng = np.random.default_rng(0)
    drawn = np.concatenate([HEURISTICS["random"](unlike(1, 1, 1), rng).device for _ in range(500)])
    counts = np.bincount(drawn, minlength=3)
    assert counts.sum() == 3000
    assert abs(counts - 1000).max() < 4 * np.sqrt(3000 * 2 / 9)
