"""Foreign files: their best makespans, worked out by hand; round trips; what each mistake is told."""

from __future__ import annotations

import copy
import itertools
import json

import numpy as np
import pytest

from doppler_tf.errors import ConfigError, FormatError, GraphError, TopologyError
from doppler_tf.formats.foreign.conversion import convert, write_converted
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.schedule.simulator import simulate
from tests.formats.foreign.files import DAGGEN, DOT, OLDER_SAGA, PROTOTYPE, SAGA, STG, STG_WITH_COSTS, WFFORMAT, older_wfformat
from tests.messages import assert_says, refusal


@pytest.fixture
def put(tmp_path):
    """Writes a document or a text and returns the path."""

    def put(value, name="file.json"):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return put


def best_s(graph, topology) -> float:
    """The least makespan of all assignments."""
    costs = build_costs(graph, topology)
    return min(simulate(graph, costs, devices).makespan_s
               for devices in itertools.product(range(costs.num_devices), repeat=graph.num_vertices))


@pytest.mark.parametrize("document", [SAGA, OLDER_SAGA], ids=["2.x", "0.x"])
def test_saga(put, document):
    graph, topology = convert(put(document))
    costs = build_costs(graph, topology)
    assert graph.ids == ("a", "b", "c", "d")
    assert costs.exec_s.tolist() == [[2, 1], [4, 2], [6, 3], [2, 1]]
    assert topology.link_slots is None
    # a on n1 until 2; what it sends to b and to c takes 2 s and 4 s, at once; n2 runs b from 4, c from 6 and d from 9.
    assert simulate(graph, costs, [0, 1, 1, 1]).makespan_s == 10
    assert best_s(graph, topology) == 7  # all on n2, twice as fast


@pytest.mark.parametrize("document", [WFFORMAT, older_wfformat("tasks", "runtimeInSeconds", "sizeInBytes"),
                                      older_wfformat("tasks", "runtime", "size"), older_wfformat("jobs", "runtime", "size")],
                         ids=["1.5", "1.4", "1.3", "jobs"])
def test_wfformat(put, document):
    graph, topology = convert(put(document))
    assert (graph.name, graph.names, graph.num_edges) == ("diamond", ("split", "left", "right", "join"), 4)
    assert (topology.device_names, [device.slots for device in topology.devices]) == (("one", "two"), [1, 1])
    assert graph.output_bytes.tolist()[:3] == [125e6, 62.5e6, 62.5e6]
    # One task of the second level gets f after a second and ends at 31, the other's file is there at 30.5: join ends at 36.
    assert best_s(graph, topology) == 36


def test_wfformat_has_a_tensor_for_each_file(put):
    document = copy.deepcopy(WFFORMAT)
    split, left, right, _ = document["workflow"]["specification"]["tasks"]
    left["inputFiles"].append("log")
    right["inputFiles"] = []  # waits for split alone
    graph, _ = convert(put(document))
    assert graph.tensor_bytes[graph.tensor_ptr[0]:graph.tensor_ptr[1]].tolist() == [125e6, 5, 0]
    assert sorted(zip(graph.targets.tolist(), graph.edge_output.tolist(), strict=True))[:3] == [(1, 0), (1, 1), (2, 2)]
    del split["parents"], split["children"], left["parents"], right["parents"]  # files alone say it, too
    right["inputFiles"] = ["f"]
    assert convert(put(document)).graph.num_edges == 5


@pytest.mark.parametrize(("text", "seconds"), [(STG, 7), (STG_WITH_COSTS, 8), (PROTOTYPE, 7)], ids=["plain", "costs", "prototype"])
def test_stg(put, text, seconds):
    """With costs: 1 until 2, 2 until 5, 3 on the other device from 3 to 6, there 4, too."""
    graph, topology = convert(put(text, "rand.stg"))
    assert topology is None
    assert graph.name == "rand"
    assert best_s(graph, ideal(2)) == seconds
    assert convert(put(text, "no_suffix"), None).graph.graph_hash == graph.graph_hash


