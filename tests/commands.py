"""Examples and commands, called as a user calls them: each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def example(name: str, *argv: object) -> str:
    """What `python -m examples.NAME` prints."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", f"examples.{name}", *map(str, argv)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def doppler(*argv: object) -> dict:
    """The object that a command prints with `--json`."""
    command = [sys.executable, "-m", "doppler_tf", *map(str, argv), "--json"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300).stdout)
