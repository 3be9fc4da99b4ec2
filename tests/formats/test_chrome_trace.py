"""Trace files: nothing is lost, they can be checked alone, and Chrome finds its way in them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from doppler_tf.errors import AssignmentError, TraceError
from doppler_tf.formats.chrome_trace import read_trace, write_trace
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import memory_profiles
from doppler_tf.schedule.validation import validate_trace
from tests.messages import assert_says, refusal
from tests.strategies import cases


def same(first, second) -> bool:
    """Equality of two traces, bit for bit, logs included."""
    def plain(value):
        return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value

    names = [f.name for f in dataclasses.fields(first) if f.name not in ("log", "graph", "costs")]  # what it is a trace of
    logs = (first.log is None and second.log is None) or same(first.log, second.log)
    return logs and all(plain(getattr(first, name)) == plain(getattr(second, name)) for name in names)


def by_kind(path) -> dict[str, list[dict]]:
    kinds: dict[str, list[dict]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        kinds.setdefault(event["ph"], []).append(event)
    return kinds


@given(case=cases(constrained=True))
def test_a_file_holds_all_that_a_check_needs(tmp_path_factory, case):
    path = tmp_path_factory.getbasetemp() / "trace.json"
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    write_trace(path, case.graph, case.costs, case.assignment, trace)
    file = read_trace(path)
    assert same(file.trace, trace)
    assert file.trace.makespan_s == trace.makespan_s
    assert file.graph.graph_hash == case.graph.graph_hash
    assert file.costs.topology.topology_hash == case.costs.topology.topology_hash
    assert file.costs.exec_s.tobytes() == case.costs.exec_s.tobytes()
    assert file.assignment.device.tolist() == case.assignment.device.tolist()
    assert validate_trace(file.graph, file.costs, file.assignment, file.trace).work_conserving


@given(case=cases())
def test_events_are_consistent(tmp_path_factory, case):
    """Spans do not run backwards, every row that is used has a name, every flow starts, passes its link and ends, in this order."""
    path = tmp_path_factory.getbasetemp() / "trace.json"
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    write_trace(path, case.graph, case.costs, case.assignment, trace)
    kinds = by_kind(path)
    assert set(kinds) <= set("MXCstf")
    spans = kinds["X"]
    assert Counter(event["cat"] for event in spans) == Counter(vertex=trace.vertex.size, transfer=trace.producer.size)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    named = {(event["pid"], event["tid"]) for event in kinds["M"] if event["name"] == "thread_name"}
    flows = [kinds.get(ph, []) for ph in "stf"]
    assert {(event["pid"], event["tid"]) for event in [*spans, *flows[0], *flows[1], *flows[2]]} <= named
    assert {event["pid"] for event in kinds["C"]} <= {event["pid"] for event in kinds["M"] if event["name"] == "process_name"}
    starts, steps, ends = ({event["id"]: event["ts"] for event in flow} for flow in flows)
    assert sorted(starts) == sorted(steps) == sorted(ends) == list(range(trace.producer.size))
    assert all(starts[i] <= steps[i] <= ends[i] for i in starts)
    assert all(event["args"].keys() == {"bytes"} or event["args"].keys() == {"vertices"} for event in kinds["C"])
    assert all(value >= 0 for event in kinds["C"] for value in event["args"].values())


@pytest.fixture
def run():
    """a (2 s on left) feeds b (1 s on right) by a transfer of 1 s; c waits 2 s for a on left."""
    nodes = [{"id": v, "exec_s": s, "output_bytes": 5} for v, s in (("a", 2), ("b", 1), ("c", 3))]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b", "transfer_s": 1}])
    topology = Topology.from_json({"devices": [{"name": "left"}, {"name": "right"}]})
    assignment = Assignment(np.array([0, 1, 0], np.int32), method="by hand")
    return graph, build_costs(graph, topology), assignment, simulate(graph, topology, assignment)


def test_the_events_by_hand(run, tmp_path):
    write_trace(tmp_path / "t.json", *run)
    kinds = by_kind(tmp_path / "t.json")
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in kinds["M"] if event["name"] == "thread_name"}
    assert sorted(names.values()) == ["left", "left -> right", "right", "right -> left"]
    rows = [(names[event["pid"], event["tid"]], event["name"], event["ts"], event["dur"]) for event in kinds["X"]]
    assert rows == [("left", "a", 0, 2e6), ("right", "b", 3e6, 1e6), ("left", "c", 2e6, 3e6), ("left -> right", "a", 2e6, 1e6)]
    flow = [(names[kinds[ph][0]["pid"], kinds[ph][0]["tid"]], kinds[ph][0]["ts"]) for ph in "stf"]
    assert flow == [("left", 2e6), ("left -> right", 2e6), ("right", 3e6)]
    counters = {name: [(e["ts"], *e["args"].values()) for e in kinds["C"] if e["name"] == name] for name in {e["name"] for e in kinds["C"]}}
    assert counters == {"memory left": [(0, 5), (2e6, 10), (3e6, 5)], "memory right": [(2e6, 5), (3e6, 10), (4e6, 5)],
                        "ready left": [(0, 1), (2e6, 0)], "ready right": [(3e6, 0)]}
    profile = memory_profiles(*run)[0]
    assert (profile.time_s.tolist(), profile.used_bytes.tolist()) == ([0, 2, 3], [5, 10, 5])


def test_log_kind_and_measured_costs_are_kept(run, tmp_path):
    graph, costs, assignment, trace = run
    measured = dataclasses.replace(costs, exec_s=costs.exec_s * 1.1, explicit_transfer_s=np.array([np.nan]))
    log = dataclasses.replace(trace, device_kind="emulated", dispatch="levels")
    wall = dataclasses.replace(log, log=log, start_s=log.start_s + 0.125)
    write_trace(tmp_path / "t.json", graph, measured, assignment, wall)
    file = read_trace(tmp_path / "t.json")
    assert same(file.trace, wall)
    assert file.costs.exec_s.tobytes() == measured.exec_s.tobytes()
    assert np.isnan(file.costs.explicit_transfer_s).tolist() == [True]
    assert file.assignment.method == "by hand"


def metadata(**fields):
    return lambda record: record["metadata"].update(fields)


def first_span(**fields):
    return lambda record: next(event for event in record["traceEvents"] if event["ph"] == "X")["args"].update(fields)


@pytest.mark.parametrize(("mistake", "error", "words"), [
    (metadata(schema="doppler-trace/2"), TraceError, "metadata.schema: expected doppler-trace/1, got 'doppler-trace/2'"),
    (lambda record: record.pop("metadata"), TraceError, "metadata.schema: expected doppler-trace/1, got None; write it with"),
    (lambda record: record.pop("traceEvents"), TraceError, "got KeyError('traceEvents') while reading it; write it again"),
    (lambda record: record.update(traceEvents=[3]), TraceError, "expected a complete doppler-trace/1 file"),
    (lambda record: record["metadata"].pop("costs"), TraceError, "got KeyError('costs')"),
    (metadata(graph=None), TraceError, "expected a complete doppler-trace/1 file"),
    (metadata(costs={"exec_s": [[1, 1]], "transfer_s": [1]}), TraceError, "costs of shape (1, 2), expected finite ones of (3, 2)"),
    (metadata(costs={"exec_s": [[1, None]] * 3, "transfer_s": [1]}), TraceError, "costs of shape (3, 2), expected finite ones"),
    (metadata(costs={"exec_s": [[1, -1]] * 3, "transfer_s": [1]}), TraceError, "costs of shape (3, 2), expected finite ones"),
    (metadata(log={"vertices": []}), TraceError, "got KeyError('transfers')"),
    (metadata(assignment={"device": [0, 0]}), AssignmentError, "device: expected 3 entries"),
    (first_span(vertex=3), TraceError, "vertex outside 0 to 2"),
    (first_span(vertex=1.5), TraceError, "vertex outside 0 to 2"),
    (first_span(device=-1), TraceError, "device outside 0 to 1"),
    (first_span(start_s="soon"), TraceError, "could not convert string to float"),
    (first_span(end_s=None), TraceError, "expected a complete doppler-trace/1 file"),
])
def test_files_that_are_no_trace(run, tmp_path, mistake, error, words):
    write_trace(tmp_path / "t.json", *run)
    record = json.loads((tmp_path / "t.json").read_text())
    mistake(record)
    (tmp_path / "t.json").write_text(json.dumps(record))
    message = refusal(error, read_trace, tmp_path / "t.json")
    assert_says(message, f"{tmp_path / 't.json'}: ", words)


def test_a_doctored_file_is_read_and_convicted(run, tmp_path):
    write_trace(tmp_path / "t.json", *run)
    record = json.loads((tmp_path / "t.json").read_text())
    first_span(end_s=2.5)(record)
    (tmp_path / "t.json").write_text(json.dumps(record))
    file = read_trace(tmp_path / "t.json")
    report = validate_trace(file.graph, file.costs, file.assignment, file.trace)
    assert [violation.kind for violation in report.violations] == ["transfer before producer", "double booking of a device"]
