"""`--topology local` is measured once; `compare --measure` runs everything beside TensorFlow alone. Processes of their own: TensorFlow's
devices are fixed once a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doppler_tf.errors import ExecutionError
from tests.cli.test_bad_input import refused

ROOT = Path(__file__).resolve().parents[2]


def command(*argv, **environment) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, "-m", "doppler_tf", *map(str, argv), "--json"], cwd=ROOT, capture_output=True, text=True,
                          timeout=180, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def graph(cli, tmp_path):
    path = tmp_path / "g.json"
    cli("workload", "chainmm", "--devices", 2, "--scale", "small", "--option", "n=64", "--out", path)
    return path


def test_this_machine_is_measured_once_and_a_second_graph_measures_only_what_is_new(cli, graph, tmp_path):
    def calibrate(path):
        return json.loads(command("calibrate", path, "--topology", "local", "--assignments", 2, "--repeats", 1, "--out", tmp_path / "out",
                                  DOPPLER_MACHINE=str(tmp_path / "machine")).stdout)

    first = calibrate(graph)
    cores = len(os.sched_getaffinity(0))
    assert first["topology"] == "local"
    assert first["profile"]["new_kernels"] == first["profile"]["kernels"] > 0
    stored = json.loads(next((tmp_path / "machine").glob("machine-*.json")).read_text())
    assert len(stored["topology"]["devices"]) == cores
    assert calibrate(graph)["profile"]["new_kernels"] == 0
    larger = tmp_path / "larger.json"
    cli("workload", "ffnn", "--devices", 2, "--scale", "small", "--out", larger)
    found = calibrate(larger)["profile"]
    assert found["new_kernels"] == found["kernels"] > 0
    assert found["vertices"] < found["unfused_vertices"]


def test_everything_runs_in_turn_beside_tensorflow_alone(graph, tmp_path):
    done = command("compare", graph, "--topology", "cpu:2", "--methods", "one_device,critical_path", "--measure", 3)
    rows = json.loads(done.stdout)["measured"]
    assert list(rows)[:2] == ["TensorFlow alone", "TensorFlow alone, XLA"]
    assert list(rows)[2:4] == ["one_device", "critical_path"]
    leader = min(("one_device", "critical_path"), key=lambda name: rows[name]["simulated_s"])
    assert list(rows)[4:] == [f"{leader}, with barriers", f"{leader}, TensorFlow's executor"]
    assert all(0 < row["low_s"] <= row["median_s"] <= row["high_s"] and row["runs"] == 3 for row in rows.values())
    assert rows["TensorFlow alone"]["simulated_s"] is None
    assert "measured on this machine: medians of 3 turns" in done.stderr


def test_graphs_without_kernels_cannot_be_measured(cli, diamond):
    refused(cli("compare", diamond, "--topology", "ideal:2", "--measure", 3, "--json"), "--measure", "kernels", "workload")


def test_a_program_that_tensorflow_alone_cannot_run_is_said(tmp_path):
    from doppler_tf.cli.plain_tensorflow import PlainTensorFlow

    with PlainTensorFlow(tmp_path / "absent.json") as plain, pytest.raises(ExecutionError, match="could not run the whole program"):
        plain.run("default")