def test_dot(put):
    graph, topology = convert(put(DOT, "g.dot"))
    assert topology is None
    assert (graph.name, graph.ids, graph.exec_s[:, 0].tolist()) == ("four tasks", ("a 1", "b", "c", "d"), [2, 3, 3, 3])
    assert dict(zip(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True), graph.transfer_s.tolist(), strict=True)) == {
        (0, 1): 4, (0, 2): 1, (2, 3): 1, (1, 3): 1}
    assert graph.vertex_notes[1] == {"shape": "box", "pos": "1,2"}
    assert graph.edge_notes == {0: {"color": "red"}}
    assert best_s(graph, ideal(2)) == 9  # a until 2, b until 5, c on the other device from 3 to 6, there d, too


def test_dot_of_daggen_has_sizes(put):
    graph, _ = convert(put(DAGGEN, "g.gv"))
    machine = Topology.from_json({"devices": [{"name": "x", "flops_per_s": 1e9}, {"name": "y", "flops_per_s": 1e9}],
                                  "links": {"bandwidth_bytes_per_s": 1e6}})
    assert best_s(graph, machine) == 8


@pytest.mark.parametrize(("name", "document"), [("x.stg", STG), ("x.stg", STG_WITH_COSTS), ("x.dot", DOT), ("x.dot", DAGGEN)])
def test_texts_survive_a_round_trip(put, tmp_path, name, document):
    graph = convert(put(document, name)).graph
    write_converted(tmp_path / f"again_{name}", graph, "stg" if name == "x.stg" else "dot")
    again = convert(tmp_path / f"again_{name}").graph
    assert again.name == graph.name or name == "x.stg"
    for field in ("exec_s", "flops", "transfer_s", "sources", "targets", "edge_output"):
        np.testing.assert_array_equal(getattr(again, field), getattr(graph, field))
    topology = ideal(2) if np.isnan(graph.flops).all() else "cpu:2"
    np.testing.assert_array_equal(build_costs(again, topology).edge_bytes, build_costs(graph, topology).edge_bytes)


@pytest.mark.parametrize("key", ["a\\b", "a\\", 'a\\"b', "a\\nb", "a\nb", "digraph", "", "ü", "<b>"])
def test_any_text_is_an_id_in_dot(tmp_path, key):
    write_converted(tmp_path / "x.dot", graph_from_records([{"id": key, "exec_s": 1}], [], {"name": key}), "dot")
    assert convert(tmp_path / "x.dot").graph.ids == (key,)


def test_byte_order_marks_and_exponents_are_read(put):
    assert convert(put("\ufeff2\n0 1 0\n1 2 1 0\n", "x.stg")).graph.num_vertices == 2
    assert convert(put("\ufeff" + json.dumps(SAGA))).graph.num_edges == len(SAGA["task_graph"]["dependencies"])
    assert convert(put("digraph { a [weight=1e-05, cost=.1E-4] }", "x.dot")).graph.exec_s.tolist() == [[1e-05]]


def test_saga_survives_a_round_trip(put, tmp_path):
    graph, topology = convert(put(SAGA))
    write_converted(tmp_path / "again.json", graph, "saga", topology)
    again = json.loads((tmp_path / "again.json").read_text())
    for edge in again["network"]["edges"]:
        edge["speed"] = None if edge["source"] == edge["target"] == "n2" else edge["speed"]
    assert again["task_graph"] == SAGA["task_graph"]
    assert sorted(map(str, again["network"]["edges"])) == sorted(map(str, SAGA["network"]["edges"]))
    write_converted(tmp_path / "alone.json", graph, "saga")
    alone = convert(tmp_path / "alone.json")
    assert (alone.graph.graph_hash, alone.topology) == (graph.graph_hash, None)


