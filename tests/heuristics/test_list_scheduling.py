"""List schedulers against the worked examples of their papers, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import HEURISTICS
from doppler_tf.heuristics.constructive import by_priority, by_ready
from doppler_tf.heuristics.constructive.list_schedulers import optimistic_costs
from doppler_tf.heuristics.constructive.planning import planning_data
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import plan_transfers
from doppler_tf.schedule.ranks import b_levels
from doppler_tf.schedule.simulator import simulate
from tests.strategies import cases


def made(name: str, graph, costs):
    """The assignment of a heuristic that draws nothing."""
    return HEURISTICS[name](Problem(graph, costs), np.random.default_rng(0))


def planned_starts(name: str, graph, costs) -> np.ndarray:
    """float64 [N]: each vertex starts once its inputs are there and the vertex before it on its device, in planned order, has ended."""
    assignment, start_s, end_s = made(name, graph, costs), np.zeros(graph.num_vertices), np.zeros(graph.num_vertices)
    device, free_s = assignment.device, np.zeros(costs.num_devices)
    for v in assignment.order.tolist():
        edges = np.flatnonzero(graph.targets == v)
        arrived_s = end_s[graph.sources[edges]] + costs.transfer_s(edges, device[graph.sources[edges]], device[v])
        start_s[v] = max(free_s[device[v]], arrived_s.max(initial=0.0))
        end_s[v] = free_s[device[v]] = start_s[v] + costs.exec_s[v, device[v]]
    return start_s


def ten_tasks(exec_s: list[list[int]], transfer_s: dict[tuple[int, int], int]):
    """Tasks 1 to 10 on three processors, as both papers draw them."""
    graph = graph_from_records([{"id": v + 1, "exec_s": row} for v, row in enumerate(exec_s)],
                               [{"source": u, "target": v, "transfer_s": s} for (u, v), s in transfer_s.items()])
    return graph, build_costs(graph, ideal(3))


def topcuoglu():
    """Fig. 2 and table 1 of Topcuoglu et al. 2002."""
    return ten_tasks(
        [[14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20],
         [21, 7, 16]],
        {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27, (4, 9): 23,
         (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13})


def arabnejad():
    """The sample graph of Arabnejad and Barbosa 2014."""
    return ten_tasks(
        [[22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35], [26, 17, 24], [14, 25, 30], [29, 23, 36], [15, 21, 8],
         [13, 16, 33]],
        {(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7, (2, 8): 3, (2, 9): 30, (3, 7): 16, (4, 8): 11, (4, 9): 7,
         (5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42, (9, 10): 7})


@pytest.mark.parametrize(("name", "example", "makespan_s"), [
    ("heft", topcuoglu, 80), ("cpop", topcuoglu, 86), ("heft", arabnejad, 133), ("peft", arabnejad, 122)])
def test_the_papers_makespans(name, example, makespan_s):
    graph, costs = example()
    ends_s = planned_starts(name, graph, costs) + costs.exec_s[np.arange(10), made(name, graph, costs).device]
    assert ends_s.max() == makespan_s


def test_the_papers_ranks():
    """Upward ranks of HEFT's table 2; the optimistic cost table of PEFT."""
    assert b_levels(*topcuoglu()).value_s == pytest.approx([108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667], abs=1e-3)
    table = optimistic_costs(Problem(*arabnejad()))
    assert table[[0, 2, 4, 9]].tolist() == [[64, 68, 86], [27, 41, 43], [28, 37, 28], [0, 0, 0]]


def test_heft_places_the_last_but_one_into_a_gap():
    """b (b-level 9) waits on its device for a's output until 5 s; small, placed after it, fits into the 5 s before; FCP only appends."""
    nodes = [{"id": "a", "exec_s": 2, "pin": 0}, {"id": "b", "exec_s": 9, "pin": 1}, {"id": "small", "exec_s": 1, "pin": 1}]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b", "transfer_s": 3}])
    costs = build_costs(graph, ideal(2))
    assert planned_starts("heft", graph, costs).tolist() == [0, 5, 0]
    assert planned_starts("fcp", graph, costs).tolist() == [0, 5, 14]


def test_etf_starts_first_what_can_min_min_ends_first_what_can():
    """x (5 s) and y (1 s) could both start at once on the one device, z (1 s) after y. ETF: x, whose b-level is 5 and not 2; min-min: y."""
    nodes = [{"id": "x", "exec_s": 5}, {"id": "y", "exec_s": 1}, {"id": "z", "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": "y", "target": "z", "transfer_s": 4}])
    costs = build_costs(graph, ideal(1))
    assert made("etf", graph, costs).order.tolist() == [0, 1, 2]
    assert made("min_min", graph, costs).order.tolist() == [1, 2, 0]


def test_a_copy_is_sent_once_and_links_are_shared():
    """big goes over the one link for 4 s; both consumers on q read the same copy; `other`, sent after it, arrives at 6 s."""
    nodes = [{"id": "big", "exec_s": 1, "pin": "p"}, {"id": "other", "exec_s": 1, "pin": "p"},
             *({"id": v, "exec_s": 1, "pin": "q"} for v in ("r", "s", "t"))]
    edges = [{"source": "big", "target": "r", "transfer_s": 4}, {"source": "big", "target": "s", "transfer_s": 4},
             {"source": "other", "target": "t", "transfer_s": 1}]
    graph = graph_from_records(nodes, edges)
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "link_slots": 1})
    costs = build_costs(graph, topology)
    trace = simulate(graph, costs, made("heft", graph, costs), "order")
    start = dict(zip(graph.ids, trace.start_s[np.argsort(trace.vertex)].tolist(), strict=True))
    assert (start["big"], start["other"]) == (0, 1)
    assert (start["r"], start["s"]) == (5, 6)
    assert start["t"] == 7


