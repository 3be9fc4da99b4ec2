"""A model of the user's own through the commands: captured, placed, run and measured, with the outputs of the original."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from data.capture import capture
from doppler_tf.errors import ConfigError, FormatError, GraphError
from doppler_tf.formats.graph_json import read_graph, write_graph
from runtime.models.captured_program import CapturedProgram
from tests.captured_models import MODELS
from tests.commands import doppler
from tests.crossed import crossed
from tests.messages import assert_says, refusal

# What draws random numbers anew at each run has no outputs to be equal to.
EXECUTED = [name for name in MODELS if "random" not in name]


@pytest.fixture
def captured(tmp_path):
    """Captures a small model and writes its graph."""

    def make(name, grouping=True):
        function, inputs = MODELS[name]()
        path = tmp_path / "graph.json"
        write_graph(path, capture(function, inputs, model_folder=tmp_path / "graph.model", grouping=grouping))
        return path

    return make


@pytest.mark.parametrize(*crossed(name=EXECUTED, how=[(1, "one_device"), (2, "round_robin"), (4, "random")]))
def test_a_model_runs_on_several_devices_with_the_outputs_of_the_original(name, how, captured, tmp_path):
    tf.random.set_seed(1)
    graph, placed, (devices, method) = captured(name, grouping=False), tmp_path / "placed.json", how
    doppler("place", graph, "--topology", f"cpu:{devices}", "--method", method, "--out", placed)
    result = doppler("run", graph, "--topology", f"cpu:{devices}", "--assignment", placed, "--executor", "tf", "--seed", devices)
    assert result["outputs_match"], result
    assert result["trace_valid"]
    assert result["work_conserving"]


def test_costs_are_measured_and_the_measured_graph_still_knows_its_model(captured, tmp_path):
    graph, out = captured("convolution"), tmp_path / "deeper" / "measured"
    result = doppler("calibrate", graph, "--topology", "cpu:2", "--assignments", 3, "--repeats", 1, "--out", out)
    assert result["profile"]["vertices"] == len(read_graph(graph).work_vertices)
    measured = read_graph(out / "graph.json")
    assert measured.attributes["captured"]["model"] == str(tmp_path / "graph.model")
    assert json.loads((out / "graph.json").read_text())["graph"]["captured"]["model"] == "../../graph.model"
    assert (measured.exec_s[measured.work_vertices] > 0).all()
    placed, topology = tmp_path / "placed.json", out / "topology.json"
    doppler("place", out / "graph.json", "--topology", topology, "--out", placed, "--measure", 1)
    assert doppler("run", out / "graph.json", "--topology", topology, "--assignment", placed, "--executor", "tf")["outputs_match"]


def test_tensorflow_alone_and_its_executor_stand_beside_the_engine(captured):
    result = doppler("compare", captured("several_outputs"), "--topology", "cpu:2", "--methods", "round_robin", "--measure", 1)
    alone = {f"TensorFlow alone, {mode}" for mode in ("plain", "frozen", "xla")}
    assert {*alone, "round_robin", "round_robin, TensorFlow's executor"} <= result["measured"].keys()


def test_what_xla_does_not_compile_is_left_out(tmp_path):
    graph = capture(lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0.0)), tf.TensorSpec([4]), model_folder=tmp_path / "g.model")
    write_graph(tmp_path / "g.json", graph)
    measured = doppler("compare", tmp_path / "g.json", "--topology", "cpu:2", "--methods", "one_device", "--measure", 1)["measured"]
    assert "TensorFlow alone, plain" in measured
    assert all(row["median_s"] > 0 for row in measured.values())


def test_inputs_come_from_a_file(captured, tmp_path):
    path, values = captured("dense"), tmp_path / "x.npz"
    graph = read_graph(path)
    (name,) = (x["name"] for x in graph.attributes["captured"]["inputs"])
    np.savez(values, **{name: np.full((2, 4), 3.0, np.float32)})
    program = CapturedProgram(graph, values=values)
    assert {array.sum() for array in program.inputs.values() if array.shape == (2, 4)} == {24.0}
    assert (program.relative_error({t: np.zeros((2, 3), np.float32) for t in program.fetch})) == pytest.approx(1)

    assert_says(refusal(FormatError, CapturedProgram, graph, values=tmp_path / "none.npz"), "none.npz: no such file")
    (tmp_path / "bad.npz").write_text("x")
    assert_says(refusal(FormatError, CapturedProgram, graph, values=tmp_path / "bad.npz"), "bad.npz: expected an NPZ file")
    np.save(tmp_path / "x.npy", np.zeros(2))
    assert_says(refusal(FormatError, CapturedProgram, graph, values=tmp_path / "x.npy"), "x.npy: expected an NPZ file", "numpy.savez")
    np.savez(values, other=np.zeros(1))
    assert_says(refusal(FormatError, CapturedProgram, graph, values=values),
                f"{name}: expected an array; the arguments are {name}, got None")
    np.savez(values, **{name: np.zeros((2, 5), np.float32)})
    assert_says(refusal(FormatError, CapturedProgram, graph, values=values),
                f"{name}: expected float32 of shape [2, 4], got float32 of [2, 5]; mend the array")


def test_what_is_inside_of_an_argument_has_its_path_in_a_file_too(tmp_path):
    x = np.array([1.0, 2.0, 3.0], np.float32)
    graph = capture(lambda d: d["zeta"] * 2.0 + d["a"], {"zeta": x, "a": x}, model_folder=tmp_path / "model")
    np.savez(tmp_path / "x.npz", **{"d/zeta": x, "d/a": x + 1.0})
    program = CapturedProgram(graph, values=tmp_path / "x.npz")
    outputs, _ = program.original(program.arguments)
    np.testing.assert_array_equal(outputs["output"], 3.0 * x + 1.0)


def test_results_of_another_structure_or_type_do_not_match(tmp_path):
    x = np.array([1.0, 2.0, 3.0], np.float32)
    graph = capture(lambda x: {"g": tf.IndexedSlices(x * 2.0, tf.constant([0, 1, 2])), "y": x + 1.0}, x, model_folder=tmp_path / "model")
    program = CapturedProgram(graph)
    expected, _ = program.original(program.arguments)
    made = {program.results[name]: value for name, value in expected.items()}
    assert program.relative_error(made) == 0
    assert program.relative_error({**made, program.results["y"]: expected["y"].astype(np.float64)}) == float("inf")
    graph.attributes["captured"]["outputs"][0]["composite"] = "SparseTensor"
    assert CapturedProgram(graph).relative_error(made) == float("inf")


def test_drawn_inputs_follow_the_seed(captured):
    graph = read_graph(captured("embedding"))
    first, again, other = (CapturedProgram(graph, seed).arguments for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert set(np.unique(array)) <= {0, 1}
    assert any((other[name] != array).any() for name, array in first.items())


def test_what_belongs_together_and_was_parted(captured, tmp_path):
    path = captured("dense")
    record = json.loads(path.read_text())
    (tmp_path / "graph.model").rename(tmp_path / "elsewhere")
    assert_says(refusal(FormatError, CapturedProgram, read_graph(path)), "graph.model: expected the folder of a captured model")
    for wrong in (None, {}, {"model": 3}):
        path.write_text(json.dumps({**record, "graph": {**record["graph"], "captured": wrong}}))
        assert_says(refusal(GraphError, read_graph, path),
                    "graph.captured: expected an object with 'model', the folder of the captured model")
    (tmp_path / "elsewhere").rename(tmp_path / "graph.model")
    path.write_text(json.dumps({**record, "graph": {**record["graph"], "captured": {"model": "graph.model"}}}))
    assert_says(refusal(GraphError, CapturedProgram, read_graph(path)), "captured: expected the record that `capture` writes")


def test_inputs_are_for_captured_models(tmp_path, capsys):
    from doppler_tf.api.executors import load_program

    graph = tmp_path / "ffnn.json"
    doppler("workload", "ffnn", "--devices", 2, "--scale", "small", "--out", graph)
    assert_says(refusal(ConfigError, load_program, read_graph(graph), 0, tmp_path / "x.npz"),
                "--inputs: expected a captured graph, got ffnn")
