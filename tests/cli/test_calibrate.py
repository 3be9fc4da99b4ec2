"""Profiling and comparing: the files it says it writes, usable by other commands; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_bad_input import refused

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_small_graph_on_real_kernels(cli, tmp_path):
    graph, out = tmp_path / "g.json", tmp_path / "out"
    cli("workload", "chainmm", "--devices", 2, "--scale", "small", "--option", "n=64", "--out", graph)
    outcome = cli("calibrate", graph, "--topology", "cpu:2", "--assignments", 4, "--repeats", 2, "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert (found["graph"], found["assignments"], found["repeats"], found["executor"]) == ("chainmm", 4, 2, "tf")
    assert 0 < found["profile"]["kernels"] < found["profile"]["vertices"]
    assert set(found["models"]) == {"given", "profiled"}
    assert all(0 <= row["median_error"] <= row["worst_error"] for row in found["models"].values())
    assert set(found["kinds"]) == {"matmul", "reduce", "add", "transfer"}
    assert found["makespans"][0]["devices"] == 1
    assert found["spread"] > 0
    assert all(min(record[f"{name}_s"] for name in ("measured", "given", "profiled")) > 0 for record in found["makespans"])
    assert [(link["source"], link["destination"]) for link in found["links"]] == [("CPU:0", "CPU:1"), ("CPU:1", "CPU:0")]

    files = {name: Path(path) for name, path in found["files"].items()}
    assert {path.name for path in out.iterdir()} == {path.name for path in files.values()}
    assert files["picture"].read_bytes().startswith(PNG)
    assert "(scatter.png)" in files["report"].read_text()
    figures = json.loads(files["figures"].read_text())
    assert figures == {key: found[key] for key in figures}

    placed = cli("place", files["graph"], "--topology", files["topology"], "--method", "one_device", "--json").json
    assert placed["makespan_s"] == found["makespans"][0]["profiled_s"]


def test_emulated_devices_need_no_kernels_and_have_nothing_to_profile(cli, diamond, tmp_path):
    outcome = cli("calibrate", diamond, "--topology", "ideal:2", "--executor", "emulated", "--time-scale", 0.005, "--assignments", 5,
                  "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert (found["profile"], found["links"], found["repeats"], list(found["models"])) == (None, [], 1, ["given"])
    assert set(found["files"]) == {"report", "figures", "picture"}
    assert min(record["given_s"] for record in found["makespans"]) >= 4.0
    assert all(record["measured_s"] >= record["given_s"] for record in found["makespans"])
    assert "median error" in outcome.err


def test_what_it_refuses(cli, diamond, tmp_path):
    argv = ("calibrate", diamond, "--topology", "ideal:2", "--json")
    refused(cli(*argv), "diamond", "kernel", "--executor emulated")
    refused(cli(*argv, "--executor", "synchronous"), "--executor", "tf, emulated", "synchronous")
    refused(cli(*argv, "--assignments", 0), "--assignments", ">= 1")
    (tmp_path / "file").write_text("")
    refused(cli(*argv, "--executor", "emulated", "--time-scale", 1e-4, "--assignments", 1, "--out", tmp_path / "file"), "cannot be written")


def test_out_of_memory_with_every_assignment_is_exit_code_1(cli, record, write):
    record["nodes"][1]["output_bytes"] = 100
    topology = write({"devices": [{"name": "d0", "memory_bytes": 10}]}, "tiny.json")
    outcome = cli("calibrate", write(record, "fat.json"), "--topology", topology, "--executor", "emulated", "--json")
    assert outcome.code == 1
    assert "out of memory" in outcome.json["error"]
