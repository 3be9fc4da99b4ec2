"""Workloads in Python files of the user's, named `file.py:NAME`, and the fingerprint by which a graph knows its program again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from data.einsum_program import EinsumProgram
from data.python_files import IN_FILE, attribute_of, run_file
from data.workloads.workload import Workload
from doppler_tf.errors import ConfigError, field_error


def in_file(name: str) -> tuple[Path, str] | None:
    """The file, absolute, and the name in it; None for a name without a file."""
    named = IN_FILE.fullmatch(name) if isinstance(name, str) else None
    return None if named is None else (Path(named[1]).resolve(), named[2])


def own_workload(path: Path, name: str) -> Workload:
    """The Workload, or the EinsumProgram, of this name in a Python file, which is run.

    Raises:
      FormatError: no such file. ConfigError: it has no such name, or another object. UserError: what its code raises.
    """
    found = attribute_of(run_file(path), name, path, "program", lambda value: isinstance(value, Workload | EinsumProgram))
    if isinstance(found, EinsumProgram):
        return Workload({}, {}, lambda sizes: found)
    if not isinstance(found, Workload):
        raise field_error(ConfigError, str(path), "", name, "a data.EinsumProgram or a data.Workload", found)
    for scale in ("paper", "small"):
        if not isinstance(sizes := getattr(found, scale), Mapping):
            raise field_error(ConfigError, str(path), name, scale, "sizes by name, as {'rows': 64}", sizes)
    return found


def fingerprint(program: EinsumProgram) -> str:
    """The same for programs with the same sizes, inputs, steps and outputs. How inputs are drawn does not count."""
    inputs = [(name, tensor.labels) for name, tensor in program.inputs.items()]
    steps = (sorted(program.sizes.items()), inputs, program.steps, program.outputs)
    return hashlib.sha256(repr(steps).encode()).hexdigest()[:16]
