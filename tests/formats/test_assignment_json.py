"""`doppler-assignment/1` and bare lists: round trips, and what each misfit is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from doppler_tf.errors import AssignmentError
from doppler_tf.formats.assignment_json import assignment_from_json, assignment_to_json, read_assignment, write_assignment
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.schedule.simulator import simulate
from tests.messages import assert_says, refusal
from tests.strategies import cases

NODES = [{"id": "x", "input": True}, {"id": "a", "exec_s": 1, "pin": 1}, {"id": "b", "exec_s": 1, "colocate": "g"},
         {"id": "c", "exec_s": 1, "colocate": "g"}]
EDGES = [{"source": u, "target": v, "transfer_s": 1} for u, v in ("xa", "ab", "bc")]


@pytest.fixture
def graph():
    return graph_from_records(NODES, EDGES, {"name": "small"})


@pytest.fixture
def costs(graph):
    return build_costs(graph, ideal(2))


@given(cases(constrained=True))
def test_random_assignments_survive_a_round_trip(tmp_path_factory, case):
    path, given_ = tmp_path_factory.getbasetemp() / "a.json", replace(case.assignment, dispatch=case.rule)
    makespan_s = simulate(case.graph, case.costs, given_).makespan_s
    write_assignment(path, case.graph, case.costs, given_, makespan_s)
    again = read_assignment(path, case.graph, case.costs)
    assert again.device.tolist() == given_.device.tolist()
    assert again.order.tolist() == given_.order.tolist()
    assert simulate(case.graph, case.costs, again).makespan_s == makespan_s
    record = json.loads(path.read_text())
    assert (record["schema"], record["makespan_s"], record["dispatch"]) == ("doppler-assignment/1", makespan_s, case.rule)
    assert (record["graph_hash"], record["topology_hash"]) == (case.graph.graph_hash, case.costs.topology.topology_hash)
    assert [d is None for d in record["device"]] == case.graph.is_input.tolist()
    assert record["device_names"] == [f"d{d}" for d in range(case.costs.num_devices)]


def test_a_bare_list_is_enough(graph, costs):
    assignment = assignment_from_json([None, 1, 0, 0], graph, costs)
    assert (assignment.device.tolist(), assignment.order, assignment.method) == ([-1, 1, 0, 0], None, "")
    assert assignment_from_json([7, 1, 0, 0], graph, costs).device.tolist() == [-1, 1, 0, 0], "what stands at an input is ignored"


def test_method_and_order_are_kept(graph, costs):
    record = {**assignment_to_json(graph, costs, assignment_from_json([None, 1, 0, 0], graph, costs)), "order": [1, 2, 3], "method": "heft"}
    assignment = assignment_from_json(record, graph, costs)
    assert (assignment.order.tolist(), assignment.method) == ([1, 2, 3], "heft")


@pytest.mark.parametrize(("devices", "words"), [
    ([], "device: expected 4 entries (one a vertex of small), got 0; is it made for another graph?"),
    ([None, 1, 0], "device: expected 4 entries (one a vertex of small), got 3"),
    ([None, 1, 2, 2], "vertex 'b': device: expected 0 to 1 (ideal:2 has 2 devices), got 2"),
    ([None, 1, -1, 0], "vertex 'b': device: expected 0 to 1 (ideal:2 has 2 devices), got -1"),
    ([None, 1, 10**30, 0], "vertex 'b': device: expected 0 to 1"),
    ([None, 1, None, 0], "vertex 'b': device: expected an integer, got None; only input vertices may be null"),
    ([None, 1, True, 1], "vertex 'b': device: expected an integer, got True"),
    ([None, 1, 1.0, 1], "vertex 'b': device: expected an integer, got 1.0"),
    ([None, 1, "device:1", 1], "vertex 'b': device: expected an integer, got 'device:1'"),
    ([None, 1, [0], 1], "vertex 'b': device: expected an integer, got [0]"),
    (["d", 1, 0, 0], "vertex 'x': device: expected an integer, got 'd'"),
    ([None, 0, 0, 0], "vertex 'a': device: expected one of [1] (its pin or that of its colocate group), got 0"),
    ([None, 1, 0, 1], "colocate group 'g': device: expected one device for the whole group, got [0, 1]"),
])
def test_devices_that_do_not_fit(graph, costs, tmp_path, devices, words):
    for record in (devices, {"schema": "doppler-assignment/1", "device": devices}):
        (tmp_path / "a.json").write_text(json.dumps(record))
        message = refusal(AssignmentError, read_assignment, tmp_path / "a.json", graph, costs)
        assert_says(message, words)
        assert message.startswith(f"{tmp_path / 'a.json'}: ")


ONCE = "order: expected each of the 3 vertices that are not inputs once, got "


@pytest.mark.parametrize(("fields", "words"), [
    ({"schema": "doppler-assignment/2"}, "schema: expected doppler-assignment/1 or a bare list of device indices"),
    ({"device": None}, "device: expected a list in node order, got None"),
    ({"device": {"a": 0}}, "device: expected a list in node order, got {'a': 0}"),
    ({"graph_hash": "f" * 64}, "(graph small), got 'ffffffffffff"),
    ({"graph_hash": 5}, "(graph small), got 5...; it was made for another graph, or with other --costs: place again, or pass its 'device'"),
    ({"topology_hash": "0" * 64}, "(topology ideal:2), got '000000000000"),
    ({"topology_hash": ["f"]}, "it was made for another topology"),
    ({"order": "abc"}, "order: expected a list of vertex indices or null, got 'abc'"),
    ({"order": []}, ONCE + "0 entries"),
    ({"order": [1, 2]}, ONCE + "2 entries"),
    ({"order": [1, 2, 2]}, ONCE + "3 entries"),
    ({"order": [0, 1, 2]}, ONCE + "3 entries"),
    ({"order": [1, 2, 10**30]}, ONCE + "3 entries"),
    ({"order": [1, 2, 3.0]}, ONCE + "3 entries, not all of them integers"),
    ({"order": [1, 2, None]}, ONCE + "3 entries, not all of them integers"),
    ({"order": [[1], [2, 3]]}, ONCE + "2 entries, not all of them integers"),
    ({"order": [True, 2, 3]}, ONCE + "3 entries, not all of them integers"),
    ({"order": [2, 1, 3]}, "vertex 'b': order: expected it after its predecessor 'a', got it before"),
    ({"method": ["heft"]}, "method: expected a string or null, got ['heft']"),
    ({"dispatch": 0}, "dispatch: expected one of fifo, b_level, order, got 0"),
    ({"dispatch": ""}, "dispatch: expected one of fifo, b_level, order, got ''"),
    ({"dispatch": None, "priority": [None, 1, 2, 3]}, "dispatch: expected 'order' beside a priority, got None"),
    ({"dispatch": "order", "priority": [None, 1, 2]}, "priority: expected a list of 4 entries in node order, or null, got 3"),
    ({"dispatch": "order", "priority": [None, 1, 10**400, 3]}, "priority: expected a finite number, smallest first, got 1000"),
    ({"dispatch": "order", "priority": [None, 1, True, 3]}, "priority: expected a finite number, smallest first, got True"),
])
def test_records_that_do_not_fit(graph, costs, fields, words):
    record = assignment_to_json(graph, costs, assignment_from_json([None, 1, 0, 0], graph, costs))
    assert_says(refusal(AssignmentError, assignment_from_json, {**record, **fields}, graph, costs, "here"), "here: ", words)


@pytest.mark.parametrize("record", [None, 3, "device", True])
def test_no_assignment_at_all(graph, costs, record):
    assert_says(refusal(AssignmentError, assignment_from_json, record, graph, costs), f"or a bare list of device indices, got {record!r}")
