"""A sound trace, doctored in one place after another: each lie has its name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace

A, B, C, D, E = range(5)


def machine(slots: int = 1, link_slots: int | None = 1, memory_bytes: int | None = None) -> Topology:
    devices = [{"name": name, "slots": slots, "memory_bytes": memory_bytes} for name in ("left", "right")]
    return Topology.from_json({"devices": devices, "link_slots": link_slots})


@pytest.fixture
def graph():
    """a feeds c and d, b feeds c and e; c and d run on the right."""
    nodes = [{"id": name, "exec_s": seconds, "output_bytes": 10} for name, seconds in zip("abcde", (2, 1, 1, 2, 1), strict=True)]
    return graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in ("ac", "bc", "ad", "be")])


@pytest.fixture
def assignment():
    return Assignment(np.array([0, 0, 1, 1, 0], np.int32))


@pytest.fixture
def trace(graph, assignment):
    """a 0-2, b 2-3, e 3-4 on the left; a sent 2-3, b sent 3-4; d 3-5, c 5-6 on the right."""
    return simulate(graph, machine(), assignment)


def moved(trace, spans=None, sends=None):
    """The trace with other times: {vertex: (start, end)}, {row of transfer: (start, end)}."""
    start, end, sent, arrived = (x.copy() for x in (trace.start_s, trace.end_s, trace.transfer_start_s, trace.transfer_end_s))
    for v, span in (spans or {}).items():
        start[v], end[v] = span
    for t, span in (sends or {}).items():
        sent[t], arrived[t] = span
    return dataclasses.replace(trace, start_s=start, end_s=end, transfer_start_s=sent, transfer_end_s=arrived)


def vertices(trace, rows):
    """The trace with these rows of vertices only, in this sequence."""
    columns = {name: getattr(trace, name)[rows] for name in ("vertex", "device", "start_s", "end_s")}
    return dataclasses.replace(trace, **columns)


def transfers(trace, rows):
    names = ("producer", "source", "destination", "output", "transfer_start_s", "transfer_end_s")
    columns = {name: getattr(trace, name)[rows] for name in names}
    return dataclasses.replace(trace, **columns)


def kinds(violations):
    return [violation.kind for violation in violations]


def test_the_sound_trace_is_the_one_computed_by_hand(graph, assignment, trace):
    assert trace.start_s.tolist() == [0, 2, 5, 3, 3]
    assert trace.end_s.tolist() == [2, 3, 6, 5, 4]
    assert list(zip(trace.producer, trace.transfer_start_s, trace.transfer_end_s, strict=True)) == [(A, 2, 3), (B, 3, 4)]
    assert validate_trace(graph, build_costs(graph, machine()), assignment, trace).work_conserving


@pytest.mark.parametrize(("spans", "sends", "kind", "words"), [
    ({D: (2.5, 4.5)}, {}, "dependency", "vertex d started at 2.5 s, before its input from a was resident at 3 s"),
    ({E: (2.5, 3.5), B: (2, 3)}, {}, "dependency", "vertex e started at 2.5 s, before its input from b was resident at 3 s"),
    ({}, {0: (1, 2)}, "transfer before producer", "output of vertex a was sent at 1 s, before its end at 2 s"),
    ({B: (1, 2)}, {}, "double booking of a device", "device left was full when vertex b started at 1 s"),
    ({D: (4, 6), C: (6, 7)}, {0: (2, 4)}, "double booking of a link",
     "link left -> right was full when the output of vertex b was sent at 3 s"),
    ({E: (4, 3.5)}, {}, "bad time", "expected 0 <= start <= end, got 4.0 to 3.5"),
    ({A: (-1, 2)}, {}, "bad time", "got -1.0 to 2.0"),
    ({C: (5, np.nan)}, {}, "bad time", "got 5.0 to nan"),
    ({C: (5, np.inf)}, {}, "bad time", "got 5.0 to inf"),
])
def test_impossible_times(graph, assignment, trace, spans, sends, kind, words):
    report = validate_trace(graph, build_costs(graph, machine()), assignment, moved(trace, spans, sends))
    assert kind in kinds(report.violations)
    assert any(words in violation.message for violation in report.violations)
    assert not report.valid
    assert not report.work_conserving


@pytest.mark.parametrize(("spans", "sends", "kind", "words"), [
    ({E: (4, 5)}, {}, "idle device", "device left idled 1 s beside vertex e, ready from 3 s, started at 4 s"),
    ({}, {1: (3.5, 4.5)}, "idle link", "link left -> right idled 0.5 s beside the output of vertex b, queued from 3 s, sent at 3.5 s"),
])
def test_idling_beside_work_is_valid_but_not_work_conserving(graph, assignment, trace, spans, sends, kind, words):
    report = validate_trace(graph, build_costs(graph, machine()), assignment, moved(trace, spans, sends))
    assert report.valid
    assert not report.work_conserving
    assert [(violation.kind, violation.message) for violation in report.idle] == [(kind, words)]


@pytest.mark.parametrize(("doctor", "kind", "words"), [
    (lambda t: vertices(t, [A, B, C, D]), "missing vertex", "vertex e never ran"),
    (lambda t: vertices(t, [A, B, C, D, E, E]), "repeated vertex", "vertex e ran 2 times"),
    (lambda t: dataclasses.replace(t, vertex=np.array([A, B, C, D, 7])), "unknown vertex", "vertex index 7 is not to be run"),
    (lambda t: dataclasses.replace(t, device=np.array([0, 0, 1, 1, 1])), "wrong device", "vertex e ran on device 1, assigned to 0"),
    (lambda t: transfers(t, [0]), "missing transfer", "output of vertex b never reached right"),
    (lambda t: transfers(t, [0, 1, 1]), "repeated transfer", "output of vertex 1 from device 0 to 1: sent 2 times"),
    (lambda t: dataclasses.replace(transfers(t, [0, 1, 1]), producer=np.array([A, B, E])), "needless transfer", "nothing there uses it"),
    (lambda t: dataclasses.replace(t, source=np.array([0, 1])), "needless transfer", "from device 1 to 1"),
])
def test_every_vertex_and_transfer_once_and_where_it_belongs(graph, assignment, trace, doctor, kind, words):
    report = validate_trace(graph, build_costs(graph, machine()), assignment, doctor(trace))
    assert kind in kinds(report.violations)
    assert any(words in violation.message for violation in report.violations if violation.kind == kind)
    assert not report.work_conserving


def test_inputs_are_not_to_be_run():
    graph = graph_from_records([{"id": "x", "input": True}, {"id": "a", "exec_s": 1}], [{"source": "x", "target": "a"}])
    assignment = Assignment(np.array([-1, 0], np.int32))
    trace = simulate(graph, machine(), assignment)
    assert trace.vertex.tolist() == [1]
    ran = dataclasses.replace(trace, vertex=np.array([0, 1]), device=np.array([0, 0]), start_s=np.zeros(2), end_s=np.ones(2))
    assert kinds(validate_trace(graph, build_costs(graph, machine()), assignment, ran).violations) == ["unknown vertex"]


@pytest.mark.parametrize(("limit", "found"), [(40, []), (39, ["memory"])])
def test_memory_over_the_limit(graph, assignment, trace, limit, found):
    """The right holds both copies and both outputs (nobody uses them) while c runs: 40 bytes."""
    report = validate_trace(graph, build_costs(graph, machine(memory_bytes=limit)), assignment, trace)
    assert kinds(report.violations) == found
    if found:
        assert report.violations[0].message == "device right holds 40 bytes at 5 s, it has 39"


@pytest.mark.parametrize(("memory_bytes", "idle"), [(None, ["idle device"]), (20, ["idle device"]), (19, [])])
def test_waiting_for_memory_is_not_idling(memory_bytes, idle):
    """Two slots, two vertices, one after the other; the first one's output is freed when its consumer ends."""
    nodes = [{"id": v, "exec_s": 1, "output_bytes": 10 if v in "ac" else 0} for v in "abc"]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b"}])
    costs, assignment = build_costs(graph, machine(2, memory_bytes=memory_bytes)), Assignment(np.zeros(3, np.int32))
    late = moved(simulate(graph, build_costs(graph, machine(2)), assignment), {2: (2, 3)})
    report = validate_trace(graph, costs, assignment, late)
    assert report.valid
    assert kinds(report.idle) == idle


