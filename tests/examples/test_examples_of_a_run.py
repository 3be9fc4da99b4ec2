"""The examples that take a training run: evaluate its policy, save it, serve it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.topology import preset
from tests.commands import ROOT, doppler, example


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `chainmm.json` and `run`, a policy that was trained a little; and what `train` said of the graph."""
    folder = tmp_path_factory.mktemp("trained")
    doppler("workload", "chainmm", "--devices", 2, "--out", folder / "chainmm.json")
    said = doppler("train", folder / "chainmm.json", "--topology", "p100x4", "--run-dir", folder / "run", "--imitation", 16,
                   "--simulated", 0, "--set", "hidden=8", "--set", "rounds=1")
    return folder, said["graphs"]["chainmm"]


@pytest.mark.thorough  # the drivers themselves: tests/agents/test_driver.py
def test_the_standard_driver_and_metrics_evaluate_a_policy(trained):
    folder, said = trained
    row = re.compile(r"chainmm, (\w+): 16 episodes of 38 steps, average return (-[\d.]+), makespan ([\d.]+) ms, at best ([\d.]+) ms")
    found = {name: tuple(map(float, figures)) for name, *figures in
             (row.fullmatch(line).groups() for line in example("evaluate_with_py_driver", folder / "run").splitlines())}
    assert list(found) == ["greedy", "sampled", "random"]
    greedy, sampled, random = found.values()
    assert greedy[1] == greedy[2] == pytest.approx(1e3 * said["greedy_makespan_s"], abs=0.006)
    assert sampled[1] > sampled[2]
    assert random[1] > random[2]
    unit_ms = -greedy[1] / greedy[0]  # an average return of -1 is a makespan of the graph's work over its devices
    assert -sampled[0] * unit_ms == pytest.approx(sampled[1], rel=1e-3)


@pytest.mark.thorough  # that scripts may import TF-Agents first: tests/agents/test_keras.py
def test_the_standard_saver_keeps_a_policy(trained, tmp_path):
    folder, said = trained
    saved = tmp_path / "saved"
    row = re.fullmatch(r"chainmm: ([\d.]+) ms by the policy, ([\d.]+) ms by (.*), (\d+) of (\d+) actions the same\n",
                       example("save_policy", folder / "run", saved))
    assert float(row[1]) == float(row[2]) == pytest.approx(1e3 * said["greedy_makespan_s"], abs=0.0006)
    assert row[3] == str(saved / "chainmm")
    assert row[4] == row[5] == "38"
    assert {path.name for path in (saved / "chainmm").iterdir()} >= {"saved_model.pb", "policy_specs.pbtxt", "variables"}


@pytest.mark.thorough  # the model itself: tests/agents/test_export.py
def test_a_model_is_served_over_http(trained, tmp_path):
    """Trained, exported, served, asked: as a user does it."""
    folder, _ = trained
    doppler("export", folder / "run", "--out", tmp_path / "models")
    with serving(tmp_path / "models") as url:
        with urllib.request.urlopen(url) as answer:
            assert json.load(answer) == {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}
        link = [[0, 0.25], [0.25, 0]]
        inputs = {"exec_s": [[1, 2], [2, 1]], "edges": [[0, 1]], "edge_bytes": [4], "transfer_s": [math.nan], "latency_s": link,
                  "bandwidth_bytes_per_s": [[1, 16], [16, 1]], "output_bytes": [4, 4], "memory_bytes": [math.inf, 100],
                  "samples": 32, "seed": 1}
        placed = ask(url, {"signature_name": "place", "inputs": inputs})["outputs"]
        # 1 + 0.25 + 4 / 16 + 1; on one device 3
        assert placed == {"device": [0, 1], "order": [0, 1], "makespan_s": 2.5, "dispatch": "order"}
        alone = {**inputs, "edges": [], "edge_bytes": [], "transfer_s": []}  # JSON does not tell the shape of nothing
        assert ask(url, {"inputs": alone})["outputs"]["makespan_s"] == 1.0
        for request, message in [
                ({"inputs": {**inputs, "edges": [[0, 1], [1, 0]], "edge_bytes": [4, 4], "transfer_s": [1, 1]}}, "[edges: expected a graph"),
                ({"inputs": {"exec_s": [[1]]}}, "inputs: expected bandwidth_bytes_per_s, got none"),
                ({"inputs": {**inputs, "device": [0]}}, "inputs: expected no device, got one"),
                ({"inputs": {**inputs, "edges": [[0, 2**32 + 1]]}}, "edges: expected integers of 32 bits, got 0 to 4294967297"),
                ({"inputs": {**inputs, "samples": 2**70}}, "samples: expected int32 [], got object []"),
                ({"inputs": {**inputs, "samples": True}}, "samples: expected int32 [], got bool []"),
                ({"inputs": {**inputs, "seed": [1]}}, "seed: expected int32 [], got int64 [1]"),
                ({"inputs": {**inputs, "exec_s": [[1], [1, 2]]}}, "exec_s: expected rows of equal length"),
                ({"inputs": {**inputs, "exec_s": None}}, "exec_s: expected float64 [None, None], got object []"),
                ({"inputs": inputs, "signature_name": "nope"}, "signature_name: expected one of"),
                ([1, 2], "expected an object"), (None, "expected an object")]:
            assert refusal(url, request)[0] == 400
            assert refusal(url, request)[1].startswith(message)
        for elsewhere in (url.replace("doppler", "other"), f"{url}/versions/7"):
            assert refusal(elsewhere, {"inputs": inputs})[0] == 404
        with ThreadPoolExecutor(30) as many:
            answers = list(many.map(lambda _: ask(url, {"inputs": inputs})["outputs"], range(30)))
        assert answers == [placed] * 30
        write_topology(tmp_path / "free.json", replace(preset("p100x4"), link_slots=None))
        printed = example("ask_server", folder / "chainmm.json", tmp_path / "free.json", url)
        times = re.fullmatch(r"38 vertices placed: ([\d.]+) ms as the server simulates, ([\d.]+) ms here\n", printed)
        assert times[1] == times[2]  # where links never wait, the server's simulation is exact


@contextlib.contextmanager
def serving(models: Path) -> Iterator[str]:
    """The example's server; yields the model's address."""
    command = [sys.executable, "-m", "examples.serve_http", str(models), "0"]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as server:
        try:
            yield server.stdout.readline().split(" at ")[1].strip()
        finally:
            server.kill()


def refusal(url: str, request) -> tuple[int, str]:
    """The status and the error of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(url, request)
    return refused.value.code, json.load(refused.value)["error"]


def ask(url: str, request) -> dict:
    with urllib.request.urlopen(f"{url}:predict", json.dumps(request).encode(), timeout=120) as answer:
        return json.load(answer)
