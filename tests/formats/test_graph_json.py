"""`doppler-graph/1`: what comes back unchanged, and what each mistake in a file is told."""

from __future__ import annotations

import copy
import dataclasses
import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from doppler_tf.errors import CostError, FormatError, GraphError
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import Operand
from doppler_tf.graph.topology import cpu, ideal
from tests.messages import assert_says, refusal
from tests.strategies import cases

GOOD = {
    "directed": True, "multigraph": False, "graph": {"schema": "doppler-graph/1", "name": "good", "workload": {"seed": 3}},
    "nodes": [
        {"id": "x", "input": True, "output_bytes": 8},
        {"id": 1, "name": "first", "kind": "matmul", "exec_s": 0.1, "output_bytes": 16, "meta_op": "mm", "role": "shard", "colocate": "g",
         "kernel": {"op": "slice", "operands": [{"vertex": "x", "slice": [[0, 2], [1, 4]]}, {"vertex": "x"}], "params": {"axis": 1}}},
        {"id": 2, "exec_s": [1, 2], "pin": 0, "colocate": "g"},
        {"id": "y", "flops": 1e9, "output_bytes": 3, "pin": "CPU:1"},
    ],
    "edges": [{"source": "x", "target": 1}, {"source": 1, "target": 2, "transfer_s": 0.5}, {"source": 2, "target": "y", "bytes": 7}],
}


@pytest.fixture
def good():
    return copy.deepcopy(GOOD)


@pytest.fixture
def write(tmp_path):
    """Writes a value (or a text as it is) and returns the path."""

    def write(value):
        path = tmp_path / "g.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def load(path, topology=None):
    graph = read_graph(path)
    return graph, build_costs(graph, topology or cpu(2), str(path))


def same(first, second) -> bool:
    """Equality of two graphs, field by field."""
    def plain(value):
        return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value

    return all(plain(getattr(first, f.name)) == plain(getattr(second, f.name)) for f in dataclasses.fields(first))


def test_every_field_is_read(good, write):
    graph, costs = load(write(good))
    assert (graph.name, graph.ids, graph.names) == ("good", ("x", 1, 2, "y"), ("x", "first", "2", "y"))
    assert graph.kinds == ("input", "matmul", "op", "op")
    assert graph.is_input.tolist() == [True, False, False, False]
    assert graph.exec_s[1:3].tolist() == [[0.1, 0.1], [1, 2]]
    assert graph.kernel[1].operands == (Operand(0, ((0, 2), (1, 4))), Operand(0))
    assert (graph.meta_op[1], graph.role[1], graph.pin, graph.groups) == ("mm", "shard", (None, None, 0, "CPU:1"), ("g",))
    assert graph.attributes == {"workload": {"seed": 3}}
    assert costs.allowed.tolist() == [[True, True], [True, False], [True, False], [False, True]]
    assert costs.output_bytes.tolist() == [8, 16, 7, 3]
    assert costs.exec_s[3].tolist() == [20e-6 + 1e9 / 50e9] * 2


def test_everything_survives_a_round_trip(good, write, tmp_path):
    graph = read_graph(write(good))
    write_graph(tmp_path / "again.json", graph)
    again = read_graph(tmp_path / "again.json")
    assert same(graph, again)
    assert again.graph_hash == graph.graph_hash


@given(cases(constrained=True))
def test_random_graphs_survive_a_round_trip(tmp_path_factory, case):
    path = tmp_path_factory.getbasetemp() / "random.json"
    write_graph(path, case.graph)
    assert same(read_graph(path), case.graph)
    assert read_graph(path).graph_hash == case.graph.graph_hash


@pytest.mark.parametrize("number", [0.1, 1 / 3, 5e-324, 1.7e307, 2**53 - 1, 2**53 + 2, 1e22, 123456789.123456789, -0.0])
def test_numbers_are_exact(good, write, tmp_path, number):
    good["nodes"][1]["exec_s"] = number
    write_graph(tmp_path / "again.json", read_graph(write(good)))
    again = read_graph(tmp_path / "again.json").exec_s[1, 0]
    assert again == number
    assert not np.signbit(again)


def test_equal_lists_stay_lists(good, write, tmp_path):
    """[2, 2] says that the graph is for two devices; 2 does not."""
    good["nodes"][2]["exec_s"] = [2, 2]
    graph = read_graph(write(good))
    write_graph(tmp_path / "again.json", graph)
    assert read_graph(tmp_path / "again.json").graph_hash == graph.graph_hash
    assert_says(refusal(CostError, load, tmp_path / "again.json", cpu(3)), "got a list of 2")


