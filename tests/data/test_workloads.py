"""The workloads: published structure, and tile by tile equal to the unsharded program."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data import WORKLOADS, build_workload, evaluate_program, execute_tiles, relative_error, workload_program
from data.workloads.workload import near_square
from doppler_tf.errors import ConfigError
from doppler_tf.graph.records import graph_from_records, graph_to_records
from tests.messages import refusal

REFERENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "reference"
TINY = {"chainmm": {"n": 96}, "ffnn": {"batch": 256, "features": 8, "hidden": 128, "outputs": 8},
        "llama_block": {"tokens": 48, "dim": 64, "heads": 4, "ffn": 88},
        "llama_layer": {"tokens": 48, "dim": 64, "heads": 4, "ffn": 88, "vocab": 100},
        "llama_stack": {"tokens": 48, "dim": 64, "heads": 4, "ffn": 88, "vocab": 100, "layers": 3}}


def work_edges(graph):
    """Edges between work vertices, numbered by work vertex."""
    rank = {int(v): r for r, v in enumerate(graph.work_vertices)}
    return {(rank[int(graph.sources[e])], rank[int(graph.targets[e])]) for e in graph.work_edges}


@pytest.mark.parametrize(("name", "vertices", "edges", "inputs"), [("chainmm", 76, 80, 36), ("ffnn", 180, 208, 12)])
def test_published_counts_at_4_devices(name, vertices, edges, inputs):
    graph = build_workload(name, 4)
    assert (len(graph.work_vertices), len(graph.work_edges), int(graph.is_input.sum())) == (vertices, edges, inputs)


@pytest.mark.parametrize("name", ["chainmm", "ffnn"])
def test_the_published_graph_edge_by_edge(name):
    path = REFERENCE / f"{name}.graph.json"
    if not path.exists():
        pytest.skip(f"no reference graphs at {path}")
    published = json.loads(path.read_text())
    expected = {(edge["source"], edge["target"]) for edge in published["edges"]}
    assert work_edges(build_workload(name, 4)) == expected  # more than isomorphic: the vertices stand in the published order


@pytest.mark.parametrize(("name", "published"), [("llama_block", 182), ("llama_layer", 229)])
def test_llama_is_near_the_published_size(name, published):
    count = len(build_workload(name, 4).work_vertices)
    assert abs(count - published) <= 0.15 * published


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("name", ["llama_block", "llama_layer", "llama_stack"])
def test_llama_has_a_block_a_device_in_every_contraction_and_at_most_that_elsewhere(name, devices):
    graph = build_workload(name, devices)
    shards = Counter(graph.meta_op[v] for v in graph.work_vertices if graph.role[v] == "shard")
    contractions = {graph.meta_op[v] for v in graph.work_vertices if graph.kinds[v] == "matmul"}
    assert {shards[meta_op] for meta_op in contractions} == {devices}
    assert max(shards.values()) == devices


def test_a_stack_of_one_is_the_layer():
    layer, stack = build_workload("llama_layer", 4), build_workload("llama_stack", 4, layers=1)
    assert stack.graph_hash == layer.graph_hash
    assert [kernel.op for kernel in stack.kernel] == [kernel.op for kernel in layer.kernel]


@pytest.mark.parametrize("layers", [2, 3, 10])
def test_every_further_layer_of_a_stack_adds_the_same(layers):
    """500 layers at 4 devices: 106,045 vertices."""
    graph = build_workload("llama_stack", 4, layers=layers)
    assert graph.num_vertices == 45 + 212 * layers
    assert len(graph.levels) == 11 + 44 * layers
    weights = {kernel.params["tensor"] for v, kernel in enumerate(graph.kernel) if graph.is_input[v]}
    assert len(weights) == 6 + 9 * layers


def test_a_layer_of_a_stack_reads_the_one_before_and_what_all_share():
    graph = build_workload("llama_stack", 2, "small", layers=4)
    layer = [int(op[1:op.index(".")]) if op and op.startswith("L") else None for op in graph.meta_op]
    crossing = {(layer[u], layer[v]) for u, v in zip(graph.sources[graph.work_edges], graph.targets[graph.work_edges], strict=True)
                if layer[u] != layer[v]}
    assert crossing == {(0, 1), (1, 2), (2, 3), (3, None)}


def test_flops_and_bytes_are_those_of_the_tile_and_the_slice():
    graph = build_workload("chainmm", 4)
    at = {name: v for v, name in enumerate(graph.names)}
    shard, total = at["DE.mm[0,1,2]"], at["DE.sum[0,1]"]
    assert graph.flops[shard] == 2 * 5000 * 2500 * 5000
    assert graph.output_bytes[shard] == 2 * 5000 * 5000
    assert graph.flops[total] == 3 * 5000 * 5000
    edge = np.flatnonzero((graph.sources == at["DE.sum[0,1]"]) & (graph.targets == at["CDE.mm[3,1,0]"]))
    assert graph.edge_bytes[edge] == [2 * 5000 * 5000]
    assert [operand.slice for operand in graph.kernel[at["CDE.mm[3,1,0]"]].operands] == [None, None]
    softmax = build_workload("ffnn", 4)
    at = {name: v for v, name in enumerate(softmax.names)}
    edge = np.flatnonzero((softmax.sources == at["logits.sum[0,0]"]) & (softmax.targets == at["max.part[1,0]"]))
    assert softmax.edge_bytes[edge] == [2 * 2048 * 32]
    assert softmax.kernel[at["max.part[1,0]"]].operands[0].slice == ((2048, 4096), (0, 32))


@pytest.mark.parametrize("name", WORKLOADS)
def test_contraction_flops_do_not_depend_on_the_tiling(name):
    totals = set()
    for devices in (1, 3, 8):
        graph = build_workload(name, devices)
        totals.add(sum(graph.flops[v] for v in graph.work_vertices if graph.kinds[v] == "matmul"))
    program = workload_program(graph.attributes["workload"])
    assert totals == {sum(program.flops(e) for e in program.expressions if e.kind == "matmul")}


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
def test_tile_by_tile_equals_unsharded(name, devices, dtype, tolerance):
    graph = build_workload(name, devices, "small", seed=devices, **TINY[name])
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(devices, dtype)
    got, expected = execute_tiles(graph, tensors), evaluate_program(program, tensors)
    assert {name: (x.shape, x.dtype) for name, x in got.items()} == {name: (x.shape, x.dtype) for name, x in expected.items()}
    assert relative_error(got, expected) <= tolerance


@pytest.mark.parametrize("name", WORKLOADS)
def test_default_small_sizes_execute_within_the_float32_tolerance(name):
    graph = build_workload(name, 4, "small")
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(0)
    assert relative_error(execute_tiles(graph, tensors), evaluate_program(program, tensors)) <= 1e-6


def test_ffnn_and_chainmm_against_plain_numpy():
    program = workload_program(build_workload("ffnn", 1, "small", **TINY["ffnn"]).attributes["workload"])
    t = program.draw_inputs(0, np.float64)
    logits = np.maximum(t["X"] @ t["W1"], 0) @ t["W2"]
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(evaluate_program(program, t)["softmax"], soft, rtol=1e-12)
    program = workload_program(build_workload("chainmm", 1, "small", n=32).attributes["workload"])
    t = program.draw_inputs(0, np.float64)
    np.testing.assert_allclose(evaluate_program(program, t)["sum"], t["A"] @ t["B"] + t["C"] @ (t["D"] @ t["E"]), rtol=1e-10)


@pytest.mark.parametrize(("name", "options", "blocks"), [("llama_layer", {}, [""]), ("llama_stack", {"layers": 3}, ["L0.", "L1.", "L2."])])
def test_llama_against_plain_numpy(name, options, blocks):
    """The layers written anew, head by head and with complex rotary embedding."""
    sizes = {"tokens": 12, "dim": 16, "heads": 2, "ffn": 24, "vocab": 20, **options}
    program = workload_program(build_workload(name, 2, "small", **sizes).attributes["workload"])
    w = program.draw_inputs(3, np.float64)
    half = 4

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight

    def rotary(x):
        turn = np.exp(1j * np.arange(12)[:, None] * 10_000.0 ** (-np.arange(half) / half))
        z = (x[:, :half] + 1j * x[:, half:]) * turn
        return np.concatenate([z.real, z.imag], axis=1)

    y = w["x"]
    for block in blocks:
        x, heads = norm(y, w[f"{block}norm1_weight"]), []
        for h in range(2):
            q, k, v = (x @ w[f"{block}{weight}"][:, h] for weight in ("wq", "wk", "wv"))
            scores = rotary(q) @ rotary(k).T / np.sqrt(8)
            scores[np.triu_indices(12, 1)] = -np.inf
            weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            heads.append(weights @ v @ w[f"{block}wo"][h])
        y = y + sum(heads)
        z = norm(y, w[f"{block}norm2_weight"])
        gate = z @ w[f"{block}w1"]
        y = y + (gate / (1 + np.exp(-gate)) * (z @ w[f"{block}w3"])) @ w[f"{block}w2"]
    logits = norm(y, w["norm_weight"])[-1] @ w["head_weight"]
    np.testing.assert_allclose(evaluate_program(program, w)["head"][0], logits, rtol=1e-10)


def test_the_mask_hides_the_future_and_nothing_else():
    program = workload_program(build_workload("llama_layer", 1, "small", **TINY["llama_layer"]).attributes["workload"])
    future = np.triu(np.ones((48, 48), bool), 1)  # the last token sees all, so that the layer's output alone cannot tell
    mask = program.draw_inputs(0)["mask"]
    assert (mask[~future] == 0).all()
    assert (np.exp(mask[future] + 100) == 0).all()


@pytest.mark.parametrize("devices", range(1, 17))
@pytest.mark.parametrize("name", WORKLOADS)
def test_any_number_of_devices_and_a_round_trip_through_records(name, devices):
    graph = build_workload(name, devices, "small")
    again = graph_from_records(*graph_to_records(graph))
    assert again.graph_hash == graph.graph_hash
    assert again.kernel == graph.kernel
    assert json.loads(json.dumps(again.attributes)) == graph.attributes


def test_near_square():
    assert [near_square(n) for n in (1, 2, 3, 4, 6, 7, 8, 12, 16)] == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (7, 1), (4, 2), (4, 3),
                                                                       (4, 4)]


@pytest.mark.parametrize(("arguments", "words"), [
    (("chainm", 4), ["name", "chainmm", "layered", "'chainm'"]),
    (("chainmm", 0), ["num_devices", "0"]),
    (("chainmm", 4, "large"), ["scale", "paper, small", "'large'"]),
    (("chainmm", 4, "small", -1), ["seed", "integer >= 0", "-1"]),
])
def test_bad_requests_name_culprit_and_choices(arguments, words):
    with pytest.raises(ConfigError) as caught:
        build_workload(*arguments)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "options", "words"), [
    ("chainmm", {"tokens": 64}, ["option", "n, dtype_bytes", "'tokens'"]),
    ("ffnn", {"hidden": -1}, ["ffnn", "hidden", "integer >= 1", "-1"]),
    ("llama_stack", {"layers": 0}, ["llama_stack", "layers", "integer from 1 to 10000", "0"]),
    ("llama_block", {"dim": 100}, ["llama", "dim", "multiple of 2 * heads", "100"]),
])
def test_bad_options_name_culprit_and_choices(name, options, words):
    with pytest.raises(ConfigError) as caught:
        build_workload(name, 4, "small", **options)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("record", [None, {"name": "chainmm"}, {"name": "other", "options": {}}, {"name": "ffnn", "options": {"batch": 3}}])
def test_a_record_that_no_workload_wrote(record):
    with pytest.raises(ConfigError):
        workload_program(record)


def test_a_stack_of_too_many_layers_is_refused_at_once():
    with pytest.raises(ConfigError, match="layers: expected an integer from 1 to 10000, got 1000000000"):
        build_workload("llama_stack", 4, layers=1_000_000_000)


@pytest.mark.parametrize("pieces", [2, 3, 8])
@pytest.mark.parametrize("name", TINY)
def test_eindecomp_computes_the_same(name, pieces):
    graph = build_workload(name, 2, "small", tiling="eindecomp", pieces=pieces, **TINY[name])
    record = graph.attributes["workload"]
    assert record["tiling"] == {"method": "eindecomp", "pieces": pieces}
    program = workload_program(record)
    tensors = program.draw_inputs(0)
    assert relative_error(execute_tiles(graph, tensors), evaluate_program(program, tensors)) < 1e-5


def test_a_tiling_is_refused_where_there_is_none():
    for options, message in (({"tiling": "best"}, "tiling: expected one of published, data, tensor, mixed, eindecomp, got 'best'"),
                             ({"pieces": 4}, "pieces: expected none beside the published tiling, got 4; choose eindecomp"),
                             ({"tiling": "eindecomp", "pieces": 0}, "pieces: expected an integer >= 1, got 0")):
        assert message in refusal(ConfigError, build_workload, "ffnn", 2, "small", **options)
    assert "a random graph has no program to cut" in refusal(ConfigError, build_workload, "layered", 2, tiling="eindecomp")


def test_a_workload_without_a_tiling_is_cut_by_eindecomp(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "ffnn", replace(WORKLOADS["ffnn"], tiling=None))
    graph = build_workload("ffnn", 2, "small", **TINY["ffnn"])
    assert graph.attributes["workload"]["tiling"] == {"method": "eindecomp", "pieces": 2}
    assert graph.num_vertices == build_workload("ffnn", 2, "small", tiling="eindecomp", **TINY["ffnn"]).num_vertices
