"""List schedulers against the worked examples of their papers, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from doppler_tf.costs import build_costs
from doppler_tf.formats.records import graph_from_records
from doppler_tf.heuristics import by_priority, by_ready, cpop, etf, fcp, heft, min_min, peft
from doppler_tf.heuristics.peft import optimistic_costs
from doppler_tf.heuristics.timeline import problem
from doppler_tf.ranks import b_levels
from doppler_tf.simulator import simulate
from doppler_tf.topology import Topology, ideal
from tests.strategies import cases

RNG = np.random.default_rng(0)  # no list scheduler draws from it


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


@pytest.mark.parametrize(("heuristic", "example", "makespan_s"), [
    (heft, topcuoglu, 80), (cpop, topcuoglu, 86), (heft, arabnejad, 133), (peft, arabnejad, 122)])
def test_the_papers_makespans(heuristic, example, makespan_s):
    graph, costs = example()
    assert simulate(graph, costs, heuristic(graph, costs, RNG), "order").makespan_s == makespan_s


def test_the_papers_ranks():
    """Upward ranks of HEFT's table 2; the optimistic cost table of PEFT."""
    assert b_levels(*topcuoglu()).value_s == pytest.approx([108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667], abs=1e-3)
    table = optimistic_costs(*arabnejad())
    assert table[[0, 2, 4, 9]].tolist() == [[64, 68, 86], [27, 41, 43], [28, 37, 28], [0, 0, 0]]


def test_heft_places_the_last_but_one_into_a_gap():
    """b (b-level 9) waits on its device for a's output until 5 s; small, placed after it, fits into the 5 s before; FCP only appends."""
    nodes = [{"id": "a", "exec_s": 2, "pin": 0}, {"id": "b", "exec_s": 9, "pin": 1}, {"id": "small", "exec_s": 1, "pin": 1}]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b", "transfer_s": 3}])
    costs = build_costs(graph, ideal(2))
    assert heft(graph, costs, RNG).order.tolist() == [0, 2, 1]
    assert fcp(graph, costs, RNG).order.tolist() == [0, 1, 2]


def test_etf_starts_first_what_can_min_min_ends_first_what_can():
    """x (5 s) and y (1 s) could both start at once on the one device, z (1 s) after y. ETF: x, whose b-level is 5 and not 2; min-min: y."""
    nodes = [{"id": "x", "exec_s": 5}, {"id": "y", "exec_s": 1}, {"id": "z", "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": "y", "target": "z", "transfer_s": 4}])
    costs = build_costs(graph, ideal(1))
    assert etf(graph, costs, RNG).order.tolist() == [0, 1, 2]
    assert min_min(graph, costs, RNG).order.tolist() == [1, 2, 0]


def test_a_copy_is_sent_once_and_links_are_shared():
    """The order of choice is big, other, r, t, s.

    big goes over the one link until 5 s and other until 10 s, so r takes 5 to 8 s and t starts at 10 s. s fits in between, because the copy
    sent for r serves it. If that were sent again, or if other did not wait for big, s would come last.
    """
    nodes = [{"id": "big", "exec_s": 1, "pin": "p"}, {"id": "other", "exec_s": 1, "pin": "p"},
             *({"id": v, "exec_s": s, "pin": "q"} for v, s in (("r", 3), ("s", 1), ("t", 2)))]
    edges = [{"source": "big", "target": "r", "transfer_s": 4}, {"source": "big", "target": "s", "transfer_s": 4},
             {"source": "other", "target": "t", "transfer_s": 5}]
    graph = graph_from_records(nodes, edges)
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "link_slots": 1})
    order = heft(graph, build_costs(graph, topology), RNG).order
    assert [graph.ids[v] for v in order] == ["big", "other", "r", "s", "t"]


def scheduled(graph, costs, insertion: bool, two_devices: bool):
    anywhere, level = np.full(graph.num_vertices, -1, np.int32), b_levels(graph, costs).value_s
    return by_priority.schedule(problem(graph, costs), level, np.zeros((1, 1)), anywhere, insertion, two_devices)


def greedy(graph, costs, by_end: bool):
    name = np.argsort(-b_levels(graph, costs).value_s, kind="stable")
    return by_ready.schedule(problem(graph, costs), np.argsort(name), name, by_end)


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize(("schedule", "switches"), [(scheduled, (True, False)), (scheduled, (False, True)), (greedy, (False,)),
                                                    (greedy, (True,))])
@given(case=cases(constrained=True, noise=False))
def test_plans_keep_their_own_rules(schedule, switches, case):
    """No vertex starts before its inputs can be there; no two overlap on a device."""
    graph, costs = case.graph, case.costs
    device, _, start = schedule(graph, costs, *switches)
    end = start + np.where(device >= 0, costs.exec_s[np.arange(graph.num_vertices), device], 0.0)
    edges = graph.work_edges
    u, v = graph.sources[edges], graph.targets[edges]
    assert (start[v] >= end[u] + costs.transfer_s(edges, device[u], device[v]) - 1e-9).all()
    for d in range(costs.num_devices):
        mine = np.flatnonzero((device == d) & (end > start))
        mine = mine[np.argsort(start[mine])]
        assert (start[mine[1:]] >= end[mine[:-1]] - 1e-9).all()