@pytest.mark.parametrize(("insertion", "two_devices"), [(True, False), (False, False), (False, True)])
@given(case=cases(constrained=True, noise=False))
def test_plans_by_priority_keep_their_own_rules(insertion, two_devices, case):
    count, rng = case.graph.num_vertices, np.random.default_rng(0)
    preferred = rng.integers(-1, case.costs.num_devices, count).astype(np.int32)
    extra = rng.random((count, case.costs.num_devices))
    data = planning_data(case.graph, case.costs)
    assert_keeps_its_rules(case, by_priority.schedule(data, rng.random(count), extra, preferred, insertion, two_devices))


@pytest.mark.parametrize("by_end", [False, True])
@given(case=cases(constrained=True, noise=False))
def test_plans_by_ready_keep_their_own_rules(by_end, case):
    name = np.random.default_rng(0).permutation(case.graph.num_vertices)
    assert_keeps_its_rules(case, by_ready.schedule(planning_data(case.graph, case.costs), np.argsort(name), name, by_end))


def assert_keeps_its_rules(case, schedule) -> None:
    """No vertex starts before its inputs can be there; no two overlap on a device."""
    graph, costs, (device, _, start) = case.graph, case.costs, schedule
    end = start + np.where(device >= 0, costs.exec_s[np.arange(graph.num_vertices), device], 0.0)
    edges = graph.work_edges
    u, v = graph.sources[edges], graph.targets[edges]
    assert (start[v] >= end[u] + costs.transfer_s(edges, device[u], device[v]) - 1e-9).all()
    for d in range(costs.num_devices):
        mine = np.flatnonzero((device == d) & (end > start))
        mine = mine[np.argsort(start[mine])]
        assert (start[mine[1:]] >= end[mine[:-1]] - 1e-9).all()


SCHEDULES = {
    "heft": lambda graph, costs: by_priority.schedule(planning_data(graph, costs), b_levels(graph, costs).value_s, np.zeros((1, 1)),
                                                      np.full(graph.num_vertices, -1, np.int32), True, False),
    "etf": lambda graph, costs: by_ready.schedule(planning_data(graph, costs), *_by_level(graph, costs), False)}


def _by_level(graph, costs) -> tuple[np.ndarray, np.ndarray]:
    name = np.argsort(-b_levels(graph, costs).value_s, kind="stable")
    return np.argsort(name), name


def waits_on_purpose(graph, costs, device, start_s) -> bool:
    """Whether a device idles in a plan while a vertex that it runs later has all its inputs."""
    end_s = start_s + costs.exec_s[np.arange(graph.num_vertices), device]
    ready_s = np.zeros(graph.num_vertices)
    plan = plan_transfers(graph, costs, device)
    arrived_s = end_s[graph.sources]
    sent = plan.of_edge >= 0
    arrived_s[sent] += plan.cost_s[plan.of_edge[sent]]
    arrived_s[graph.is_input[graph.sources]] = 0.0
    np.maximum.at(ready_s, graph.targets, arrived_s)
    for d in range(costs.num_devices):
        mine = graph.work_vertices[device[graph.work_vertices] == d]
        mine = mine[np.lexsort((end_s[mine], start_s[mine]))]
        free_s = 0.0
        for i, v in enumerate(mine.tolist()):
            if start_s[v] > free_s and (ready_s[mine[i:]] < start_s[v] - 1e-9).any():
                return True
            free_s = max(free_s, end_s[v])
    return False


@pytest.mark.parametrize("name", SCHEDULES)
@given(case=cases(max_devices=4, noise=False))
def test_a_plan_without_waiting_is_met_or_beaten_when_it_is_run(name, case):
    # Plans know nothing of the time that transfers take from devices.
    graph, topology = case.graph, replace(case.without_shares.costs.topology, link_slots=None)
    costs = build_costs(graph, replace(topology, devices=tuple(replace(d, slots=1, memory_bytes=None) for d in topology.devices)))
    rng = np.random.default_rng(0)  # no ties, and nothing takes no time: all that ends at one instant is known before anything starts
    costs = replace(costs, exec_s=costs.exec_s + 0.1 + rng.random(costs.exec_s.shape),
                    explicit_transfer_s=(0.1 + rng.random(graph.num_tensors))[graph.edge_tensor])
    device, _, start_s = SCHEDULES[name](graph, costs)
    assume(not waits_on_purpose(graph, costs, device, start_s))
    assignment = replace(made(name, graph, costs), dispatch="order")
    assert assignment.device.tolist() == device.tolist()
    planned_s = max((start_s + costs.exec_s[np.arange(graph.num_vertices), device])[graph.work_vertices], default=0.0)
    assert simulate(graph, costs, assignment).makespan_s <= planned_s * (1 + 1e-12)


def test_a_plan_that_waits_on_purpose_cannot_be_met_by_a_work_conserving_run():
    """`urgent` can start at 1 s, and 9 s follow it. Its device has `long` from the beginning, which HEFT puts behind it."""
    nodes = [{"id": "before", "exec_s": 1, "pin": 0}, {"id": "urgent", "exec_s": 1, "pin": 1}, {"id": "after", "exec_s": 9, "pin": 0},
             {"id": "long", "exec_s": 5, "pin": 1}]
    edges = [{"source": u, "target": v, "transfer_s": 0} for u, v in (("before", "urgent"), ("urgent", "after"))]
    graph = graph_from_records(nodes, edges)
    costs = build_costs(graph, ideal(2))
    assert planned_starts("heft", graph, costs).tolist() == [0, 1, 2, 2]
    assert simulate(graph, costs, replace(made("heft", graph, costs), dispatch="order")).makespan_s == 15.0
