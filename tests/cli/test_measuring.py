"""`--topology local` is measured once; `compare --measure` runs everything beside TensorFlow alone."""

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


@pytest.mark.thorough
def test_this_machine_is_measured_once(cli, tmp_path):
    """In processes of their own: TensorFlow's devices, here as many as cores, are fixed once a process."""
    graph = tmp_path / "g.json"
    small = [f"--option={name}=32" for name in ("batch", "features", "hidden")]
    cli("workload", "ffnn", "--devices", 2, "--scale", "small", *small, "--out", graph)
    argv = ("calibrate", graph, "--topology", "local", "--assignments", 2, "--repeats", 1, "--out", tmp_path / "out", "--json")

    def calibrate():
        done = subprocess.run([sys.executable, "-m", "doppler_tf", *map(str, argv)], cwd=ROOT, capture_output=True, text=True, timeout=180,
                              check=False, env={**os.environ, "DOPPLER_MACHINE": str(tmp_path / "machine")})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = calibrate()
    cores = len(os.sched_getaffinity(0))
    assert first["topology"] == "local"
    assert first["profile"]["new_kernels"] == first["profile"]["kernels"] > 0
    stored = json.loads(next((tmp_path / "machine").glob("machine-*.json")).read_text())
    assert len(stored["topology"]["devices"]) == cores
    assert first["profile"]["vertices"] < first["profile"]["unfused_vertices"]
    assert calibrate()["profile"]["new_kernels"] == 0


def test_everything_runs_in_turn_beside_tensorflow_alone(cli, tmp_path):
    graph = tmp_path / "g.json"
    cli("workload", "chainmm", "--devices", 2, "--scale", "small", "--option", "n=64", "--out", graph)
    outcome = cli("compare", graph, "--topology", "cpu:2", "--methods", "one_device,critical_path", "--measure", 3, "--json")
    assert outcome.code == 0, outcome.err
    rows = outcome.json["measured"]
    assert list(rows)[:2] == ["TensorFlow alone, plain", "TensorFlow alone, xla"]
    assert list(rows)[2:4] == ["one_device", "critical_path"]
    leader = min(("one_device", "critical_path"), key=lambda name: rows[name]["simulated_s"])
    assert list(rows)[4:] == [f"{leader}, with barriers", f"{leader}, TensorFlow's executor"]
    assert all(0 < row["low_s"] <= row["median_s"] <= row["high_s"] and row["runs"] == 3 for row in rows.values())
    assert rows["TensorFlow alone, plain"]["simulated_s"] is None
    assert "measured on this machine: medians of 3 turns" in outcome.err


@pytest.mark.thorough  # another TensorFlow alone: the engine runs plans in tests/offload
def test_what_is_kept_on_the_host_runs_in_turn_on_the_engine(cli, tmp_path):
    graph = tmp_path / "g.json"
    cli("workload", "chainmm", "--devices", 2, "--scale", "small", "--option", "n=64", "--out", graph)
    outcome = cli("compare", graph, "--topology", "cpu:2", "--memory", "45kB", "--methods", "round_robin", "--measure", 1, "--json")
    rows, measured = outcome.json["methods"], outcome.json["measured"]
    assert all(row["reloads"] > 0 for row in rows.values())
    assert list(measured)[2:] == ["round_robin", "round_robin, by a pager"]
    assert all(measured[name]["simulated_s"] == row["makespan_s"] and measured[name]["median_s"] > 0 for name, row in rows.items())


def test_graphs_without_kernels_cannot_be_measured(cli, diamond):
    refused(cli("compare", diamond, "--topology", "ideal:2", "--measure", 3, "--json"), "--measure", "kernels", "workload")


def test_a_program_that_tensorflow_alone_cannot_run_is_said(tmp_path):
    from doppler_tf.api.comparison.plain_tensorflow import PlainTensorFlow

    with PlainTensorFlow(tmp_path / "absent.json") as plain, pytest.raises(ExecutionError, match="could not run the whole program"):
        plain.run("plain")
