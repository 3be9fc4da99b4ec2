"""Every example runs as its docstring says and prints what it promises."""

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
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, *argv: object) -> str:
    """What `python -m examples.NAME` prints."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", f"examples.{name}", *map(str, argv)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {
        "place_networkx", "run_on_devices", "collect_with_dynamic_episode_driver", "evaluate_with_py_driver", "custom_executor",
        "serve_http", "ask_server"}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_the_docstring_says_how_to_run_it(name):
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f".venv/bin/python -m examples.{name}" in source.split('"""')[1]
    assert len(source.splitlines()) <= 60


def test_place_networkx_names_a_device_for_every_vertex():
    *placed, last = run("place_networkx").splitlines()
    assert [line.split(": ")[0] for line in placed] == ["load", "left", "right", "join"]
    assert all(re.fullmatch(r"\w+: GPU:[0-3]", line) for line in placed)
    makespan_ms, bound_ms = map(float, re.fullmatch(r"([\d.]+) ms, at best ([\d.]+) ms", last).groups())
    assert makespan_ms == bound_ms  # a diamond this small is placed as well as can be


def test_the_readme_shows_that_very_example():
    source = (ROOT / "examples" / "place_networkx.py").read_text(encoding="utf-8")
    code = source.split('"""')[2].strip()
    assert code in (ROOT / "README.md").read_text(encoding="utf-8")


def test_run_on_devices_computes_what_the_program_says():
    printed = run("run_on_devices")
    assert "relative error against the unsharded program" in printed
    assert "(ok)" in printed
    assert "trace valid: True, work conserving: True" in printed
    assert float(re.search(r"measured ([\d.]+) ms", printed)[1]) > 0


def test_collecting_with_the_standard_driver_learns():
    printed = run("collect_with_dynamic_episode_driver")
    first, last = map(float, re.search(r"first five updates (-[\d.]+), of the last five (-[\d.]+)", printed).groups())
    assert last > first


def test_stage_three_learns_on_a_custom_executor():
    runs, planned, measured = run("custom_executor").splitlines()
    count, failed, invalid = map(int, re.fullmatch(r"(\d+) runs, (\d+) failed, (\d+) with an invalid trace", runs).groups())
    assert 40 <= count <= 48
    assert (failed, invalid) == (count // 10, 0)
    plan_ms, bound_ms = map(float, re.fullmatch(r"planned: ([\d.]+) ms, at best ([\d.]+) ms", planned).groups())
    before_ms, after_ms = map(float, re.fullmatch(r"measured: ([\d.]+) ms before stage III, ([\d.]+) ms after it", measured).groups())
    assert bound_ms <= plan_ms
    assert after_ms < before_ms  # links that are 20 times as slow as planned ask for another assignment


def doppler(*argv: object) -> dict:
    """The object that a command prints with `--json`."""
    command = [sys.executable, "-m", "doppler_tf", *map(str, argv), "--json"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300).stdout)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `chainmm.json` and `run`, a policy that was trained a little; and what `train` said of the graph."""
    folder = tmp_path_factory.mktemp("trained")
    doppler("workload", "chainmm", "--devices", 2, "--out", folder / "chainmm.json")
    said = doppler("train", folder / "chainmm.json", "--topology", "p100x4", "--run-dir", folder / "run", "--imitation", 16,
                   "--simulated", 0, "--set", "hidden=8", "--set", "rounds=1")
    return folder, said["graphs"]["chainmm"]


def test_the_standard_driver_and_metrics_evaluate_a_policy(trained):
    folder, said = trained
    row = re.compile(r"chainmm, (\w+): 16 episodes of 38 steps, average return (-[\d.]+), makespan ([\d.]+) ms, at best ([\d.]+) ms")
    found = {name: tuple(map(float, figures)) for name, *figures in
             (row.fullmatch(line).groups() for line in run("evaluate_with_py_driver", folder / "run").splitlines())}
    assert list(found) == ["greedy", "sampled", "random"]
    greedy, sampled, random = found.values()
    assert greedy[1] == greedy[2] == pytest.approx(1e3 * said["greedy_makespan_s"], abs=0.006)
    assert sampled[1] > sampled[2]
    assert random[1] > random[2]
    unit_ms = -greedy[1] / greedy[0]  # an average return of -1 is a makespan of the graph's work over its devices
    assert -sampled[0] * unit_ms == pytest.approx(sampled[1], rel=1e-3)


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
        assert placed == {"device": [0, 1], "order": [0, 1], "makespan_s": 2.5}  # 1 + 0.25 + 4 / 16 + 1, 3 on one device
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(url, {"inputs": {**inputs, "edges": [[0, 1], [1, 0]], "edge_bytes": [4, 4], "transfer_s": [1, 1]}})
        assert refused.value.code == 400
        assert "expected a graph without cycles" in json.load(refused.value)["error"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(url, {"inputs": {"exec_s": [[1]]}})
        assert "expected bandwidth_bytes_per_s, got none" in json.load(refused.value)["error"]
        printed = run("ask_server", folder / "chainmm.json", "p100x4", url)
        assert re.fullmatch(r"38 vertices placed: [\d.]+ ms as the server simulates, [\d.]+ ms here\n", printed)


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


def ask(url: str, request: dict) -> dict:
    with urllib.request.urlopen(f"{url}:predict", json.dumps(request).encode(), timeout=120) as answer:
        return json.load(answer)