def test_converted_graphs_are_graphs(put, tmp_path):
    for document, name in ((SAGA, "s.json"), (WFFORMAT, "w.json"), (STG_WITH_COSTS, "s.stg"), (DOT, "d.dot")):
        graph = convert(put(document, name)).graph
        write_graph(tmp_path / "g.json", graph)
        assert read_graph(tmp_path / "g.json").graph_hash == graph.graph_hash
        assert convert(tmp_path / "g.json").graph.graph_hash == graph.graph_hash


def changed(document, *path, to):
    document = copy.deepcopy(document)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return document


SPEC = ("workflow", "specification", "tasks")
MISTAKES = [
    (changed(SAGA, "task_graph", "tasks", 1, to={"name": "b"}), "x.json", FormatError,
     "task 1: cost: expected a finite number >= 0, got None"),
    (changed(SAGA, "task_graph", "tasks", 0, "cost", to={"type": "random_variable"}), "x.json", FormatError,
     "task 0: cost: expected a finite number >= 0, got {'type'"),
    (changed(SAGA, "task_graph", "dependencies", 0, "target", to="z"), "x.json", GraphError, "edge 'a' -> 'z': target: expected the id"),
    (changed(SAGA, "network", "nodes", 0, "speed", to=0), "x.json", TopologyError,
     "network: device 0: flops_per_s: expected a finite number > 0"),
    (changed(SAGA, "network", "edges", 0, "target", to="n9"), "x.json", FormatError,
     "network: edge 0: source, target: expected names of nodes"),
    (changed(SAGA, "task_graph", to=[]), "x.json", FormatError, "task_graph: expected an object, got []"),
    (changed(WFFORMAT, "workflow", "execution", to={}), "x.json", FormatError,
     "task 't1': runtimeInSeconds: expected a finite number >= 0, got None"),
    (changed(WFFORMAT, *SPEC, 1, "inputFiles", to=["q"]), "x.json", FormatError,
     "task 't2': file: expected files with a sizeInBytes, got 'q'"),
    (changed(WFFORMAT, *SPEC, 1, "parents", to=["t9"]), "x.json", FormatError, "parents, children: expected names of tasks, got 't9'"),
    (changed(WFFORMAT, *SPEC, 0, "parents", to=["t4"]), "x.json", GraphError, "edges: expected no cycle"),
    ("", "x.stg", FormatError, "file: expected the number of tasks in the first line, got 'nothing'"),
    ("3\n1 2 0\n2 x 0\n3 1 0\n", "x.stg", FormatError, "line 3: task 2: processing time: expected a number >= 0, got 'x'"),
    ("2\n1 2 0\n2 1 1\n", "x.stg", FormatError, "task 2: predecessor: expected a number, got 'the end of the file'"),
    ("9\n1 2 0\n2 1 1 1\n", "x.stg", FormatError, "tasks: expected 9, as the first line says, or two more, got 2"),
    ("digraph {\n a [weight=1] -> }", "x.dot", FormatError, "malformed DOT at line 2, column 15: expected a name, got '->'"),
    ("digraph { a [weight=1", "x.dot", FormatError, "malformed DOT at line 1, column 22: expected a name, got 'the end of the file'"),
    ("graph { a -- b }", "x.dot", FormatError, "graph: expected a digraph, whose edges go from producer to consumer, got 'graph'"),
    ("digraph { a -- b }", "x.dot", FormatError, "column 13: expected -> in a digraph, -- in a graph, got '--'"),
    ("digraph { 1a -> b }", "x.dot", FormatError, "column 11: expected a name, a number or a mark, got '1a -> b }'"),
    ("digraph { a [label=x] }", "x.dot", FormatError, "vertex 'a': weight: expected it (seconds) or size (operations), got None"),
    ("digraph { a [weight=1, cost=2] }", "x.dot", FormatError, "vertex 'a': cost: expected one of weight, cost, exec_s, got '2'; they say"),
    ("digraph { a [time=3] }", "x.dot", GraphError, "vertex 'a': time: expected the field exec_s (seconds), got '3'"),
    ("digraph { a [weight=\"3 ms\"] }", "x.dot", FormatError, "vertex 'a': weight: expected a number, got '3 ms'; give seconds"),
    ("graph [ directed 1 ]", "x.gml", FormatError, "format: expected JSON, .stg, .dot or .gv, got '.gml'; networkx reads"),
    ("digraph { a [wieght=1] }", "x.dot", FormatError, "vertex 'a': wieght: expected the attribute weight, got '1'; rename it"),
    ("digraph { a [weight=1] b [weight=1] a -> b [Weigth=4] }", "x.dot", FormatError,
     "edge 'a' -> 'b': Weigth: expected the attribute weight, got '4'; rename it"),
    ("digraph { a [weight=1] b [weight=1] a -> b [sizes=4] }", "x.dot", FormatError, "edge 'a' -> 'b': sizes: expected the attribute size"),
    ("digraph { a [weight=1, time=3] }", "x.dot", GraphError, "vertex 'a': time: expected the field exec_s (seconds), got '3'"),
    ("digraph { a [weight=1] a -> a }", "x.dot", GraphError, "expected no cycle, got 'a' -> 'a'"),
    ("{" * 100_000, "x.dot", FormatError, "malformed DOT at line 1, column 1: expected digraph, got '{'"),
    ("digraph" + "{" * 100_000, "x.dot", FormatError, "DOT nested too deeply"),
    ("{}", "x.json", FormatError,
     "format: expected SAGA's task_graph, WfFormat's workflow, STG or DOT, got {}; say which it is: --format NAME"),
]


