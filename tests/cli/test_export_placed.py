"""`export-placed`: what it writes and prints, and the user's mistakes."""

from __future__ import annotations

import json

import pytest

from data.capture import capture
from doppler_tf.formats.graph_json import write_graph
from runtime import prepare_devices
from tests.captured_models import MODELS
from tests.cli.test_bad_input import refused


@pytest.fixture
def model(tmp_path):
    """The graph file of a small captured model; the process has four devices, as in other tests that share it."""
    prepare_devices(4)
    path = tmp_path / "dense.json"
    write_graph(path, capture(*MODELS["dense"](), model_folder=tmp_path / "dense.model", name="dense", grouping=False))
    return path


def test_a_model_is_written_and_replaced(cli, model, tmp_path):
    placed, out = tmp_path / "assignment.json", tmp_path / "dense.placed"
    assert cli("place", model, "--topology", "cpu:2", "--method", "round_robin", "--out", placed).code == 0
    for topology in (), ("--topology", "cpu:2"):
        result = cli("export-placed", model, "--assignment", placed, "--out", out, *topology, "--json").json
        devices = json.loads((out / "devices.json").read_text())
        assert result["operations"] == len(devices) == sum(result["operations_by_device"].values())
        assert set(devices.values()) == set(result["operations_by_device"])
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(placed.read_text())["device"]))
    assert cli("export-placed", model, "--assignment", bare, "--topology", "cpu:2", "--out", out).code == 0
    refused(cli("export-placed", model, "--assignment", bare, "--out", out, "--json"), "bare.json", "--topology")


def test_mistakes(cli, model, diamond, write, tmp_path):
    placed, out = tmp_path / "assignment.json", tmp_path / "out"
    assert cli("place", diamond, "--topology", "ideal:2", "--method", "one_device", "--out", placed).code == 0
    refused(cli("export-placed", diamond, "--assignment", placed, "--out", out, "--json"), "diamond.json", "captured graph", "`capture`")
    refused(cli("export-placed", model, "--assignment", placed, "--out", out, "--json"), "assignment.json", "graph_hash", "another graph")
    nameless = write({"device": [0]}, "nameless.json")
    refused(cli("export-placed", model, "--assignment", nameless, "--out", out, "--json"), "nameless.json", "device_names", "--topology")
    assert cli("place", model, "--topology", "cpu:2", "--method", "one_device", "--out", placed).code == 0
    refused(cli("export-placed", model, "--assignment", placed, "--topology", "cpu:3", "--out", out, "--json"), "another topology")
    refused(cli("export-placed", model, "--assignment", placed, "--out", model, "--json"), "dense.json", "choose another")
    assert not out.exists()
