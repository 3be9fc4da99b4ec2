"""Another module that has the name of one of our rooms is named, before it does harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from doppler_tf.api.rooms import ROOMS, module_call
from doppler_tf.cli.app import USERS_MISTAKE

ROOT = Path(__file__).resolve().parents[2]


def call(folder: Path, *argv: str, path: str = "") -> subprocess.CompletedProcess:
    """The program in another folder, which it is not installed in."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT), os.environ.get("PYTHONPATH"))))}
    return subprocess.run([sys.executable, *argv], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def plant(folder: Path, room: str, package: bool) -> Path:
    """A module of that name, which must not be imported."""
    module = folder / room / "__init__.py" if package else folder / f"{room}.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text("raise SystemExit('imported')")
    return module.parent if package else module


@pytest.mark.parametrize(("room", "package"), [("data", False), ("agents", True), ("runtime", False)])
def test_a_module_in_the_users_folder(tmp_path, diamond, room, package):
    found = plant(tmp_path / "mine", room, package)
    done = call(tmp_path / "mine", "-m", "doppler_tf", "info", str(diamond), "--json")
    assert done.returncode == USERS_MISTAKE
    assert done.stderr == (f"error: {room}: expected the package {ROOT / room}, got another module of this name, {found}, which Python "
                           "finds first; rename it, or call the command in another folder\n")
    assert call(tmp_path / "mine", "-m", "doppler_tf", "--help").returncode == 0


def test_a_module_on_the_path(tmp_path, diamond):
    found = plant(tmp_path / "theirs", "agents", package=True)
    done = call(tmp_path, "-m", "doppler_tf", "info", str(diamond), path=str(found.parent))
    assert done.returncode == USERS_MISTAKE
    assert done.stderr.startswith(f"error: agents: expected the package {ROOT / 'agents'}, got another module of this name, {found}, ")
    assert f"; take {found.parent} off PYTHONPATH, or" in done.stderr


def test_a_folder_that_is_no_package_does_no_harm(tmp_path, diamond):
    for room in ROOMS:
        (tmp_path / "mine" / room).mkdir(parents=True)
    assert call(tmp_path / "mine", "-m", "doppler_tf", "info", str(diamond)).returncode == 0


def test_processes_of_ours_find_our_rooms_wherever_they_start(tmp_path):
    plant(tmp_path, "data", package=False)
    (python, *options, _, _), environment = module_call("doppler_tf")
    done = subprocess.run([python, *options, "-c", "import data; print(data.__path__)"], cwd=tmp_path, env=environment, capture_output=True,
                          text=True, check=False)
    assert done.stdout == f"{[str(ROOT / 'data')]}\n", done.stderr
