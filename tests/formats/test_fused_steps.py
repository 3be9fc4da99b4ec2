"""The steps of a `fused` kernel in a file: refused when it is read, so that nobody has to run it to find out."""

import json

import numpy as np
import pytest

from data.numpy_kernels import run_kernel
from doppler_tf.errors import GraphError
from doppler_tf.formats.graph_json import read_graph


@pytest.fixture
def record():
    """A file's content: an input x, and b, which takes two steps."""
    steps = [{"name": name, "op": "map", "params": {"fn": fn, "subscripts": "a->a"}, "operands": [{"from": place, "slice": None}]}
             for place, (name, fn) in enumerate([("a", "relu"), ("b", "square")])]
    kernel = {"op": "fused", "params": {"steps": steps}, "operands": [{"vertex": "x"}]}
    nodes = [{"id": "x", "input": True}, {"id": "b", "flops": 2, "output_bytes": 24, "kernel": kernel}]
    return {"directed": True, "graph": {"name": "toy"}, "nodes": nodes, "edges": [{"source": "x", "target": "b"}]}


def read(record, path, params):
    record["nodes"][-1]["kernel"]["params"] = params
    path.write_text(json.dumps(record))
    return read_graph(path)


@pytest.mark.parametrize(("change", "message"), [
    (lambda params: params.clear(), "kernel.params.steps: expected a list of at least one step, got None"),
    (lambda params: params.update(steps=[]), "kernel.params.steps: expected a list of at least one step, got []"),
    (lambda params: params["steps"][0].pop("op"), "kernel.params.steps[0]: expected an object with 'op', 'operands' and 'params', got"),
    (lambda params: params["steps"].append(3), "kernel.params.steps[2]: expected an object with 'op', 'operands' and 'params', got 3"),
    (lambda params: params["steps"][0]["operands"][0].update({"from": 1}),
     "kernel.params.steps[0].operands: expected objects whose 'from' is < 1, the tensors known by then, got {'from': 1,"),
    (lambda params: params["steps"][1]["operands"][0].update({"from": -1}),
     "kernel.params.steps[1].operands: expected objects whose 'from' is < 2, the tensors known by then, got {'from': -1,"),
    (lambda params: params["steps"][1].update(operands=[7]), "kernel.params.steps[1].operands: expected objects whose 'from' is < 2"),
    (lambda params: params["steps"][1]["operands"][0].update(slice=[[2, 1]]),
     "kernel.params.steps[1].operands: expected objects whose 'slice' is null or a list of [start, stop], one an axis, got"),
])
def test_file_vertex_and_field_are_named(record, tmp_path, change, message):
    params = record["nodes"][-1]["kernel"]["params"]
    change(params)
    with pytest.raises(GraphError) as caught:
        read(record, tmp_path / "g.json", params)
    assert str(caught.value).startswith(f"{tmp_path / 'g.json'}: vertex 'b': {message}")


def test_steps_within_steps_are_checked_too(record, tmp_path):
    inner = {"op": "fused", "params": {"steps": []}, "operands": [{"from": 0, "slice": None}]}
    with pytest.raises(GraphError, match=r"vertex 'b': kernel.params.steps: expected a list of at least one step"):
        read(record, tmp_path / "g.json", {"steps": [inner]})


def test_an_unknown_operation_is_named_when_it_is_run(record, tmp_path):
    params = record["nodes"][-1]["kernel"]["params"]
    params["steps"][1]["op"] = "conv"
    graph = read(record, tmp_path / "g.json", params)
    with pytest.raises(GraphError, match=r"kernel: op: expected one of einsum, .*, got 'conv'"):
        run_kernel(graph.kernel[1], [np.zeros(3)])


def test_steps_in_order_are_taken(record, tmp_path):
    graph = read(record, tmp_path / "g.json", record["nodes"][-1]["kernel"]["params"])
    np.testing.assert_array_equal(run_kernel(graph.kernel[1], [np.array([-2.0, 3.0])]), [0.0, 9.0])
