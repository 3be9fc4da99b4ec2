"""`bench` with worker processes: Ctrl-C ends them all, and a node that dies costs nothing but time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bench import cells
from tests.commands import ROOT


def heed_ctrl_c() -> None:
    """What a shell starts in the background ignores it, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def bench_alone(tmp_path):
    """Starts `bench` in a process group of its own, with an environment by which its descendants can be known."""
    mark = f"DOPPLER_TEST={uuid.uuid4().hex}"
    begun = []

    def start(*argv, out="bench") -> subprocess.Popen:
        command = [sys.executable, "-m", "doppler_tf", "bench", *map(str, argv), "--out", str(tmp_path / out)]
        begun.append(subprocess.Popen(command, cwd=ROOT, env=dict(os.environ, **dict([mark.split("=")])), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_ctrl_c))
        return begun[-1]

    def left() -> list[int]:
        """Processes that it has started and that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    start.left = left
    yield start
    for process in begun:
        process.kill()
        process.communicate()
    for number in left():
        os.kill(number, signal.SIGKILL)


def until(true: Callable[[], Any], limit_s: float = 60.0) -> None:
    """Waits until something is true."""
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, "too late"
        time.sleep(0.05)


def test_ctrl_c_leaves_no_process_and_what_is_done_is_kept(bench_alone, bench, tmp_path):
    """Every process of the terminal gets the signal, as from a keyboard."""
    how = ("--workload", "llama_block", "--topology", "p100x4", "--method", "heft", "annealing@3600s", "--seeds", 2)
    process = bench_alone(*how, "--jobs", 2)
    until(lambda: len(cells(tmp_path / "bench")) == 2 and len(bench_alone.left()) > 5)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1] == f"error: interrupted: {tmp_path / 'bench'}: 2 of 4 cells are done; the same command continues"
    until(lambda: not bench_alone.left(), 30)
    assert not list(Path("/tmp").glob(f"doppler-{process.pid}-*"))
    assert bench(*(word.replace("3600s", "20") if isinstance(word, str) else word for word in how)).json["kept"] == 2


@pytest.mark.thorough
def test_a_node_that_dies_half_way_costs_nothing_but_time(bench_alone, bench, write, tmp_path):
    """Two nodes of a core each; one is killed with all that runs on it. Three methods, one of which learns, and one that needs it."""
    suite = write("""
seeds = 3
[methods.learned]
method = "doppler"
settings = { imitation = 4, simulated = 8, batch = 4, hidden = 8, rounds = 1 }
[methods.equal]
method = "annealing"
simulations_of = "learned"
[methods.long]
method = "annealing"
simulations = 1000000
[[sections]]
methods = ["critical_path", "long", "learned", "equal"]
graphs = ["chainmm", "ffnn"]
topologies = ["p100x4"]
""", "suite.toml")
    alone = bench(suite, out="alone").json
    assert (alone["ran"], alone["failed"]) == (24, {})
    nodes = [sys.executable, "-m", "tests.ray_nodes"]
    cluster = subprocess.Popen(nodes, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        process = bench_alone(suite, "--ray", cluster.stdout.readline().strip())
        until(lambda: len(cells(tmp_path / "bench")) >= 8, 300)
        cluster.stdin.write("kill one\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        there = len(cells(tmp_path / "bench"))
        _, said = process.communicate(timeout=600)
    finally:
        cluster.communicate("end\n", timeout=60)
    assert process.returncode == 0, said
    assert there < 24
    assert "was lost; another one does it again" in said
    figures = [json.loads((tmp_path / name / "results.json").read_text())["cells"] for name in ("alone", "bench")]
    for record in [record for records in figures for record in records]:
        for wall_clock in ("seconds", "cpu_s", "files", "curve"):
            record.pop(wall_clock, None)
    assert figures[0] == figures[1]
