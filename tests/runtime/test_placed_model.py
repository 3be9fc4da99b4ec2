"""Captured models under an assignment as SavedModels, in processes that have TensorFlow alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from data.capture import capture
from doppler_tf.errors import FormatError
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.schedule.assignment import assignment_from_devices
from runtime.models.captured import captured_model
from runtime.models.placed_model import SCOPE, write_placed_model
from tests.captured_models import MODELS, Spec, draw

SCRIPT = Path(__file__).with_name("stock_tensorflow.py")


def split_convolution():
    """Two branches on halves of the channels, which can run side by side."""
    kernels = [tf.Variable(tf.random.stateless_normal([3, 3, 2, 4], [i, 7]), name=f"kernel_{i}") for i in range(2)]

    @tf.function
    def branches(x):
        halves = tf.split(x, 2, axis=3)
        made = [tf.nn.relu(tf.nn.conv2d(half, kernel, 1, "SAME") + 0.1) for half, kernel in zip(halves, kernels, strict=True)]
        return tf.reduce_mean(tf.concat(made, 3), [1, 2])
    return branches, Spec([2, 8, 8, 4])


def loops_that_share():
    """Loops read variables that updates on other devices change afterwards."""
    first, second = (tf.Variable(tf.eye(3) * scale, name=name) for scale, name in ((0.5, "first"), (0.25, "second")))

    @tf.function
    def step(x):
        y = tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.tanh(y @ first + second)), (0, x))[1]
        z = tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.sin(z @ second)), (0, x))[1]
        first.assign_add(tf.exp(y) @ x)
        second.assign_add(tf.exp(z) @ x)
        return y + z
    return step, Spec([3, 3])


@pytest.fixture
def exported(tmp_path, four_devices):
    """(function, graph, assignment, devices by operation): vertices take four devices in turn, groups stay together."""
    def make(model, grouping=True):
        function, specs = model()
        graph = capture(function, specs, model_folder=tmp_path / "model", grouping=grouping)
        first = {group: v % 4 for v, group in reversed([*enumerate(graph.colocate.tolist())])}
        devices = [v % 4 if group < 0 else first[group] for v, group in enumerate(graph.colocate.tolist())]
        assignment = assignment_from_devices(graph, build_costs(graph, read_topology("cpu:4")), devices)
        return function, graph, assignment, write_placed_model(tmp_path / "placed", graph, assignment, four_devices)
    return make


def run_alone(graph, tmp_path, *options):
    """What `stock_tensorflow.py` prints, and the arrays that it writes."""
    np.savez(tmp_path / "arguments.npz", **draw(graph, 0))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONSAFEPATH": "1"}
    command = [sys.executable, SCRIPT, tmp_path / "placed", "4", tmp_path / "arguments.npz", tmp_path / "results.npz", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "results.npz") as stored:
        return json.loads(done.stdout.splitlines()[-1]), dict(stored)


def check_devices(report, graph, placed):
    """The executor's own graphs agree with the file, apart from operations that TensorFlow has fused into one."""
    kinds = {name: node.op for name, node in captured_model(graph.attributes["captured"]["model"]).nodes.items()}
    ran = {name.partition(f"{SCOPE}/")[2]: where for name, where in report["ran"].items()}
    kept = {name for name in placed if ran.get(name, [None])[0] in (kinds[name], f"_Mkl{kinds[name]}")}
    assert {name: ran[name][1].partition("/device:")[2] for name in kept} == {name: placed[name].removeprefix("/device:") for name in kept}
    assert len({placed[name] for name in kept}) > 1
    assert report["ours"] == []
    return kept


@pytest.mark.parametrize(("model", "grouping", "options"), [
    (MODELS["dense"], False, ["1", "unfused"]),
    *(pytest.param(model, False, ["1"], marks=pytest.mark.thorough) for model in (split_convolution, loops_that_share))])
def test_tensorflow_alone_runs_each_operation_where_it_is_placed(exported, tmp_path, model, grouping, options):
    function, graph, _, placed = exported(model, grouping)
    report, results = run_alone(graph, tmp_path, *options)
    (feed,), (output,) = draw(graph, 0).values(), graph.attributes["captured"]["outputs"]
    expected = function(tf.constant(feed)).numpy()
    for call in ("0", "plain"):
        np.testing.assert_allclose(results[f"{call}/{output['name']}"], expected, rtol=1e-5, atol=1e-6)
    kept = check_devices(report, graph, placed)
    assert len(kept) >= 5
    assert "unfused" not in options or kept == placed.keys()
    assert json.loads((tmp_path / "placed" / "devices.json").read_text()) == placed


def test_a_training_step_keeps_its_state(exported, tmp_path):
    function, graph, assignment, placed = exported(MODELS["adam"])
    report, results = run_alone(graph, tmp_path, "3")
    captured = graph.attributes["captured"]
    losses = [function(*map(tf.constant, draw(graph, 0).values())).numpy() for _ in range(3)]
    np.testing.assert_allclose([results[f"{call}/{captured['outputs'][0]['name']}"] for call in range(3)], losses, rtol=1e-5)
    assert len(set(losses)) == 3
    check_devices(report, graph, placed)
    homes = {x["variable"]: int(assignment.device[graph.ids.index(x["vertex"])]) for x in captured["updates"]}
    assert len(set(homes.values())) > 1
    assert homes == {name: int(report["variables"][name].rpartition(":")[2]) for name in homes}


def test_what_it_replaces(exported, tmp_path):
    taken = tmp_path / "placed"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match="choose another"):
        exported(MODELS["dense"])
    assert [path.name for path in taken.iterdir()] == ["notes.txt"]
    (taken / "notes.txt").unlink()
    exported(MODELS["dense"])
    exported(MODELS["dense"])
    assert {path.name for path in tmp_path.iterdir()} == {"model", "placed"}
    assert (taken / "saved_model.pb").is_file()
