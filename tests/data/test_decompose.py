"""Programs, tilings and decomposition: properties over random ones, and what errors say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import (
    EinsumProgram,
    contract,
    decompose,
    eindecomp,
    elementwise,
    evaluate_program,
    execute_tiles,
    labelled,
    normal,
    reduction,
    relative_error,
    tensor_input,
    view,
)
from data.einsum_program import pad
from data.tiling import Grid, bounds
from doppler_tf.errors import ConfigError, GraphError
from doppler_tf.graph.records import graph_from_records

LABELS = "abcd"


@st.composite
def programs(draw):
    """A random program of a few steps over small labels, and a random tiling of it."""
    sizes = {label: draw(st.integers(1, 7)) for label in LABELS}
    axes = st.lists(st.sampled_from(LABELS), unique=True, max_size=3)
    inputs = {f"x{i}": tensor_input(" ".join(draw(axes)), normal(0.3, 1.0)) for i in range(draw(st.integers(1, 3)))}
    known, steps, tiling = {name: tensor.labels for name, tensor in inputs.items()}, [], {}
    for i in range(draw(st.integers(1, 5))):
        name = f"e{i}"
        binary = draw(st.booleans())
        tensors = [draw(st.sampled_from(sorted(known))) for _ in range(2 if binary else 1)]
        read = list(dict.fromkeys(label for tensor in tensors for label in known[tensor]))
        output = draw(st.permutations(read))[:draw(st.integers(0, len(read)))]
        pattern = ", ".join(" ".join(known[tensor]) for tensor in tensors) + " -> " + " ".join(output)
        if len(output) < len(read):
            aggregate = draw(st.sampled_from(["sum", "max", "min", "prod"]))
            join = draw(st.sampled_from(["mul", "add", "maximum"]))
            steps.append(contract(name, pattern, *tensors, join=join, aggregate=aggregate) if binary
                         else reduction(name, aggregate, pattern, *tensors))
        else:
            fn = draw(st.sampled_from(["sub", "minimum"] if binary else ["relu", "identity"]))
            steps.append(elementwise(name, fn, pattern, *tensors))
        tiling[name] = {label: draw(st.integers(1, sizes[label])) for label in read}
        known[name] = tuple(output)
    return EinsumProgram(sizes, inputs, tuple(steps)), tiling


def largest(program, tensors) -> float:
    """The largest number that a step makes: what later steps subtract from each other is as uncertain as that."""
    with np.errstate(all="ignore"):
        made = [evaluate_program(EinsumProgram(program.sizes, program.inputs, program.steps[:i + 1]), tensors)
                for i in range(len(program.steps))]
    return max(float(np.abs(value).max(initial=0.0)) for outputs in made for value in outputs.values())


@given(programs())
def test_sharded_equals_unsharded(case):
    program, tiling = case
    graph = decompose(program, tiling)
    tensors = program.draw_inputs(0, np.float64)
    with np.errstate(all="ignore"):
        got, expected = execute_tiles(graph, tensors), evaluate_program(program, tensors)
    assert got.keys() == expected.keys()
    for name, whole in expected.items():
        np.testing.assert_allclose(got[name], whole, rtol=1e-9, atol=1e-9 * largest(program, tensors))
    for expression in program.expressions:
        shards = [v for v in graph.work_vertices if graph.meta_op[v] == expression.name and graph.role[v] == "shard"]
        assert graph.flops[shards].sum() == program.flops(expression)
        assert len(shards) == np.prod([tiling[expression.name][label] for label in expression.space], dtype=int)
    assert (graph.edge_bytes <= graph.output_bytes[graph.sources] * 2).all()  # two operands are at most two slices of one tile


@given(programs(), st.integers(1, 16), st.booleans())
def test_what_eindecomp_cuts_computes_the_same(case, pieces, count_inputs):
    program, _ = case
    found = eindecomp(labelled(program), pieces, count_inputs=count_inputs)
    for expression in program.expressions:
        assert np.prod([*found[expression.name].values()]) <= pieces
    tensors = program.draw_inputs(0, np.float64)
    with np.errstate(all="ignore"):
        got, expected = execute_tiles(decompose(program, found), tensors), evaluate_program(program, tensors)
    for name, whole in expected.items():
        np.testing.assert_allclose(got[name], whole, rtol=1e-9, atol=1e-9 * largest(program, tensors))


@given(st.integers(1, 200), st.data())
def test_bounds_are_those_of_array_split(size, data):
    parts = data.draw(st.integers(1, size))
    assert np.diff(bounds(size, parts)).tolist() == [len(part) for part in np.array_split(np.arange(size), parts)]


@given(st.integers(1, 30), st.data())
def test_meeting_finds_the_tiles_that_overlap(size, data):
    tiles = Grid((bounds(size, data.draw(st.integers(1, size))),))
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    overlapping = [i for i in tiles.indices() if tiles.box(i)[0][0] < stop and start < tiles.box(i)[0][1]]
    assert tiles.meeting(((start, stop),)) == overlapping


@given(st.integers(1, 12), st.integers(-5, 5), st.data())
def test_holder_is_the_tile_that_contains_a_box(size, by, data):
    tiles = Grid((bounds(size, data.draw(st.integers(1, size))), (0, 3))).shifted((by, 0))
    start = data.draw(st.integers(by - 2, by + size))
    box = ((start, data.draw(st.integers(start + 1, by + size + 2))), (1, 3))
    containing = [tile for index in tiles.indices() if (tile := tiles.box(index))[0][0] <= start and box[0][1] <= tile[0][1]]
    assert tiles.holder(box) == (containing[0] if containing else None)


def test_max_plus_contraction_is_the_heaviest_path():
    program = EinsumProgram({"i": 5, "j": 6, "k": 7}, {"x": tensor_input("i k"), "y": tensor_input("k j")},
                            (contract("z", "i k, k j -> i j", "x", "y", join="add", aggregate="max"),))
    graph = decompose(program, {"z": {"i": 2, "j": 3, "k": 4}})
    t = program.draw_inputs(1, np.float64)
    assert np.array_equal(execute_tiles(graph, t)["z"], (t["x"][:, :, None] + t["y"][None]).max(axis=1))
    assert len(graph.work_vertices) == 24 + 6


def test_retiling_stands_only_where_several_tiles_are_assembled():
    program = EinsumProgram({"i": 8, "j": 8}, {"x": tensor_input("i j")}, (
        elementwise("fine", "relu", "i j -> i j", "x"), elementwise("coarse", "square", "i j -> i j", "fine"),
        elementwise("twice", "exp", "i j -> i j", "fine"), elementwise("cut", "relu", "i j -> i j", "coarse")))
    graph = decompose(program, {"fine": {"i": 4}, "coarse": {"i": 2}, "twice": {"i": 2}, "cut": {"i": 4, "j": 2}})
    retiles = [v for v in graph.work_vertices if graph.kinds[v] == "retile"]
    assert [graph.names[v] for v in retiles] == ["fine.retile[0:4,0:8]", "fine.retile[4:8,0:8]"]  # shared by coarse and twice
    cut = graph.names.index("cut[0,1]")
    assert graph.kernel[cut].operands[0].slice == ((0, 2), (4, 8))


def test_views_are_slices_and_an_operand_read_twice_is_one_edge():
    program = EinsumProgram({"i": 8, "h": 4}, {"x": tensor_input("i")}, (
        elementwise("y", "square", "i -> i", "x"), view("low", "h", "y"), view("high", "h", "y", h=4),
        elementwise("z", "sub", "h, h -> h", "low", "high")))
    graph = decompose(program, {}, dtype_bytes=8)
    assert [graph.names[v] for v in graph.work_vertices] == ["y[0]", "z[0]"]
    assert graph.edge_bytes[graph.work_edges].tolist() == [2 * 4 * 8]
    t = program.draw_inputs(0)
    assert np.array_equal(execute_tiles(graph, t)["z"], t["x"][:4] ** 2 - t["x"][4:] ** 2)


def test_one_slice_read_twice_crosses_once():
    program = EinsumProgram({"i": 8}, {"x": tensor_input("i")}, (
        elementwise("y", "relu", "i -> i", "x"), elementwise("z", "mul", "i, i -> i", "y", "y")))
    graph = decompose(program, {"y": {"i": 2}, "z": {"i": 4}})
    assert graph.edge_bytes[graph.work_edges].tolist() == [8.0] * 4


def test_inputs_are_tiled_as_their_readers_ask():
    program = EinsumProgram({"i": 8}, {"x": tensor_input("i")}, tuple(elementwise(n, "relu", "i -> i", "x") for n in "abc"))
    graph = decompose(program, {"a": {"i": 2}, "b": {"i": 4}, "c": {}})
    assert [graph.names[v] for v in np.flatnonzero(graph.is_input)] == ["x[0:4]", "x[4:8]", "x[0:8]"]
    assert "retile" not in graph.kinds


def test_an_input_is_read_from_the_first_tile_that_holds_the_box():
    program = EinsumProgram({"i": 8, "h": 4}, {"x": tensor_input("i")}, (
        view("high", "h", "x", h=4), *(elementwise(n, "relu", f"{label} -> {label}", source)
                                       for n, label, source in (("a", "h", "high"), ("b", "i", "x"), ("c", "i", "x"), ("d", "i", "x")))))
    graph = decompose(program, {"b": {"i": 4}, "d": {"i": 8}})
    assert [graph.names[v] for v in np.flatnonzero(graph.is_input)] == ["x[4:8]", "x[0:2]", "x[2:4]", "x[0:8]"]
    at = {name: v for v, name in enumerate(graph.names)}
    read = {name: (graph.names[operand.vertex], operand.slice) for name in ("b[2]", "d[0]", "d[3]", "d[7]")
            for operand in graph.kernel[at[name]].operands}
    assert read == {"b[2]": ("x[4:8]", ((0, 2),)), "d[0]": ("x[0:2]", ((0, 1),)), "d[3]": ("x[2:4]", ((1, 2),)),
                    "d[7]": ("x[4:8]", ((3, 4),))}


@pytest.mark.parametrize(("build", "words"), [
    (lambda: contract("z", "i k -> i", "x", "y"), ["'z'", "pattern", "2 operand"]),
    (lambda: EinsumProgram({"i": 0}, {}, ()), ["label 'i'", "size", "0"]),
    (lambda: _program(elementwise("z", "relu", "q -> q", "x")), ["'z'", "labels", "'q'"]),
    (lambda: _program(elementwise("z", "relu", "j -> j", "x")), ["'z'", "labels of 'x'", "(4,)"]),
    (lambda: _program(elementwise("z", "tanh", "i -> i", "x")), ["'z'", "fn", "relu", "'tanh'"]),
    (lambda: _program(elementwise("z", "scale", "i -> i", "x")), ["'z'", "scale", "factor"]),
    (lambda: _program(elementwise("z", "relu", "i -> i", "w")), ["'z'", "operand", "'w'"]),
    (lambda: _program(elementwise("z", "relu", "i -> ", "x")), ["'z'", "aggregate", "sum"]),
    (lambda: _program(reduction("z", "median", "i -> ", "x")), ["'z'", "aggregate", "'median'"]),
    (lambda: _program(elementwise("z", "relu", "i -> i j", "x")), ["'z'", "output labels", "'j'"]),
    (lambda: _program(elementwise("x", "relu", "i -> i", "x")), ["'x'", "unique"]),
    (lambda: _program(view("v", "i", "x", i=1)), ["view 'v'", "box", "[[1, 5]]"]),
    (lambda: _program(view("v", "i", "x"), elementwise("z", "relu", "i -> i", "x")), ["view 'v'", "identity"]),
    (lambda: _program(elementwise("z", "rotate_half", "j -> j", "o")), ["'z'", "rotate_half", "even"]),
    (lambda: _program(pad("p", "j -> i", "o", i=2)), ["pad 'p'", "box", "inside it of shape (4,)", "[[2, 5]]"]),
    (lambda: _program(pad("p", "j -> i", "w")), ["pad 'p'", "operand", "'w'"]),
    (lambda: _program(pad("p", "j -> i", "o", j=1)), ["pad 'p'", "start", "'j'"]),
    (lambda: _program(elementwise("z", "relu", "i -> i", "x"), outputs=("x",)), ["outputs", "computes", "'x'"]),
    (lambda: _program(elementwise("z", "relu", "i -> i", "x"), elementwise("y", "relu", "i -> i", "x"), outputs=("z",)),
     ["expression 'y'", "a step that reads it", "make it an output"]),
])
def test_illegal_programs(build, words):
    with pytest.raises(GraphError) as caught:
        build()
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def _program(*steps, outputs=None):
    return EinsumProgram({"i": 4, "j": 3}, {"x": tensor_input("i"), "o": tensor_input("j")}, steps, outputs)


def test_a_pad_tile_by_tile():
    """Tiles that the box does not reach read one element for its type; a box in several tiles of the producer is assembled."""
    program = EinsumProgram({"i": 8, "j": 4}, {"x": tensor_input("j")}, (
        elementwise("a", "exp", "j -> j", "x"), pad("p", "j -> i", "a", i=3), elementwise("b", "exp", "i -> i", "p")), ("p", "b"))
    graph = decompose(program, {"a": {"j": 4}, "p": {"i": 3}})
    tensors = program.draw_inputs(0, np.float64)
    got = execute_tiles(graph, tensors)
    assert np.array_equal(got["p"], [0, 0, 0, *np.exp(tensors["x"]), 0])
    assert np.array_equal(got["b"], np.exp(got["p"]))
    at = {name: v for v, name in enumerate(graph.names)}
    assert list(graph.kinds).count("retile") == 2  # of a for p[1], and of p for b
    assert [graph.kernel[at[f"p[{i}]"]].params["box"] for i in range(3)] == [None, [[0, 3]], [[0, 1]]]
    assert graph.edge_bytes[(graph.sources == at["a[0]"]) & (graph.targets == at["p[0]"])] == [4]


@pytest.mark.parametrize(("tiling", "words"), [
    ({"y": {"i": 2}}, ["expression", "'y'", "z"]), ({"z": {"j": 2}}, ["'z'", "label", "'j'"]),
    ({"z": {"i": 5}}, ["parts of 'i'", "1 to 4", "5"]), ({"turn": {"i": 2}}, ["parts of 'i'", "1 to 1", "2"]),
])
def test_illegal_tilings(tiling, words):
    program = _program(elementwise("z", "relu", "i -> i", "x"), elementwise("turn", "rotate_half", "i -> i", "z"))
    with pytest.raises(ConfigError) as caught:
        decompose(program, tiling)
    assert all(word in str(caught.value) for word in words)


def test_a_graph_without_kernels_cannot_be_executed():
    graph = graph_from_records([{"id": 0, "exec_s": 1}], [])
    with pytest.raises(GraphError, match="workload"):
        execute_tiles(graph, {})


def test_relative_error():
    assert relative_error({"x": np.array([3.0, 4.5])}, {"x": np.array([3.0, 4.0])}) == 0.1
    assert np.isnan(relative_error({"x": np.array([np.nan])}, {"x": np.array([1.0])}))
