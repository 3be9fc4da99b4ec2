"""`place --measure`: what is written is the fastest of the finalists as run."""

from __future__ import annotations

import json

import pytest

from data import build_workload
from doppler_tf.formats.graph_json import write_graph
from tests.cli.test_bad_input import refused


def test_kernels_are_run_and_the_fastest_finalist_is_written(cli, tmp_path):
    write_graph(tmp_path / "g.json", build_workload("chainmm", 2, scale="small", n=64))
    outcome = cli("place", tmp_path / "g.json", "--topology", "cpu:2", "--measure", 60, "--out", tmp_path / "a.json", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    measured, written = found["measured"], json.loads((tmp_path / "a.json").read_text())
    assert {"one_device", "round_robin", "critical_path"} <= set(measured)
    assert sum(row["runs"] for row in measured.values()) <= 60
    assert all(row["low_s"] <= row["median_s"] <= row["high_s"] for row in measured.values() if row["runs"])
    simple = [measured[name]["median_s"] for name in ("one_device", "round_robin", "critical_path")]
    assert measured[found["chosen"]]["median_s"] <= min(simple)
    assert (written["method"], written["makespan_s"]) == (found["method"], measured[found["chosen"]]["simulated_s"])
    assert (found["reason"] is None) == (len({device for device in written["device"] if device is not None}) > 1)


def test_emulated_devices_are_as_modelled_and_the_table_shows_all(cli, diamond, tmp_path):
    outcome = cli("place", diamond, "--topology", "ideal:2", "--time-scale", 0.01, "--measure", 12, "--out", tmp_path / "a.json", "--json")
    found = outcome.json
    assert (found["makespan_s"], found["reason"]) == (4.0, None)
    assert found["measured"][found["chosen"]]["median_s"] == pytest.approx(4.0, rel=0.2)
    assert found["measured"]["one_device"]["simulated_s"] == 5.0
    assert found["measured"]["one_device"]["median_s"] == pytest.approx(5.0, rel=0.2)
    assert all(text in outcome.err for text in ("finalist", "half of all", "one_device"))


def test_one_run_compares_nothing_and_leaves_what_was_placed(cli, diamond):
    outcome = cli("place", diamond, "--topology", "ideal:2", "--time-scale", 0.01, "--measure", 1, "--json")
    assert outcome.json["makespan_s"] == 4.0
    assert all(row["median_s"] is None for row in outcome.json["measured"].values())
    assert "fewer runs than" in outcome.err


def test_one_device_is_explained(cli, write, tmp_path):
    """Two vertices that split cost more than together, and a transfer that the model says is free."""
    nodes = [{"id": v, "exec_s": 0.001} for v in range(2)]
    graph = write({"graph": {"name": "pair"}, "nodes": nodes, "edges": [{"source": 0, "target": 1, "transfer_s": 3}]}, "pair.json")
    found = cli("place", graph, "--topology", "ideal:2", "--time-scale", 0.01, "--measure", 12, "--json").json
    assert found["method"] in ("one_device", "critical_path")  # which has everything on one device, too
    assert "On one device the vertices ran in" in found["reason"]
    assert "on 2 devices at best (round_robin)" in found["reason"]


@pytest.mark.parametrize(("argv", "fragments"), [
    (["--measure", "8"], ["--measure", "diamond", "kernels", "--time-scale X"]),
    (["--measure", "0"], ["--measure", ">= 1"]),
    (["--time-scale", "1"], ["--time-scale", "--measure N"]),
])
def test_what_cannot_be_measured(cli, diamond, argv, fragments):
    refused(cli("place", diamond, "--topology", "ideal:2", *argv, "--json"), *fragments)