@pytest.mark.parametrize(("document", "name", "error", "words"), MISTAKES, ids=[words[:60] for *_, words in MISTAKES])
def test_mistakes_are_told_with_their_place(put, document, name, error, words):
    path = put(document, name)
    assert_says(refusal(error, convert, path), str(path), words)


def test_what_a_format_cannot_say_is_refused(put, tmp_path):
    pinned = graph_from_records([{"id": 0, "exec_s": 1, "pin": 0}], [])
    by_device = graph_from_records([{"id": 0, "exec_s": [1, 2]}], [])
    flops = convert(put(SAGA)).graph
    timed = graph_from_records([{"id": 0, "exec_s": 3, "flops": 5}], [])
    alike = graph_from_records([{"id": 1, "flops": 3}, {"id": "1", "flops": 5}], [])
    unread = graph_from_records([{"id": "a", "exec_s": 1, "output_bytes": [4, 9]}, {"id": "b", "exec_s": 1}],
                                [{"source": "a", "target": "b"}])
    for graph, format, words in ((pinned, "saga", "without inputs, pins and groups"), (pinned, "stg", "without inputs, pins, groups"),
                                 (by_device, "dot", "exec_s: expected one number a vertex"),
                                 (flops, "stg", "exec_s: expected a number for every"),
                                 (by_device, "saga", "flops: expected a number for every vertex"),
                                 (timed, "saga", "exec_s: expected none, as SAGA computes times from flops and speeds, got 3.0"),
                                 (alike, "saga", "vertex '1': id: expected ids that differ as texts, got [1, '1']; rename one"),
                                 (alike, "dot", "vertex '1': id: expected ids that differ as texts, got [1, '1']; rename one"),
                                 (unread, "dot", "vertex 'a': output_bytes: expected an edge for each of several outputs, got 'none for")):
        assert_says(refusal(FormatError, write_converted, tmp_path / "out", graph, format), words)
    one_way = Topology.from_json({"devices": [{"name": "x", "flops_per_s": 1}, {"name": "y", "flops_per_s": 1}],
                                  "links": {"bandwidth_bytes_per_s": [[None, None], [4, None]]}})
    assert_says(refusal(FormatError, write_converted, tmp_path / "out", flops, "saga", one_way),
                "link 'x' to 'y': bandwidth_bytes_per_s: expected that of the other direction (4), got 0.0; SAGA's links have one speed")
    assert_says(refusal(ConfigError, convert, put(SAGA), "csv"), "format: expected one of doppler, saga, wfformat, stg, dot, got 'csv'")
