"""Checks that Python finds this project's `data`, `runtime` and `agents`, because other modules may have these names."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import doppler_tf
from doppler_tf.errors import ConfigError

ROOMS = ("data", "runtime", "agents")
HOME = Path(doppler_tf.__file__).resolve().parents[1]


def check_rooms() -> None:
    """Looks for each room without importing it.

    Raises:
      ConfigError: a room is missing, or Python finds another module of its name first.
    """
    for room in ROOMS:
        found = _location(room)
        if found is None:
            raise ConfigError(f"{room}: expected this package in {HOME}, got none; install doppler_tf again")
        if found.resolve() != HOME / room:
            here = found.parent.resolve() == Path.cwd().resolve()
            raise ConfigError(f"{room}: expected the package {HOME / room}, got another module of this name, {found}, which Python finds "
                              "first; " + ("rename it, or call the command in another folder" if here else
                                           f"take {found.parent} off PYTHONPATH, or install doppler_tf in an environment of its own"))


def module_call(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run one of our modules in another process, which finds the same rooms.

    Python does not search the current folder, because it may hold modules with the names of the rooms.
    """
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": path}


def _location(room: str) -> Path | None:
    """A package's folder or a module's file; None if Python finds neither."""
    spec = find_spec(room)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or room)
