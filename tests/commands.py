"""Examples and commands, called as a user calls them: examples in a process of their own, commands in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from doppler_tf.cli import main

ROOT = Path(__file__).parents[1]


def example(name: str, *argv: object) -> str:
    """What `python -m examples.NAME` prints, in a process of its own: what this one has imported may hide a crash."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
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
