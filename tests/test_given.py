"""Graphs, topologies and assignments as callers give them: every public function takes them in every form, and refuses others in a line."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from doppler_tf import build_costs, estimated, place, read_graph, read_topology, simulate, validate_trace, write_graph
from doppler_tf.errors import AssignmentError, CostError, GraphError, TopologyError
from doppler_tf.formats.assignment_json import assignment_from_json
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.batches import repeat_graph
from tests.messages import assert_says, refusal


def two(first=(), second=(), edge=(), **attributes) -> nx.DiGraph:
    graph = nx.DiGraph(**attributes)
    graph.add_node("a", **{"exec_s": 1.0, "output_bytes": 8, **dict(first)})
    graph.add_node("b", **{"exec_s": 2.0, "output_bytes": 4, **dict(second)})
    graph.add_edge("a", "b", **dict(edge))
    return graph


@pytest.fixture
def forms(tmp_path):
    """One graph and one topology in all forms."""
    write_graph(tmp_path / "g.json", two(name="two"))
    write_topology(tmp_path / "t.json", cpu(2))
    graph = read_graph(two(name="two"))
    return ((graph, two(name="two"), tmp_path / "g.json", str(tmp_path / "g.json")),
            (cpu(2), "cpu:2", tmp_path / "t.json", build_costs(graph, cpu(2))))


def test_public_functions_take_graph_and_topology_in_every_form(forms):
    graphs, topologies = forms
    for graph in graphs:
        for topology in topologies:
            placed = place(graph, topology, "heft")
            assert placed.makespan_s == 3
            trace = simulate(graph, topology, placed.assignment)
            assert trace.makespan_s == 3
            assert validate_trace(graph, topology, placed.assignment, trace).work_conserving
            assert read_graph(graph).graph_hash == graphs[0].graph_hash
    for topology in topologies[:3]:
        assert build_costs(graphs[1], topology).exec_s.tolist() == [[1, 1], [2, 2]]
        assert read_topology(topology).topology_hash == cpu(2).topology_hash
        assert repeat_graph(graphs[1], topology, 2, 1).graph.num_vertices > 2
    assert simulate(graphs[1], "cpu:2", [0, 1]).makespan_s == pytest.approx(3 + 20e-6 + 8 / 5e9)


@pytest.mark.parametrize(("graph", "topology", "error", "words"), [
    (None, "cpu:2", GraphError, "graph: type: expected a DataflowGraph, a networkx.DiGraph or the path of a graph file, got None"),
    ({"nodes": []}, "cpu:2", GraphError, "got {'nodes': []}; dict is none of these"),
    (cpu(2), two(), GraphError, "Topology is none of these"),
    (two(), 2, TopologyError, "topology: type: expected a Topology, a name such as 'cpu:4' or a topology file's path, got 2; int is none"),
    (two(), "cpu2", TopologyError, "topology 'cpu2': expected p100x4, v100x8"),
    (two(), "local", TopologyError, "`local` is known to commands and to `distribute`"),
    (nx.DiGraph([(1.5, 2)]), "cpu:2", GraphError, "vertex 1.5: id: expected an integer or a string, got 1.5; use networkx.convert_node"),
])
def test_what_is_neither_is_refused(graph, topology, error, words):
    for function in (place, build_costs):
        assert_says(refusal(error, function, graph, topology), words)


def test_costs_and_assignments_of_another_graph_are_refused():
    larger = two()
    larger.add_node("c", exec_s=1)
    costs, assignment = build_costs(larger, "cpu:2"), place(larger, "cpu:2", "heft").assignment
    assert_says(refusal(CostError, place, two(), costs), "costs: expected those of this graph, of 2 vertices and 1 edges, got [3, 1]")
    assert_says(refusal(AssignmentError, simulate, two(), "cpu:2", assignment),
                "device: expected integers of shape [..., 2] (one a vertex)", "of shape [3]; is it made for another graph?")
    placed = place(two(), "cpu:2", "heft")
    assert_says(refusal(AssignmentError, simulate, two(), "cpu:2", placed), "expected an Assignment or a list of device indices",
                "what `place` returns has one as `.assignment`")


def test_numpy_and_tuples_are_taken_where_numbers_and_lists_are():
    plain = read_graph(two({"exec_s": [1.0, 2.0], "pin": 1, "output_bytes": [8, 4]}, {"exec_s": 2, "flops": 3}, {"bytes": 4, "output": 1}))
    forms = [np.array([1.0, 2.0]), (1.0, 2.0), [np.float32(1), np.int64(2)], np.array([1, 2], np.int16)]
    for exec_s in forms:
        graph = two({"exec_s": exec_s, "pin": np.int64(1), "output_bytes": np.array([8, 4])},
                    {"exec_s": np.float32(2), "flops": np.array(3), "input": np.bool_(False)},
                    {"bytes": np.uint8(4), "output": np.int32(1)})
        assert read_graph(graph).graph_hash == plain.graph_hash
    ids = nx.relabel_nodes(two(), {"a": np.int64(4), "b": np.int64(5)})
    assert read_graph(ids).ids == (4, 5)
    wrong = two({"exec_s": np.array([1.0, -2.0])})
    assert_says(refusal(GraphError, read_graph, wrong), "vertex 'a': exec_s[1]: expected a finite number >= 0, got -2.0")


def test_records_may_hold_numpy_too():
    nodes = [{"id": np.int64(0), "exec_s": np.array([1.0, 2.0])}, {"id": np.str_("b"), "exec_s": (np.float32(1), 2), "pin": np.int8(1)}]
    edges = [{"source": np.int64(0), "target": np.str_("b"), "bytes": np.float64(3), "output": np.int64(0)}]
    plain = graph_from_records([{"id": 0, "exec_s": [1, 2]}, {"id": "b", "exec_s": [1, 2], "pin": 1}],
                               [{"source": 0, "target": "b", "bytes": 3}])
    assert graph_from_records(nodes, edges).graph_hash == plain.graph_hash


def test_tuples_as_ids_are_refused_with_what_turns_them_into_integers():
    grid = nx.grid_2d_graph(2, 2, create_using=nx.DiGraph)
    assert_says(refusal(GraphError, read_graph, grid), "vertex (0, 0): id: expected an integer or a string, got (0, 0); use "
                'networkx.convert_node_labels_to_integers(graph, label_attribute="name")')
    nx.set_node_attributes(grid, 1.0, "exec_s")
    grid.remove_edges_from([(v, u) for u, v in grid.edges if u < v])
    assert read_graph(nx.convert_node_labels_to_integers(grid, label_attribute="name")).names[1] == "(0, 1)"


@pytest.mark.parametrize(("vertex", "edge", "words"), [
    ({"pinned": 0}, {}, "vertex 'a': pinned: expected the field pin (a device), got 0; rename it"),
    ({"exec_ms": 5}, {}, "vertex 'a': exec_ms: expected the field exec_s (seconds), got 5; rename it, and mind the unit"),
    ({"size": 5}, {}, "vertex 'a': size: expected the field output_bytes (bytes), got 5"),
    *[({name: 5}, {}, f"vertex 'a': {name}: expected the field exec_s (seconds)")
      for name in ("exec_sec", "Exec_S", "exec-s", "execs", "duration_us", "time", "runtime_s", "cost", "exec_time_ms")],
    *[({name: 5}, {}, f"vertex 'a': {name}: expected the field {meant}")
      for name, meant in (("flop", "flops"), ("GFLOPS", "flops"), ("output_byte", "output_bytes"), ("memory_mb", "output_bytes"),
                          ("nmae", "name"), ("kidn", "kind"), ("Pin", "pin"), ("collocate", "colocate"), ("kernels", "kernel"),
                          ("is_input", "input"), ("device", "pin"), ("meta-op", "meta_op"), ("roles", "role"))],
    ({"weight": 5}, {}, "vertex 'a': weight: expected exec_s (seconds) or flops, got 5; rename it, as a weight does not say what it"),
    ({"transfer_s": 5}, {}, "vertex 'a': transfer_s: expected it in an edge, got 5; move it there"),
    ({}, {"weight": 5}, "edge 'a' -> 'b': weight: expected transfer_s (seconds) or bytes, got 5; rename it"),
    *[({}, {name: 5}, f"edge 'a' -> 'b': {name}: expected the field {meant}")
      for name, meant in (("size", "bytes"), ("Bytes", "bytes"), ("transfer_ms", "transfer_s"), ("latency", "transfer_s"),
                          ("outputs", "output"), ("output_bytes", "bytes"), ("data_size_mb", "bytes"))],
    ({}, {"exec_s": 5}, "edge 'a' -> 'b': exec_s: expected it in a vertex, got 5; move it there"),
])
def test_near_misses_of_fields_are_refused_with_the_right_name(vertex, edge, words):
    assert_says(refusal(GraphError, read_graph, two(vertex, edge=edge)), "networkx graph: ", words)


def test_near_misses_beside_vertices_and_edges(tmp_path):
    graph = read_graph(two())
    record = {"device": [0, 1], "dispach": "order"}
    message = refusal(AssignmentError, assignment_from_json, record, graph, build_costs(graph, "cpu:2"))
    assert_says(message, "dispach: expected the field dispatch")
    assert_says(refusal(GraphError, read_graph, two(worklod=3)), "graph.worklod: expected the field workload, got 3; rename it")
    record = {"devices": [{"name": "a"}], "link_slot": 2}
    assert_says(refusal(TopologyError, type(cpu(1)).from_json, record), "link_slot: expected the field link_slots, got 2; rename it")
    record = {"devices": [{"name": "a", "flop_per_s": 2}]}
    assert_says(refusal(TopologyError, type(cpu(1)).from_json, record), "flop_per_s: expected one of name", "; flops_per_s is probably")
    path = tmp_path / "g.json"
    path.write_text('{"nodes": [{"id": 1, "exec_s": 1}], "edges": [], "Graph": {"name": "x"}}')
    assert_says(refusal(GraphError, read_graph, path), f"{path}: Graph: expected the field graph")


def test_other_fields_are_kept(tmp_path):
    notes = {name: name for name in ("color", "label", "layer", "op", "idx", "index", "shape", "type", "stage", "x", "tag", "title")}
    graph = two({**notes, "rows": np.arange(2), "what": object()}, edge={"label": "e", "style": [1, {"a": None}]}, author="me")
    write_graph(tmp_path / "g.json", graph)
    again = read_graph(tmp_path / "g.json")
    assert again.vertex_notes == {0: {**notes, "rows": [0, 1]}}
    assert again.edge_notes == {0: {"label": "e", "style": [1, {"a": None}]}}
    assert again.attributes == {"author": "me"}
    assert again.graph_hash == read_graph(two()).graph_hash


def measured() -> nx.DiGraph:
    return two({"exec_s": [1.0, 2.0], "flops": 989e12}, {"exec_s": [3.0, 4.0], "flops": 2 * 989e12}, {"transfer_s": 7.0})


def test_measured_times_belong_to_their_devices_and_estimates_go_anywhere():
    assert_says(refusal(CostError, place, measured(), "h100x8"), "vertex 'a': exec_s: expected 8 numbers (one a device of h100x8) or one "
                "number, got a list of 2; times belong to their devices: choose a topology of 2 devices, or place by flops and bytes "
                "(--costs estimated; in Python `estimated(graph, topology)`)")
    graph = estimated(measured(), "h100x8")
    costs = build_costs(graph, "h100x8")
    assert costs.exec_s[:, 7].tolist() == [1 + 5e-6, 2 + 5e-6]
    assert costs.transfer_s(0, 0, 1) == 5e-6 + 8 / 450e9
    assert place(graph, "h100x8", "heft").makespan_s == pytest.approx(3, rel=1e-4)


def test_estimates_name_what_they_lack_and_keep_what_they_cannot_replace():
    graph = measured()
    graph.add_node("c", exec_s=0)
    graph.add_node("d", exec_s=1.0)
    graph.add_node("e", exec_s=1.0)
    assert_says(refusal(CostError, estimated, graph, "h100x8"), "vertex 'd': flops: expected a number, from which its time can be "
                "estimated, got none, as 1 more vertices; give 'flops', or place by the times given")
    graph.remove_nodes_from("de")
    graph.add_edge("c", "b", transfer_s=5.0)
    found = estimated(graph, "h100x8")
    assert found.transfer_s.tolist()[1:] == [5.0]
    assert build_costs(found, "h100x8").exec_s[2, 0] == 0
