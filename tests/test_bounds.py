"""Lower bounds on graphs whose optimum is known."""

from __future__ import annotations

import pytest

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.schedule.bounds import lower_bounds


def bounds(nodes, edges, topology):
    graph = graph_from_records(nodes, edges)
    return lower_bounds(graph, build_costs(graph, topology))


@pytest.mark.parametrize(("exec_s", "slots", "work_s"), [
    (6, 1, 6),               # 3 x 6 s over 3 devices
    ([6, 12, 12], 1, 9),     # 18 s of the fast device: 18 / (1 + 1/2 + 1/2)
    (6, 2, 3),
])
def test_work(exec_s, slots, work_s):
    topology = Topology.from_json({"devices": [{"name": f"d{d}", "slots": slots} for d in range(3)]})
    assert work_s * (1 - 1e-13) <= bounds([{"id": v, "exec_s": exec_s} for v in range(3)], [], topology).work_s <= work_s


def test_a_pin_to_a_slow_device_counts():
    topology = Topology.from_json({"devices": [{"name": "fast", "flops_per_s": 4}, {"name": "slow", "flops_per_s": 1}]})
    assert bounds([{"id": 0, "flops": 8}], [], topology).path_s == 2
    assert bounds([{"id": 0, "flops": 8, "pin": "slow"}], [], topology).path_s == 8


def test_a_path_pays_only_transfers_that_pins_force():
    nodes = [{"id": v, "exec_s": 2} for v in range(3)]
    edges = [{"source": v, "target": v + 1, "transfer_s": 5} for v in range(2)]
    assert bounds(nodes, edges, ideal(2)).path_s == 6
    nodes[0]["pin"], nodes[2]["pin"] = 0, 1
    assert bounds(nodes, edges, ideal(2)).path_s == 11


@pytest.mark.parametrize(("transfer_s", "join_s"), [(1, 5), (10, 7), (3, 7)])
def test_a_join_waits_or_runs_its_inputs_itself(transfer_s, join_s):
    """Two inputs of 3 s and a join of 1 s: beside each other 3 + transfer + 1, one after the other 3 + 3 + 1."""
    nodes = [{"id": "a", "exec_s": 3}, {"id": "b", "exec_s": 3}, {"id": "c", "exec_s": 1}]
    found = bounds(nodes, [{"source": u, "target": "c", "transfer_s": transfer_s} for u in "ab"], ideal(2))
    assert (found.path_s, found.join_s, found.best_s) == (4, join_s, join_s)


@pytest.mark.parametrize(("transfer_s", "join_s"), [(10, 13), (4, 11), (1, 8)])
def test_a_join_counts_what_lies_further_before(transfer_s, join_s):
    """Two chains of two vertices of 3 s and a join of 1 s: on one device 4 x 3 + 1, on two 3 + 3 + transfer + 1."""
    nodes = [*({"id": v, "exec_s": 3} for v in ("a", "b", "c", "d")), {"id": "z", "exec_s": 1}]
    edges = [{"source": u, "target": v, "transfer_s": transfer_s} for u, v in ("ab", "cd", "bz", "dz")]
    assert bounds(nodes, edges, ideal(2)).join_s == join_s


@pytest.mark.parametrize(("count", "join_s"), [(4, 8), (6, 11)])
def test_what_lies_between_two_vertices_takes_all_devices_its_time(count, join_s):
    """A vertex of 1 s, some of 3 s on two devices, and one of 1 s: the path takes 5 s, the work about as much as the devices have."""
    nodes = [{"id": "a", "exec_s": 1}, *({"id": v, "exec_s": 3} for v in range(count)), {"id": "z", "exec_s": 1}]
    edges = [{"source": "a", "target": v, "transfer_s": 0} for v in range(count)]
    edges += [{"source": v, "target": "z", "transfer_s": 0} for v in range(count)]
    found = bounds(nodes, edges, ideal(2))
    assert (found.work_s, found.path_s) == (3 * count / 2 + 1, 5)
    assert found.join_s == pytest.approx(join_s)
    assert found.join_s <= join_s


def test_what_runs_elsewhere_ends_a_transfer_before():
    """As above, four vertices and transfers of 2 s to the last: between 1 s and s the devices have s - 1 and s - 3 s, 12 s together."""
    nodes = [{"id": "a", "exec_s": 1}, *({"id": v, "exec_s": 3} for v in range(4)), {"id": "z", "exec_s": 1}]
    edges = [{"source": "a", "target": v, "transfer_s": 0} for v in range(4)]
    found = bounds(nodes, [*edges, *({"source": v, "target": "z", "transfer_s": 2} for v in range(4))], ideal(2))
    assert found.join_s == pytest.approx(9)
    assert found.join_s <= 9


def test_transfers_that_take_longer_than_all_work_leave_one_device():
    """Layers of 50 vertices of 1 s, each with two inputs from the layer before, and one behind them all."""
    layers, width = 40, 50
    nodes = [*({"id": v, "exec_s": 1} for v in range(layers * width)), {"id": "z", "exec_s": 1}]
    edges = [{"source": v - width, "target": v, "transfer_s": 1e6} for v in range(width, layers * width)]
    edges += [{"source": v - v % width - width + (v + 1) % width, "target": v, "transfer_s": 1e6} for v in range(width, layers * width)]
    edges += [{"source": v, "target": "z", "transfer_s": 1e6} for v in range((layers - 1) * width, layers * width)]
    found = bounds(nodes, edges, ideal(2))
    assert found.path_s == layers + 1
    assert found.join_s == pytest.approx(layers * width + 1)
    assert found.join_s <= layers * width + 1


def test_what_begins_late_takes_all_devices_its_time_until_the_end():
    nodes = [{"id": "a", "exec_s": 2}, *({"id": v, "exec_s": 3} for v in range(4))]
    found = bounds(nodes, [{"source": "a", "target": v, "transfer_s": 0} for v in range(4)], ideal(2))
    assert (found.work_s, found.path_s) == (7, 5)
    assert found.join_s == pytest.approx(8)
    assert found.join_s <= 8


def test_inputs_cost_nothing():
    nodes = [{"id": "x", "input": True, "output_bytes": 100}, {"id": "a", "exec_s": 2}]
    found = bounds(nodes, [{"source": "x", "target": "a"}], Topology.from_json(
        {"devices": [{"name": "p"}, {"name": "q"}], "links": {"bandwidth_bytes_per_s": 1}}))
    assert (found.work_s, found.path_s, found.join_s) == (1, 2, 2)


def test_rounded_speeds_do_not_lift_the_bound_above_what_can_be_reached():
    """Vertices of 3, 2 or 1, and 4 or 2 s on two devices end after 3 s; by speeds the bound is 3 s, and rounding made it more."""
    graph = graph_from_records([{"id": 0, "exec_s": 3}, {"id": 1, "exec_s": [2, 1]}, {"id": 2, "exec_s": [4, 2]}], [])
    assert lower_bounds(graph, build_costs(graph, ideal(2))).best_s == 3.0
