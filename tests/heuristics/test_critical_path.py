"""The teacher on graphs small enough to schedule by hand."""

from __future__ import annotations

import numpy as np
import pytest

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import CriticalPath
from doppler_tf.schedule.simulator import simulate


def samples(graph, topology, count: int = 20):
    costs, rng = build_costs(graph, topology), np.random.default_rng(0)
    teacher = CriticalPath(graph, costs)
    return [teacher.sample(rng) for _ in range(count)]


def join():
    """a (2 s) and b (3 s) feed c (1 s), 1 s to send: b-levels 4, 5, 1."""
    nodes = [{"id": "a", "exec_s": 2}, {"id": "b", "exec_s": 3}, {"id": "c", "exec_s": 1}]
    return graph_from_records(nodes, [{"source": u, "target": "c", "transfer_s": 1} for u in "ab"])


def test_a_join_by_hand():
    """b first, anywhere; a beside it (start 0, not 3); c where b ran (start 3, not 4)."""
    graph = join()
    drawn = samples(graph, ideal(2))
    for assignment in drawn:
        a, b, c = assignment.device.tolist()
        assert assignment.order.tolist() == [1, 0, 2]
        assert (b, 1 - b) == (c, a)
        assert simulate(graph, ideal(2), assignment).makespan_s == 4
    assert {assignment.device[1] for assignment in drawn} == {0, 1}, "ties between devices are broken at random"


def test_ties_between_candidates_are_random_and_larger_levels_come_first():
    graph = graph_from_records([{"id": v, "exec_s": 5 if v == 3 else 1} for v in range(4)], [])
    orders = {tuple(assignment.order.tolist()) for assignment in samples(graph, ideal(2), 60)}
    assert {order[0] for order in orders} == {3}
    assert len(orders) == 6


def test_inputs_neither_delay_nor_occupy():
    nodes = [{"id": "x", "input": True}, {"id": "a", "exec_s": 1}, {"id": "b", "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": "x", "target": v, "bytes": 1e9} for v in "ab"])
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "links": {"bandwidth_bytes_per_s": 1}})
    for assignment in samples(graph, topology):
        assert sorted(assignment.device.tolist()) == [-1, 0, 1]


@pytest.mark.parametrize(("edge", "device"), [
    ({"bytes": 2}, "q"), ({"bytes": 6}, "p"), ({"transfer_s": 2.5}, "q"), ({"transfer_s": 3.5}, "p")])
def test_transfers_are_weighed_against_waiting(edge, device):
    """a (1 s) and hog (3 s) run on p until 4 s; b can start there then, or on q once it has a (latency 1 s, 2 bytes/s)."""
    nodes = [{"id": "a", "exec_s": 1, "pin": "p"}, {"id": "hog", "exec_s": 3, "pin": "p"}, {"id": "b", "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": "a", "target": "hog", "transfer_s": 0}, {"source": "a", "target": "b", **edge}])
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "links": {"bandwidth_bytes_per_s": 2, "latency_s": 1}})
    (assignment,) = samples(graph, topology, 1)
    assert topology.device_names[assignment.device[2]] == device


def test_full_devices_are_avoided_while_another_is_left():
    """One output fits on the fast device, two on the slow one; once both are full, the earliest start decides again."""
    graph = graph_from_records([{"id": v, "exec_s": [1, 10], "output_bytes": 1} for v in range(5)], [])
    topology = Topology.from_json({"devices": [{"name": "fast", "memory_bytes": 1}, {"name": "slow", "memory_bytes": 2}]})
    for assignment in samples(graph, topology):
        chosen = assignment.device[assignment.order].tolist()
        assert sorted(chosen[:3]) == [0, 1, 1]
        assert chosen[3:] == [0, 0]
