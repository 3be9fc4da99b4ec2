"""Examples and commands, called as a user calls them: in this process, or in one of their own where that matters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from doppler_tf.cli import main

ROOT = Path(__file__).parents[1]


def example(name: str, *argv: object) -> str:
    """What `python -m examples.NAME` prints; in this process, because TensorFlow takes long to start."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, *map(str, argv)])
        runpy.run_module(f"examples.{name}", run_name="__main__", alter_sys=True)
    return printed.getvalue()


def example_alone(name: str, *argv: object) -> str:
    """The same in a process of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", f"examples.{name}", *map(str, argv)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def doppler(*argv: object) -> dict:
    """The object that a command prints with `--json`; in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*map(str, argv), "--json"]) == 0, printed.getvalue()
    return json.loads(printed.getvalue())
