"""The wheel holds all that runs, and the installed command works in an empty folder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("doppler_tf", "agents", "runtime", "data")
NOT_KEPT = shutil.ignore_patterns("__pycache__")
GRAPH = {"graph": {"name": "pair"}, "nodes": [{"id": "a", "exec_s": 2}, {"id": "b", "exec_s": 2}], "edges": []}


def pip(*argv: object) -> None:
    """pip for this Python, without network. `make setup` leaves it out of the environment; then the one that made the environment helps."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    has_pip = importlib.util.find_spec("pip") is not None
    call = [sys.executable, "-m", "pip"] if has_pip else [Path(sys.base_prefix, "bin", version), "-m", "pip", "--python", sys.executable]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run([*map(str, (*call, *argv))], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, as setuptools writes beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=NOT_KEPT)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", source, "--no-deps", "--no-build-isolation", "--wheel-dir", source / "wheels")
    (built,) = (source / "wheels").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder of packages that holds ours alone."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", wheel, "--no-deps", "--target", folder)
    # To compile takes 13 s. What Numba has compiled for the sources, if anything, serves files of the same times.
    for source in (ROOT / "doppler_tf").rglob("*"):
        there = folder / source.relative_to(ROOT)
        if source.suffix in (".nbi", ".nbc"):
            there.parent.mkdir(exist_ok=True)
            shutil.copy2(source, there)
        elif source.suffix == ".py":
            shutil.copystat(source, there)
    return folder


def call(installed: Path, folder: Path, *argv: object) -> subprocess.CompletedProcess:
    """A program in `folder` that finds our packages where they are installed, beside those of this environment."""
    path = os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([*map(str, argv)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_wheel_holds_every_file_of_the_rooms_and_no_other(wheel):
    expected = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert found == expected
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Dist: tensorflow<2.22,>=2.21" in metadata


def test_the_requirements_are_within_the_ranges():
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line)
    asked = {requirement.name: requirement.specifier for requirement in map(Requirement, project["dependencies"])}
    assert [name for name, allowed in asked.items() if pins[name] not in allowed] == []


def test_the_command_places_a_graph_in_an_empty_folder(installed, tmp_path):
    (tmp_path / "pair.json").write_text(json.dumps(GRAPH))
    (tmp_path / "empty").mkdir()
    argv = "place", "../pair.json", "--topology", "ideal:2", "--method", "heft", "--out", "placed.json", "--json"
    for program in ([installed / "bin" / "doppler-tf"], [sys.executable, "-m", "doppler_tf"]):
        done = call(installed, tmp_path / "empty", *program, *argv)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["makespan_s"] == 2.0
        assert sorted(json.loads((tmp_path / "empty" / "placed.json").read_text())["device"]) == [0, 1]


def test_the_command_says_its_name_and_ends_with_the_same_codes(installed, tmp_path):
    command = installed / "bin" / "doppler-tf"
    assert call(installed, tmp_path, command, "--help").stdout.startswith("usage: doppler-tf ")
    assert "doppler-tf place " in call(installed, tmp_path, command, "place", "--help").stdout
    assert call(installed, tmp_path, sys.executable, "-m", "doppler_tf", "--help").stdout.startswith("usage: python -m doppler_tf ")
    wrong = call(installed, tmp_path, command, "place")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.endswith("; see doppler-tf place --help\n")


def test_modules_in_the_users_folder_do_not_hide_ours_from_the_command(installed, tmp_path):
    (tmp_path / "pair.json").write_text(json.dumps(GRAPH))
    (tmp_path / "data.py").write_text("raise SystemExit('imported')")
    assert call(installed, tmp_path, installed / "bin" / "doppler-tf", "info", "pair.json").returncode == 0
    hidden = call(installed, tmp_path, sys.executable, "-m", "doppler_tf", "info", "pair.json")
    assert hidden.returncode == 2
    assert hidden.stderr.startswith(f"error: data: expected the package {installed / 'data'}, got another module of this name, ")
