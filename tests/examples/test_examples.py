"""Every example runs as its docstring says and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str) -> str:
    """What `python -m examples.NAME` prints."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {
        "place_networkx", "run_on_devices", "collect_with_dynamic_episode_driver"}


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
