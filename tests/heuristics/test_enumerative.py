"""The enumerative optimizer: the cheapest of all even spreads, by hand and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import enumerative
from doppler_tf.heuristics.constructive.balancing import linear_sum_assignment
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import plan_transfers


def place(graph, topology):
    return enumerative(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0)).device


def two_meta_ops(transfer_s: dict[tuple[int, int], float], width: int):
    """`width` pinned producers, one a device, then as many shards of one meta-op."""
    nodes = [{"id": v, "exec_s": 1, "pin": v, "meta_op": "A", "role": "shard"} for v in range(width)]
    nodes += [{"id": width + v, "exec_s": 1, "meta_op": "B", "role": "shard"} for v in range(width)]
    return graph_from_records(nodes, [{"source": u, "target": width + v, "transfer_s": s} for (u, v), s in transfer_s.items()])


@given(data=st.data(), width=st.integers(2, 4))
def test_the_cheapest_permutation(data, width):
    """One shard a device: the least transfer of all permutations."""
    costs = st.integers(0, 9)
    transfer_s = {(u, v): data.draw(costs) for u in range(width) for v in range(width) if data.draw(st.booleans())}
    graph = two_meta_ops(transfer_s, width)
    device = place(graph, ideal(width))
    assert sorted(device[width:].tolist()) == list(range(width))

    def total(spread) -> float:
        whole = np.concatenate([device[:width], spread]).astype(np.int32)
        return float(plan_transfers(graph, build_costs(graph, ideal(width)), whole).cost_s.sum())

    assert total(device[width:]) == min(total(np.array(spread)) for spread in itertools.permutations(range(width)))


def test_a_shared_copy_is_paid_once():
    """Four shards on two devices, two each: those that read the same far tensor belong together."""
    nodes = [{"id": "near", "exec_s": 1, "pin": 0, "meta_op": "A"}, {"id": "far", "exec_s": 1, "pin": 0, "meta_op": "A"},
             *({"id": v, "exec_s": 1, "meta_op": "B", "role": "shard"} for v in range(4))]
    edges = [{"source": "near" if v in (0, 2) else "far", "target": v, "transfer_s": 5} for v in range(4)]
    device = place(graph_from_records(nodes, edges), ideal(2))
    assert device[2] == device[4] != device[3] == device[5]


def test_reduces_follow_their_shards():
    """A reduce goes where most of what it adds up is, and comes after the shards even where levels are alike."""
    nodes = [{"id": f"s{v}", "exec_s": 1, "pin": v, "meta_op": "A", "role": "shard"} for v in range(3)]
    nodes.append({"id": "sum", "exec_s": 1, "meta_op": "A", "role": "reduce"})
    graph = graph_from_records(nodes, [{"source": f"s{v}", "target": "sum", "transfer_s": (1, 9, 2)[v]} for v in range(3)])
    assert place(graph, ideal(3)).tolist() == [0, 1, 2, 1]


def test_fast_devices_take_more_places():
    graph = graph_from_records([{"id": v, "flops": 6, "meta_op": "A", "role": "shard"} for v in range(8)], [])
    topology = Topology.from_json({"devices": [{"name": "p", "flops_per_s": 3}, {"name": "q", "flops_per_s": 1}]})
    assert np.bincount(place(graph, topology)).tolist() == [6, 2]


@pytest.mark.parametrize("width", [16, 300])
def test_wide_meta_ops_are_solved_as_an_assignment_problem(width):
    """Far too many spreads to try: each shard has one pinned producer and belongs beside it."""
    nodes = [{"id": v, "exec_s": 1, "pin": v % 4, "meta_op": "A", "role": "shard"} for v in range(width)]
    nodes += [{"id": width + v, "exec_s": 1, "meta_op": "B", "role": "shard"} for v in range(width)]
    graph = graph_from_records(nodes, [{"source": v, "target": width + v, "transfer_s": 1 + v % 3} for v in range(width)])
    device = place(graph, ideal(4))
    assert device[width:].tolist() == device[:width].tolist()


@given(data=st.data(), count=st.integers(1, 5))
def test_the_assignment_is_the_least_of_all(data, count):
    cost = np.array(data.draw(st.lists(st.lists(st.integers(0, 9), min_size=count, max_size=count), min_size=count, max_size=count)), float)
    mate = linear_sum_assignment(cost)
    assert sorted(mate.tolist()) == list(range(count))
    assert cost[np.arange(count), mate].sum() == min(cost[np.arange(count), list(p)].sum() for p in itertools.permutations(range(count)))


def test_an_assignment_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="a finite solution for 2 rows"):
        linear_sum_assignment(np.array([[1, np.inf], [1, np.inf]]))