@pytest.mark.parametrize(("spans", "sends", "off"), [
    ({D: (2.5, 4.5)}, {}, 0.5), ({}, {0: (1.5, 2.5)}, 0.5), ({B: (1.5, 2.5)}, {}, 0.5), ({E: (3.5, 4.5)}, {}, 0.5),
    ({}, {1: (3.25, 4.25)}, 0.25), ({D: (3.25, 5.25), C: (5.25, 6.25)}, {0: (2, 3.25)}, 0.25),
], ids=["early vertex", "early transfer", "booked device", "idle device", "idle link", "booked link"])
def test_the_tolerance_forgives_so_much_and_no_more(graph, assignment, trace, spans, sends, off):
    doctored, costs = moved(trace, spans, sends), build_costs(graph, machine())
    assert validate_trace(graph, costs, assignment, doctored, tolerance_s=off).work_conserving
    assert not validate_trace(graph, costs, assignment, doctored, tolerance_s=off * 0.99).work_conserving


@pytest.mark.parametrize("link_slots", [2, None])
def test_a_wider_link_must_be_used(graph, assignment, trace, link_slots):
    """Sound on a link of one slot, but b could have been sent at once had it ended while a was on its way."""
    late = moved(trace, {D: (4, 6), C: (6, 7)}, {0: (2, 4), 1: (4, 5)})
    costs = build_costs(graph, machine(link_slots=1))
    assert validate_trace(graph, costs, assignment, late).work_conserving
    wide = validate_trace(graph, build_costs(graph, machine(link_slots=link_slots)), assignment, late)
    assert kinds(wide.idle) == ["idle link"]


def test_links_of_one_card_are_booked_together(graph, assignment):
    """a is sent to two devices at once, then b; the card carries one after another."""
    three = {"devices": [{"name": name} for name in ("left", "right", "far")], "links": {}}
    apart = Assignment(np.array([0, 0, 1, 2, 0], np.int32))
    own = Topology.from_json(three)
    both = Topology.from_json({**three, "links": {"card": [[None, 0, 0], [None] * 3, [None] * 3]}})
    late, soon = simulate(graph, both, apart), simulate(graph, own, apart)
    (booked,) = validate_trace(graph, both, apart, soon).violations
    assert (booked.kind, booked.message) == ("double booking of a link", "the network card of link left -> far was full when the output of "
                                                                         "vertex a was sent at 2 s")
    assert kinds(validate_trace(graph, own, apart, late).idle) == ["idle link", "idle link"]


def test_a_second_slot_must_be_used(graph, assignment, trace):
    report = validate_trace(graph, build_costs(graph, machine(slots=2)), assignment, trace)
    assert report.valid
    assert kinds(report.idle) == ["idle device"] * 2
    assert [violation.message.split(",")[0] for violation in report.idle] == [
        "device left idled 2 s beside vertex b", "device right idled 1 s beside vertex c"]