def test_the_hash_is_of_what_decides_costs_and_legality(good, write):
    base = read_graph(write(good)).graph_hash
    good["nodes"][1]["name"] = "another name"
    assert read_graph(write(good)).graph_hash == base
    for change in ({"exec_s": 0.2}, {"output_bytes": 17}, {"colocate": "h"}, {"pin": 0}, {"flops": 1}):
        changed = copy.deepcopy(good)
        changed["nodes"][1].update(change)
        assert read_graph(write(changed)).graph_hash != base
    good["edges"][2]["bytes"] = 8
    assert read_graph(write(good)).graph_hash != base


def test_networkx_in_memory_equals_the_file(good, write):
    source = nx.node_link_graph(copy.deepcopy(good), edges="edges")
    assert same(read_graph(source), read_graph(write(good)))


def test_an_edge_names_the_output_that_it_carries(good, write, tmp_path):
    good["nodes"][1]["output_bytes"] = [10, 20, 30]
    good["edges"] += [{"source": 1, "target": 2, "output": 2}, {"source": 1, "target": "y", "output": 1, "bytes": 5}]
    graph, costs = load(write(good))
    at = graph.vertex_of
    first = graph.tensor_ptr[at[1]]
    assert graph.tensor_bytes[first:first + 3].tolist() == [10, 20, 30]
    assert graph.output_bytes[at[1]] == 60
    assert graph.edge_output.tolist() == [0, 0, 0, 2, 1]
    assert (graph.edge_tensor - first)[[1, 3, 4]].tolist() == [0, 2, 1]
    assert costs.edge_bytes[[3, 4]].tolist() == [30, 5]
    write_graph(tmp_path / "again.json", graph)
    assert same(read_graph(tmp_path / "again.json"), graph)
    record = json.loads((tmp_path / "again.json").read_text())
    assert record["multigraph"]
    in_memory = read_graph(nx.node_link_graph(record, edges="edges"))  # networkx has an order of edges of its own
    assert sorted(zip(in_memory.edge_tensor, in_memory.targets, strict=True)) == sorted(zip(graph.edge_tensor, graph.targets, strict=True))
    assert in_memory.tensor_bytes.tobytes() == graph.tensor_bytes.tobytes()


def test_links_is_an_older_name_of_edges(good, write):
    graph = read_graph(write(good))
    good["links"] = good.pop("edges")
    assert same(read_graph(write(good)), graph)


def node(v: int, **fields):
    """A mistake: these fields of node v; a field of value `...` is dropped."""
    def change(record):
        record["nodes"][v].update(fields)
        for key in [key for key, value in fields.items() if value is ...]:
            del record["nodes"][v][key]
    return change


def edge(e: int, **fields):
    return lambda record: record["edges"][e].update(fields)


def more_edges(*pairs):
    return lambda record: record["edges"].extend({"source": u, "target": v, "transfer_s": 1} for u, v in pairs)


def kernel(**fields):
    return lambda record: record["nodes"][1]["kernel"].update(fields)


def operand(**fields):
    return lambda record: record["nodes"][1]["kernel"]["operands"][0].update(fields)


def top(**fields):
    return lambda record: record.update(fields)


