"""`--keep-devices`: the user's `tf.device` scopes through capture, place, run and export, and in `distribute`."""

from __future__ import annotations

import json

import numpy as np
import tensorflow as tf

import doppler_tf
from doppler_tf.formats.graph_json import read_graph
from tests.cli.test_bad_input import refused

MODULE = """
import tensorflow as tf

weights = tf.Variable(tf.random.stateless_normal([6, 6], [1, 2]), name="weights")
with tf.device("/CPU:1"):
    count = tf.Variable(0.0, name="count")

@tf.function
def step(x):
    with tf.device("/CPU:1"):
        left = tf.nn.relu(x @ weights, name="left")
    with tf.device("/CPU:0"):
        right = tf.nn.softmax(x @ weights, name="right")
    count.assign_add(1.0)
    return left, right
"""


def test_scopes_become_the_devices_that_run_them(cli, tmp_path):
    module, graph, placed = tmp_path / "towers.py", tmp_path / "g.json", tmp_path / "placed.json"
    module.write_text(MODULE)
    arguments = f"{module}:step", "--input", "x=f32[4,6]", "--no-grouping", "--out", graph, "--json"
    dropped = cli("capture", *arguments)
    assert [line for line in dropped.err.splitlines() if "tf.device" in line] == [
        f"{module}:step: the tf.device scopes of 5 operations were dropped; --keep-devices makes pins of them"]
    assert (dropped.json["scoped_operations"], dropped.json["pinned_vertices"]) == (5, 0)
    kept = cli("capture", *arguments, "--keep-devices")
    assert "dropped" not in kept.err
    assert kept.json["pinned_vertices"] == 5
    refused(cli("place", graph, "--topology", "cpu:1", "--out", placed, "--json"), "g.json", "(matmul)", "/device:CPU:1", "--keep-devices")
    for method in "heft", "partition":
        assert cli("place", graph, "--topology", "cpu:3", "--method", method, "--out", placed).code == 0
        found = dict(zip(read_graph(graph).names, json.loads(placed.read_text())["device"], strict=True))
        assert (found["left"], found["right"], found["AssignAddVariableOp"]) == (1, 0, 1)
    assert cli("run", graph, "--topology", "cpu:3", "--assignment", placed, "--executor", "tf", "--json").json["outputs_match"]
    assert cli("run", graph, "--topology", "cpu:3", "--assignment", placed, "--executor", "tf", "--repeat", 3, "--in-flight", 2,
               "--json").json["outputs_match"]
    assert cli("export-placed", graph, "--assignment", placed, "--out", tmp_path / "out").code == 0
    devices = json.loads((tmp_path / "out" / "devices.json").read_text())
    assert {name: devices[name][-1] for name in ("left", "right")} == {"left": "1", "right": "0"}


def test_distribute_keeps_them_or_says_that_they_are_dropped(monkeypatch):
    notes = []
    monkeypatch.setattr("doppler_tf.api.distribution.distribute.note", notes.append)

    @tf.function
    def towers(x):
        with tf.device("/CPU:1"):
            left = x @ x
        with tf.device("/CPU:0"):
            right = tf.tanh(x @ x)
        return left, right

    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    for keep in (True, False):
        with doppler_tf.distribute(towers, x, topology="cpu:2", budget_s=None, pieces=1, keep_devices=keep) as placed:
            for found, expected in zip(placed(x), towers(x), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            pins = {pin: int(d) for pin, d in zip(placed.graph.pin, placed.assignment.device, strict=True) if pin is not None}
            assert pins == ({"/device:CPU:0": 0, "/device:CPU:1": 1} if keep else {})
    assert notes == ["towers: the tf.device scopes of 3 operations were dropped; keep_devices=True keeps them"]
