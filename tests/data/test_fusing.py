"""Fused graphs: the same numbers in fewer vertices, nothing lost and nothing done twice, and what keeps a vertex by itself."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import WORKLOADS, build_workload, evaluate_program, execute_tiles, fuse, output_vertices, relative_error, workload_program
from data.fusing import _joined, _runs
from data.numpy_kernels import run_kernel
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.graph.records import graph_from_records, graph_to_records

# Work vertices by number of devices: before, after.
SIZES = {"chainmm": {2: (38, 38), 4: (76, 76)}, "ffnn": {2: (90, 18), 4: (180, 36)},
         "llama_block": {2: (103, 26), 4: (178, 92)}, "llama_layer": {2: (123, 28), 4: (213, 107)},
         "llama_stack": {2: (229, 56), 4: (397, 203)}}
SIDE = 3  # elements of every tensor of a toy


def toy(vertices, outputs=None, edges=None):
    """A graph of {id: (what, operands[, fields])}: an input without operands, an aggregate, or a map of that function."""
    nodes = []
    for v, (what, operands, *fields) in vertices.items():
        node = {"id": v, "output_bytes": 8 * SIDE, **dict(*fields)}
        if what == "input":
            nodes.append({**node, "input": True})
            continue
        params = {"aggregate": "sum"} if what == "sum" else {"fn": what, "subscripts": ",".join("a" for _ in operands) + "->a"}
        kernel = {"op": "aggregate" if what == "sum" else "map", "params": params, "operands": [{"vertex": u} for u in operands]}
        nodes.append({"flops": 1, **node, "kernel": kernel})
    if edges is None:
        edges = [{"source": u, "target": v} for v, (_, operands, *_) in vertices.items() for u in dict.fromkeys(operands)]
    tiles = {} if outputs is None else {"outputs": {v: {"tiles": [{"vertex": v}]} for v in outputs}}
    return graph_from_records(nodes, edges, {"name": "toy", **tiles})


def evaluate(graph):
    """The array of every vertex, by id; inputs hold numbers drawn by their place."""
    values = {}
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            values[v] = np.random.default_rng(v).uniform(-1, 1, SIDE)
        else:
            values[v] = run_kernel(graph.kernel[v], [values[operand.vertex] for operand in graph.kernel[v].operands])
    return {graph.ids[v]: x for v, x in values.items()}


def names(graph):
    """The names of all work vertices: of a fused one, those of its steps."""
    def of(op, params, name):
        return [inner for step in params["steps"] for inner in of(step["op"], step["params"], step["name"])] if op == "fused" else [name]
    return Counter(name for v in graph.work_vertices.tolist() for name in of(graph.kernel[v].op, graph.kernel[v].params, graph.names[v]))


def work_ids(graph):
    return {graph.ids[v] for v in graph.work_vertices.tolist()}


@pytest.fixture(scope="module", params=[(name, devices) for name in WORKLOADS for devices in (2, 4)], ids="{0[0]}-{0[1]}".format)
def case(request):
    """A small workload, its number of devices, its tensors and what the unsharded program makes of them."""
    name, devices = request.param
    graph = build_workload(name, devices, scale="small")
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(0)
    return graph, devices, tensors, evaluate_program(program, tensors)


def test_sizes(case):
    graph, devices, _, _ = case
    assert (len(graph.work_vertices), len(fuse(graph).work_vertices)) == SIZES[graph.name][devices]


def test_a_fused_graph_computes_the_program(case, tmp_path):
    graph, _, tensors, expected = case
    fused = fuse(graph)
    assert relative_error(execute_tiles(fused, tensors), expected) <= 1e-5
    write_graph(tmp_path / "fused.json", fused)
    again = read_graph(tmp_path / "fused.json")
    assert again.graph_hash == fused.graph_hash
    assert again.kernel == fused.kernel
    assert relative_error(execute_tiles(again, tensors), expected) <= 1e-5


def test_nothing_is_lost_and_nothing_is_done_twice(case):
    graph, _, _, _ = case
    fused = fuse(graph)
    assert names(fused) == Counter(graph.names[v] for v in graph.work_vertices)
    assert fused.flops[fused.work_vertices].sum() == pytest.approx(graph.flops[graph.work_vertices].sum(), rel=1e-12)
    assert [fused.ids[v] for v in output_vertices(fused)] == [graph.ids[v] for v in output_vertices(graph)]
    size = dict(zip(graph.ids, graph.output_bytes.tolist(), strict=True))
    assert all(fused.output_bytes[v] == size[fused.ids[v]] for v in fused.work_vertices)


def test_fused_again_it_computes_the_same(case):
    graph, _, tensors, expected = case
    twice = fuse(fuse(graph))
    assert twice.graph_hash == fuse(graph).graph_hash
    assert relative_error(execute_tiles(twice, tensors), expected) <= 1e-5


@st.composite
def kernel_graphs(draw):
    """Inputs, maps and sums of any earlier vertices, most of recent ones; outputs anywhere; now and then a pin."""
    inputs, count = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    vertices = {v: ("input", []) for v in range(inputs)}
    for v in range(inputs, inputs + count):
        what = draw(st.sampled_from(["relu", "square", "add", "sum"]))
        arity = {"relu": 1, "square": 1, "add": 2, "sum": draw(st.integers(1, 3))}[what]
        fields = draw(st.sampled_from([{}, {}, {}, {}, {}, {"pin": 0}]))
        vertices[v] = (what, [draw(st.integers(max(0, v - draw(st.sampled_from([1, 3, 17]))), v - 1)) for _ in range(arity)], fields)
    return toy(vertices, draw(st.none() | st.sets(st.integers(inputs, inputs + count - 1))))


@given(kernel_graphs())
def test_any_graph_keeps_its_results(graph):
    """`graph_from_records` refuses cycles."""
    once = fuse(graph)
    expected = evaluate(graph)
    sinks = {graph.ids[v] for v in np.setdiff1d(graph.work_vertices, graph.sources)}
    kept = sinks | set(graph.attributes.get("outputs", {})) | {graph.ids[v] for v in graph.work_vertices if graph.pin[v] is not None}
    for fused in (once, fuse(once)):
        values = evaluate(fused)
        assert kept <= work_ids(fused)
        for v, x in values.items():
            np.testing.assert_array_equal(x, expected[v])
        assert names(fused) == Counter(graph.names[v] for v in graph.work_vertices)
        assert fused.flops[fused.work_vertices].sum() == len(graph.work_vertices)


@given(kernel_graphs())
def test_groups_have_one_exit_and_a_run_needs_no_more_than_its_first(graph):
    joined = _joined(graph)
    edges = [(int(graph.sources[e]), int(graph.targets[e])) for e in graph.work_edges]
    for groups in (joined, _runs(graph, joined)):
        assert sorted(v for group in groups for v in group) == graph.work_vertices.tolist()
        for group in groups:
            assert {u for u, v in edges if u in group and v not in group} <= {group[-1]}
    unit = {v: i for i, group in enumerate(joined) for v in group}
    for run in _runs(graph, joined):
        units = list(dict.fromkeys(unit[v] for v in run))
        needs = {i: {unit[u] for u, v in edges if unit[v] == i and unit[u] != i} for i in units}
        for place, i in enumerate(units[1:], start=1):
            assert units[place - 1] in needs[i]  # a path
            assert needs[i] <= needs[units[0]] | set(units[:place])


def test_an_elementwise_vertex_joins_its_reader_though_that_has_others():
    graph = toy({"x": ("input", []), "a": ("sum", ["x"]), "b": ("sum", ["x"]), "r": ("relu", ["a"]), "s": ("sum", ["r", "b"]),
                 "t": ("sum", ["a"])})
    fused = fuse(graph)
    assert work_ids(fused) == {"a", "b", "s", "t"}
    at = fused.vertex_of
    assert fused.names[at["s"]] == "r .. s"
    assert {fused.ids[o.vertex] for o in fused.kernel[at["s"]].operands} == {"a", "b"}


@pytest.mark.parametrize(("kernel", "fields"), [
    ("s", {"operands": [{"vertex": "r", "slice": [[0, 1]]}, {"vertex": "c"}]}),  # less crosses than of r's producer
    ("r", {"operands": [{"vertex": "a", "slice": [[0, 1]]}]}), ("r", {"params": {"fn": "relu", "subscripts": "ab->a"}}),
    ("r", {"op": "aggregate", "params": {"aggregate": "sum"}}),
    ("r", {"operands": [{"vertex": "a"}, {"vertex": "b"}], "params": {"fn": "add", "subscripts": "a,a->a"}})])
def test_what_does_not_join_its_reader(kernel, fields):
    graph = toy({"x": ("input", []), "a": ("sum", ["x"]), "b": ("sum", ["x"]), "c": ("sum", ["x"]), "r": ("relu", ["a"]),
                 "s": ("sum", ["r", "c"]), "t": ("sum", ["a", "b"])})
    nodes, edges, attributes = graph_to_records(graph)
    next(node for node in nodes if node["id"] == kernel)["kernel"].update(fields)
    if {"vertex": "b"} in fields.get("operands", []):
        edges.append({"source": "b", "target": "r"})
    assert "r" in work_ids(fuse(graph_from_records(nodes, edges, attributes)))


def test_two_that_could_run_side_by_side_stay_apart():
    graph = toy({"x": ("input", []), "a": ("sum", ["x"]), "b": ("sum", ["a", "x"]), "c": ("sum", ["a", "x"]), "d": ("sum", ["b", "c"])})
    assert fuse(graph) is graph


def test_a_run_ends_before_what_is_needed_outside():
    graph = toy({"x": ("input", []), "a": ("sum", ["x"]), "b": ("sum", ["a"]), "c": ("sum", ["b"]), "o": ("sum", ["x"]),
                 "d": ("sum", ["b", "o"]), "e": ("sum", ["c", "d"])})
    assert {"b", "e"} <= work_ids(fuse(graph))
    assert "a" not in work_ids(fuse(graph))


@pytest.mark.parametrize("fields", [{"pin": 0}, {"colocate": "g"}, {"exec_s": 1.0}, {"exec_s": [1.0, 2.0]}])
@pytest.mark.parametrize("alone", ["a", "b", "c", "d"])
def test_what_keeps_a_vertex_by_itself(alone, fields):
    chain = {"x": ("input", []), **{v: ("relu", [u]) for u, v in zip("xabcd", "abcde", strict=True)}}
    assert work_ids(fuse(toy(chain))) == {"e"}
    chain[alone] = (*chain[alone], fields)
    before = chr(ord(alone) - 1)
    assert work_ids(fuse(toy(chain))) == {alone, "e"} | {before} - {"`"}


def test_an_output_in_the_middle_is_the_last_of_its_group():
    chain = {"x": ("input", []), **{v: ("relu", [u]) for u, v in zip("xabcd", "abcde", strict=True)}}
    assert work_ids(fuse(toy(chain, outputs=["b", "e"]))) == {"b", "e"}


def test_a_vertex_without_kernel_stays_as_it_is():
    nodes, edges, attributes = graph_to_records(toy({"x": ("input", []), "a": ("relu", ["x"]), "b": ("relu", ["a"]), "c": ("relu", ["b"])}))
    del nodes[1]["kernel"]
    assert work_ids(fuse(graph_from_records(nodes, edges, attributes))) == {"a", "c"}


def test_of_two_edges_that_become_one_the_dearer_stays():
    """Without bytes all of the output crosses."""
    vertices = {"x": ("input", []), "p": ("sum", ["x"]), "q": ("sum", ["p"]), "a": ("sum", ["p"]), "b": ("sum", ["a", "p"])}
    for first, second, kept in [({"bytes": 1}, {"bytes": 2}, {"bytes": 2}), ({"bytes": 1}, {}, {}), ({}, {"bytes": 1}, {}),
                                ({"transfer_s": 1}, {"transfer_s": 2}, {"transfer_s": 2})]:
        edges = [("x", "p", {}), ("p", "q", {}), ("p", "a", first), ("a", "b", {}), ("p", "b", second)]
        fused = fuse(toy(vertices, edges=[{"source": u, "target": v, **cost} for u, v, cost in edges]))
        assert {"source": "p", "target": "b", **kept} in graph_to_records(fused)[1]


@pytest.mark.parametrize("params", [{}, {"fn": "relu"}, {"fn": "relu", "subscripts": "a,a->a"}, {"fn": "relu", "subscripts": 7}])
def test_a_kernel_that_nobody_can_run_is_left_to_whoever_runs_it(params):
    nodes, edges, attributes = graph_to_records(toy({"x": ("input", []), "a": ("sum", ["x"]), "b": ("relu", ["a"]), "c": ("sum", ["b"])}))
    nodes[2]["kernel"]["params"] = params
    assert names(fuse(graph_from_records(nodes, edges, attributes))) == Counter("abc")