SLICE = "kernel.operands.slice: expected null or a list of [start, stop], one an axis, got "
MISTAKES = [
    (top(nodes=None), FormatError, "nodes: expected a list, got None; write a doppler-graph/1 file"),
    (top(nodes={"x": 1}), FormatError, "nodes: expected a list"),
    (top(edges=3), FormatError, "edges: expected a list, got 3"),
    (top(graph=[1]), FormatError, "graph: expected an object, got [1]"),
    (top(graph={"schema": "doppler-graph/9"}), FormatError, "graph.schema: expected doppler-graph/1, got 'doppler-graph/9'"),
    (top(graph={"schema": "doppler-graph/9"}, nodes=None), FormatError, "graph.schema: expected doppler-graph/1, got 'doppler-graph/9'"),
    (top(schema="doppler-topology/1", nodes=None, graph={}), FormatError,
     "graph.schema: expected doppler-graph/1, got 'doppler-topology/1'"),
    (top(graph={"schema": [[]]}), FormatError, "graph.schema: expected doppler-graph/1, got [[]]"),
    (top(graph={"name": ["n"]}), GraphError, "graph.name: expected a string, got ['n']"),
    (top(directed=False), FormatError, "directed: expected true, got False; edges go from producer to consumer"),
    (top(nodes=[], edges=[]), GraphError, "the graph is empty: expected at least one vertex that is not an input, got 0 vertices"),
    (top(nodes=[{"id": 0, "input": True}], edges=[]), GraphError,
     "the graph is empty: expected at least one vertex that is not an input, got 1 vertices"),
    (top(nodes=[{"id": 0, "exec_s": 1}, None], edges=[]), GraphError, "node at position 1: id: expected an object with an 'id', got None"),
    (top(nodes=[{"exec_s": 1}], edges=[]), GraphError, "node at position 0: id: expected an object with an 'id', got {'exec_s': 1}"),
    (node(1, id="y"), GraphError, "vertex 'y': id: expected unique ids, got it twice (positions 1 and 3); rename one"),
    *[(node(1, id=wrong), GraphError, f"node at position 1: id: expected an integer or a string, got {wrong!r}")
      for wrong in (True, None, 1.0, [1], {"a": 1})],
    *[(node(1, **{field: wrong}), GraphError, f"vertex 1: {field}: expected a finite number >= 0, got {wrong!r}")
      for field in ("exec_s", "flops", "output_bytes") for wrong in (-1, True, "1", -0.5, {"s": 1})],
    (node(1, flops=10**400), GraphError, "vertex 1: flops: expected a finite number >= 0, got 1000000000"),
    (node(1, flops=[1, 2]), GraphError, "vertex 1: flops: expected a finite number >= 0, got [1, 2]"),
    (node(2, exec_s=[1, -2]), GraphError, "vertex 2: exec_s[1]: expected a finite number >= 0, got -2"),
    (node(2, exec_s=[None, None]), GraphError, "vertex 2: exec_s: expected a number for at least one device, as null means that a device "),
    (node(2, exec_s=[1, "no"]), GraphError, "vertex 2: exec_s[1]: expected a finite number >= 0, got 'no'"),
    (lambda r: (node(2, exec_s=[1, None])(r), node(2, pin=1)(r)), CostError,
     "vertex 2: pin: expected a device that can run it (CPU:0), got 1, where its exec_s is null; mend one of them"),
    (lambda r: (node(1, pin=...)(r), node(2, pin=0)(r), node(1, exec_s=[None, 1])(r)), CostError,
     "colocate group 'g': exec_s: expected a device that all its vertices may use, got 1: [1]; 2: [0]; mend the group"),
    (node(2, exec_s=[]), GraphError, "vertex 2: exec_s: expected a list of numbers, one for each device, got []"),
    (node(1, exec_s=[1, 2, 3]), GraphError, "vertex 2: exec_s: expected a list of 3 numbers, as other vertices have, got ["),
    (node(2, exec_s=[1, 2, 3]), CostError, "vertex 1: exec_s: expected 2 numbers (one a device of cpu:2) or one number, got a list of 3"),
    (node(1, exec_s=...), CostError, "vertex 1: exec_s: expected 'exec_s' or 'flops', got neither; give one of them"),
    (node(1, input=1), GraphError, "vertex 1: input: expected true or false, got 1"),
    (node(1, input="yes"), GraphError, "vertex 1: input: expected true or false, got 'yes'"),
    (node(3, input=True), GraphError, "vertex 'y': input: expected an input vertex to have no predecessors, got an edge from 2"),
    *[(node(1, **{field: 5}), GraphError, f"vertex 1: {field}: expected a string, got 5")
      for field in ("name", "kind", "meta_op", "colocate")],
    (node(1, colocate=["g"]), GraphError, "vertex 1: colocate: expected a string, got ['g']"),
    (node(1, role="boss"), GraphError, "vertex 1: role: expected shard or reduce, got 'boss'"),
    *[(node(2, pin=wrong), GraphError, f"vertex 2: pin: expected a device index >= 0 or a device name, got {wrong!r}")
      for wrong in (-1, True, 0.0, [0])],
    (node(2, pin=2), CostError, "vertex 2: pin: expected a device of cpu:2 (0 to 1 or one of CPU:0, CPU:1), got 2"),
    (node(2, pin="gpu"), CostError, "vertex 2: pin: expected a device of cpu:2 (0 to 1 or one of CPU:0, CPU:1), got 'gpu'"),
    (node(1, pin=1), CostError, "colocate group 'g': pin: expected pins of its vertices to agree, got different devices for 1 (1), 2 (0)"),
    (node(1, kernel=[]), GraphError, "vertex 1: kernel: expected an object with 'op', 'operands' and 'params', got []"),
    (kernel(op=7), GraphError, "vertex 1: kernel: expected an object with 'op'"),
    (kernel(operands=None), GraphError, "vertex 1: kernel.operands: expected a list, got None"),
    (kernel(operands={"vertex": "x"}), GraphError, "vertex 1: kernel.operands: expected a list, got {'vertex': 'x'}"),
    (kernel(operands=["x"]), GraphError, "vertex 1: kernel.operands: expected objects whose 'vertex' is a vertex id, got 'x'"),
    *[(operand(vertex=wrong), GraphError, "vertex 1: kernel.operands: expected objects whose 'vertex' is a vertex id, got {'vertex'")
      for wrong in ("z", None, ["x"], {"x": 1}, True, 1.0)],
    *[(operand(slice=wrong), GraphError, f"vertex 1: {SLICE}{wrong!r}")
      for wrong in (3, "ab", [3], [[0]], [[0, 1, 2]], [[2, 1]], [[-1, 1]], [[0, 1.5]], [["0", "1"]], [None], {"0": [0, 1]},
                    [[False, True]])],
    (kernel(params=[1]), GraphError, "vertex 1: kernel.params: expected an object, got [1]"),
    *[(edge(1, source=wrong), GraphError,
       f"edge {wrong!r} -> 2: source: expected the id of a vertex in 'nodes', got {wrong!r}; add the vertex or mend the edge")
      for wrong in ("ghost", 9, None, [1], {"id": 1}, True, 1.0)],
    (edge(1, target="ghost"), GraphError, "edge 1 -> 'ghost': target: expected the id of a vertex in 'nodes', got 'ghost'"),
    (top(edges=[3]), GraphError, "edge at position 0: edge: expected an object, got 3"),
    *[(edge(1, **{field: wrong}), GraphError, f"edge 1 -> 2: {field}: expected a finite number >= 0, got {wrong!r}")
      for field in ("bytes", "transfer_s") for wrong in (-1, False, "1", [])],
    (more_edges((1, 2)), GraphError,
     "edge 1 -> 2: source, target: expected one edge for a pair of vertices and an output, got 2; merge them"),
    *[(edge(1, output=wrong), GraphError, f"edge 1 -> 2: output: expected an integer from 0 to 65535, got {wrong!r}")
      for wrong in (-1, 1 << 16, 0.0, True, "0", None)],
    *[(operand(output=wrong), GraphError, f"vertex 1: kernel.operands.output: expected an integer from 0 to 65535, got {wrong!r}")
      for wrong in (-1, "0", True)],
    (operand(output=1), GraphError,
     "vertex 1: kernel.operands: expected predecessors of the vertex, got 'x' (output 1); add the edge or mend"),
    (lambda r: (node(1, output_bytes=[4])(r), edge(1, output=1)(r)), GraphError,
     "vertex 1: output_bytes: expected a number, or a list of at least 2 (one an output), got [4]"),
    (edge(1, output=3), GraphError, "vertex 1: output_bytes: expected a list of 4 numbers, one an output, as output 3 is taken and output "
     "0 is not, got 16; give the list, or mend 'output' in the edge"),
    (lambda r: (node(1, output_bytes=...)(r), r["edges"].append({"source": 1, "target": "y", "output": 2, "bytes": 1})), GraphError,
     "vertex 1: output_bytes: expected a list of 3 numbers, one an output, as output 2 is taken and output 1 is not, got None"),
    (node(1, output_bytes=[]), GraphError, "vertex 1: output_bytes: expected a number, or a list of at least 1 (one an output), got []"),
    (node(1, output_bytes=[4, -1]), GraphError, "vertex 1: output_bytes[1]: expected a finite number >= 0, got -1"),
    (node(1, output_bytes=[4, None]), GraphError, "vertex 1: output_bytes[1]: expected a finite number >= 0, got None"),
    (more_edges((1, 1)), GraphError, "edges: expected no cycle, got 1 -> 1; remove one of these edges"),
    (more_edges(("y", 2)), GraphError, "edges: expected no cycle, got 2 -> 'y' -> 2; remove one of these edges"),
    *[(lambda r, wrong=wrong: r["graph"].update(results=wrong), GraphError,
       f"graph.results: expected a list of objects with a `vertex` that is no input and one of its outputs, `output` (0), got {shown}")
      for wrong, shown in (
           ("y", "'y'"), ([1], "1"), ([{"vertex": "z"}], "{'vertex': 'z'}"), ([{"vertex": True}], "{'vertex': True}"),
           ([{"vertex": 1}, {"vertex": "x"}], "{'vertex': 'x'}"), ([{"vertex": 1, "output": 1}], "{'vertex': 1, 'output': 1}"))],
    (lambda r: (node(1, output_bytes=...)(r), r["edges"].append({"source": 1, "target": "y"})), CostError,
     "edge 1 -> 'y': bytes: expected 'bytes' or 'transfer_s' (or 'output_bytes' of the source), got none"),
]


