"""Whatever stands in a file: it is read, and then works, or it is refused in one line by an error of ours."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from doppler_tf.errors import DopplerError
from doppler_tf.formats.assignment_json import assignment_to_json, read_assignment
from doppler_tf.formats.chrome_trace import read_trace, write_trace
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import Topology
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace
from tests.formats.test_graph_json import GOOD as GRAPH

TOPOLOGY = {
    "schema": "doppler-topology/1", "name": "two", "link_slots": 1,
    "devices": [{"name": "CPU:0", "flops_per_s": 1e9, "mem_bytes_per_s": 1e9, "launch_s": 0, "memory_bytes": 100, "slots": 1},
                {"name": "CPU:1", "flops_per_s": 1e9, "memory_bytes": None}],
    "links": {"bandwidth_bytes_per_s": [[1, 2], [3, None]], "latency_s": 0.25},
}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.sampled_from([0.5, -0.0, 1e308, 5e-324, math.inf, 2**31, 2**63, 10**400]),
    st.sampled_from(["", "x", "y", "g", "h", "CPU:0", "line\nbreak", "\ud800", "NaN", "1e5", "shard"]))
KEYS = st.sampled_from(["id", "vertex", "exec_s", "name", "op", "operands", "slice", "x"])
JSON = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=2)), max_leaves=6)


def places(value, path=()) -> list[tuple]:
    """The paths of all values in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in inside for found in places(inner, (*path, key)))]


@st.composite
def mutated(draw, document):
    """A few values replaced, dropped, doubled or moved to another place."""
    document = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(places(document)[1:]))
        parent = document
        for step in above:
            parent = parent[step]
        kind = draw(st.sampled_from(["replace", "replace", "drop", "double", "move"]))
        if kind == "drop" and parent is not document:
            del parent[key]
        elif kind == "double" and isinstance(parent, list) and parent is not document:
            parent.append(copy.deepcopy(parent[key]))
        elif kind == "move":
            *elsewhere, last = draw(st.sampled_from(places(document)[1:]))
            value = document
            for step in (*elsewhere, last):
                value = value[step]
            parent[key] = copy.deepcopy(value)
        else:
            parent[key] = draw(JSON)
    return document[0]


def write(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_text(json.dumps(value).replace("Infinity", "1e999"))
    return path


def accepted(read):
    """What `read` returns, None where it refuses as it should; any other error is a failure."""
    message, value = "", None
    try:
        value = read()
    except DopplerError as error:
        message = f"{type(error).__name__}: {error}"
    assert len(message.splitlines()) <= 1
    event(message.partition(":")[0] or "accepted")
    return value


@given(mutated(GRAPH))
def test_graphs(tmp_path_factory, document):
    path = write(tmp_path_factory, document)
    topology = Topology.from_json(TOPOLOGY)
    read = accepted(lambda: (graph := read_graph(path), build_costs(graph, topology, str(path))))
    if read is None:
        return
    graph, costs = read
    if accepted(lambda: write_graph(path, graph) or True):
        assert read_graph(path).graph_hash == graph.graph_hash
    placement = accepted(lambda: place(graph, costs, samples=2))
    if placement is not None:
        assert lower_bounds(graph, costs).best_s * (1 - 1e-12) <= placement.makespan_s < math.inf
        trace = simulate(graph, costs, placement.assignment)
        assert validate_trace(graph, costs, placement.assignment, trace).work_conserving


@given(mutated(TOPOLOGY))
def test_topologies(tmp_path_factory, document):
    path = write(tmp_path_factory, document)
    topology = accepted(lambda: read_topology(path))
    if topology is None:
        return
    path = write(tmp_path_factory, topology.to_json())
    assert read_topology(path).topology_hash == topology.topology_hash
    graph = read_graph(write(tmp_path_factory, GRAPH))
    costs = accepted(lambda: build_costs(graph, topology))
    placement = None if costs is None else accepted(lambda: place(graph, costs, samples=2))
    if placement is not None:
        assert lower_bounds(graph, costs).best_s * (1 - 1e-12) <= placement.makespan_s < math.inf


@given(st.data())
def test_assignments_and_traces(tmp_path_factory, data):
    topology = Topology.from_json(TOPOLOGY)
    graph = read_graph(write(tmp_path_factory, GRAPH))
    costs = build_costs(graph, topology)
    good = Assignment(np.array([-1, 0, 0, 1], np.int32), np.array([1, 2, 3], np.int32), "by hand")
    path = write(tmp_path_factory, data.draw(mutated(assignment_to_json(graph, costs, good))))
    assignment = accepted(lambda: read_assignment(path, graph, costs))
    if assignment is not None:
        trace = accepted(lambda: simulate(graph, costs, assignment, "fifo" if assignment.order is None else "order"))
        assert validate_trace(graph, costs, assignment, trace).work_conserving
    write_trace(path, graph, costs, good, simulate(graph, costs, good))
    path = write(tmp_path_factory, data.draw(mutated(json.loads(path.read_text()))))
    file = accepted(lambda: read_trace(path))
    if file is not None:
        report = validate_trace(file.graph, file.costs, file.assignment, file.trace)
        assert report.work_conserving == (report.violations == () and report.idle == ())
