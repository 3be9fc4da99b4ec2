"""Training that is killed at random moments goes on from its last checkpoint and ends as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agents.checkpoints import checkpoint_folders, read_state
from doppler_tf.formats.graph_json import write_graph

ROOT = Path(__file__).parents[2]
CONFIG = {"imitation": 16, "batch": 8, "hidden": 8, "rounds": 1, "checkpoint_every": 2}


def start(graph: Path, run: Path, kills: int) -> subprocess.Popen:
    """A training, new or resumed, as a process of its own; long enough for each kill to come before its end."""
    config = {**CONFIG, "simulated": 400 + 100 * kills}
    resume = ("--resume",) if (run / "config.json").exists() else [f"--set={name}={value}" for name, value in config.items()]
    command = [sys.executable, "-m", "doppler_tf", "train", str(graph), "--topology", "ideal:2", "--run-dir", str(run), *resume]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(training: subprocess.Popen) -> None:
    _, said = training.communicate(timeout=300)
    assert training.returncode == 0, said[-2000:]


def outcome(run: Path) -> dict:
    figures = json.loads((run / "result.json").read_text())["graphs"]["chains"]
    return {key: figures[key] for key in ("greedy_makespan_s", "best_makespan_s", "episodes")}


def wait_for_checkpoint(training: subprocess.Popen, run: Path, later_than: int) -> None:
    """Until there is a new checkpoint, so that every kill comes while the training is under way."""
    end = time.monotonic() + 120
    while last_step(run) <= later_than and training.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def last_step(run: Path) -> int:
    folders = checkpoint_folders(run / "checkpoints")
    return int(folders[-1].name.removeprefix("step-")) if folders else 0


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [20])
def test_kills(tmp_path, chains, kills):
    graph, rng = tmp_path / "chains.json", np.random.default_rng(0)
    write_graph(graph, chains(4))
    finish(start(graph, tmp_path / "undisturbed", kills))
    run, killed = tmp_path / "killed", 0
    for _ in range(kills):
        training, before = start(graph, run, kills), last_step(run)
        if rng.random() < 0.8:  # else it is killed wherever it is: importing, opening the run, restoring
            wait_for_checkpoint(training, run, before)
            time.sleep(rng.exponential(0.05))
        else:
            time.sleep(rng.uniform(0, 10))
        training.send_signal(signal.SIGKILL)
        training.communicate()
        killed += training.returncode == -signal.SIGKILL
        for folder in checkpoint_folders(run / "checkpoints"):
            assert read_state(folder)["step"] == int(folder.name.removeprefix("step-"))
    assert killed == kills  # none was over before
    finish(start(graph, run, kills))
    assert outcome(run) == outcome(tmp_path / "undisturbed")
    assert [path.name for path in (run / "checkpoints").glob(".*")] == []  # nothing half-written is left behind