@pytest.mark.parametrize(("mistake", "error", "words"), MISTAKES, ids=[words[:60] for *_, words in MISTAKES])
def test_mistakes_name_file_vertex_field_and_what_came(good, write, mistake, error, words):
    mistake(good)
    path = write(good)
    message = refusal(error, load, path)
    assert_says(message, words)
    assert message.startswith(f"{path}: ")


@pytest.mark.parametrize(("text", "words"), [
    ('{"nodes": [\n  {"id": 1,}\n]}', "malformed JSON at line 2, column"),
    ("", "malformed JSON at line 1, column 1"),
    ('{"nodes": [{"id": 1, "exec_s": NaN}], "edges": []}', "expected finite numbers, got NaN"),
    ('{"nodes": [{"id": 1, "exec_s": -Infinity}], "edges": []}', "expected finite numbers, got -Infinity"),
    ("[1, 2]", "document: expected a JSON object (doppler-graph/1), got [1, 2]"),
    ("3", "document: expected a JSON object"),
    ("[" * 100_000, "nested too deeply"),
    ('{"nodes": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit"),
])
def test_files_that_are_no_graph(write, text, words):
    path = write(text)
    assert_says(refusal(FormatError, read_graph, path), str(path), words)


def test_numbers_beyond_float64(good, write):
    path = write(json.dumps(good).replace('"exec_s": 0.1', '"exec_s": 1e999'))
    assert_says(refusal(GraphError, load, path), "vertex 1: exec_s: expected a finite number >= 0, got inf")
    good["nodes"][2]["exec_s"] = [1.7e308, 1.7e308]
    assert_says(refusal(CostError, load, write(good)), "vertex 2: exec_s, transfer_s: expected figures whose sum over the graph is finite")


@pytest.mark.parametrize("depth", [90, 400, 900])
@pytest.mark.parametrize("field", ["id", "exec_s", "kernel", "name", "pin"])
def test_nesting_breaks_no_message(good, write, depth, field):
    text = json.dumps({**good, "nodes": [{"id": 1, "exec_s": 1, field: "DEEP"}], "edges": []})
    path = write(text.replace('"DEEP"', "[" * depth + "]" * depth))
    message = refusal(GraphError, read_graph, path)
    assert len(message) < 400


def test_a_line_break_in_a_name_breaks_no_message(good, write):
    good["graph"]["name"] = "two\nlines"
    del good["nodes"][1]["exec_s"]
    graph = read_graph(write(good))
    assert_says(refusal(CostError, build_costs, graph, ideal(2)), "two lines: vertex 1: exec_s")


def test_only_flops_on_a_device_without_speed(good, write):
    good["nodes"][3]["pin"] = None
    message = refusal(CostError, load, write(good), ideal(2))
    assert_says(message, "vertex 'y': exec_s: expected an explicit cost, as device 'device:0' of ideal:2 has no flops_per_s")


@pytest.mark.parametrize("make", [nx.Graph, nx.MultiGraph])
def test_only_directed_graphs(make):
    assert_says(refusal(GraphError, read_graph, make([(1, 2)])), "graph: expected a networkx.DiGraph", make.__name__)


def test_missing_and_unreadable_files(tmp_path):
    assert_says(refusal(FormatError, read_graph, tmp_path / "none.json"), "none.json: no such file")
    assert_says(refusal(FormatError, read_graph, tmp_path), "cannot be read: Is a directory")
    assert_says(refusal(FormatError, read_graph, "a\0b"), "cannot be read", "null")
    (tmp_path / "latin.json").write_bytes(b'{"nodes": "\xe9"}')
    assert_says(refusal(FormatError, read_graph, tmp_path / "latin.json"), "not UTF-8 text")


def test_what_json_cannot_hold_is_not_written(tmp_path):
    source = nx.DiGraph(note=object())
    source.add_node(1, exec_s=1)
    assert_says(refusal(FormatError, write_graph, tmp_path / "g.json", read_graph(source)), "g.json: cannot be written as JSON", "object")
    assert list(tmp_path.iterdir()) == []
