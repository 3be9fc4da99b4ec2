"""A small graph on disk, and the command line called in process."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from doppler_tf.cli import main

# Two inputs feed two independent vertices, which join: on two equal devices 2 + 1 + 1 with one transfer, 5 on one.
DIAMOND = {
    "graph": {"name": "diamond"},
    "nodes": [{"id": "x", "input": True}, {"id": "a", "exec_s": 2, "kind": "matmul"}, {"id": "b", "exec_s": 2, "kind": "matmul"},
              {"id": "c", "exec_s": 1, "kind": "add"}],
    "edges": [{"source": "x", "target": "a"}, {"source": "x", "target": "b"}, {"source": "a", "target": "c", "transfer_s": 1},
              {"source": "b", "target": "c", "transfer_s": 1}],
}


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The JSON object, which is the last line on stdout."""
        return json.loads(self.out.splitlines()[-1], parse_constant=lambda literal: pytest.fail(f"{literal} is not JSON"))


@pytest.fixture
def cli(capfd) -> Callable[..., Outcome]:
    """Runs a command in process; arguments are made strings."""

    def call(*argv) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in argv])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes a value as JSON (text as it is) and returns the path."""

    def put(value, name: str = "value.json") -> Path:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return put


@pytest.fixture
def diamond(write) -> Path:
    """The diamond's graph file."""
    return write(DIAMOND, "diamond.json")


@pytest.fixture
def record() -> dict:
    """The diamond's record, to be spoiled."""
    return copy.deepcopy(DIAMOND)


@pytest.fixture
def bench(cli, tmp_path):
    """Calls `bench` with its folder and --json."""
    return lambda *argv, out="bench": cli("bench", *argv, "--out", tmp_path / out, "--json")
