"""`doctor` says what it finds, and what to do about each problem; it works where libraries are missing, break or end their process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from doppler_tf.api import checks as doctor
from doppler_tf.cli import doctor as command
from tests.cli.test_program import ROOT, process

WELL = {"errors": {"numpy": None, "tensorflow": None},
        "tensorflow": {"keras": "tf_keras 2.21.0", "cpus": 1, "gpus": [], "inter_op": 0, "intra_op": 0}}
BROKEN = {"errors": {"numpy": None, "tensorflow": "ImportError: libcudart.so: cannot open"}, "tensorflow": None}


@pytest.fixture(autouse=True)
def usual(monkeypatch, tmp_path):
    """Settings that `doctor` reads are as on most machines, and the cache is empty."""
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TF_XLA_FLAGS", doctor._KERAS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOPPLER_XLA_CACHE", str(tmp_path / "xla"))


@pytest.fixture
def probe_of(tmp_path):
    """`probe` where that shell script is Python."""
    def call(script: str, limit_s: float = 60) -> dict:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return doctor.probe(str(python), limit_s)
    return call


@pytest.fixture
def linux(tmp_path):
    """A machine with so much free memory and a control group with these files -> what `memory` reads."""
    def put(free_gib: float, **group: str) -> tuple[Path, Path]:
        (tmp_path / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:    {int(free_gib * 2**20)} kB\n")
        for name, text in group.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        return tmp_path / "meminfo", tmp_path
    return put


def test_all_is_well(tmp_path, linux):
    pins = tmp_path / "requirements.txt"
    pins.write_text(f"numpy=={version('numpy')}\n")
    meminfo, group = linux(3)
    checks = [doctor.python(), doctor.versions(pins), doctor.imports(WELL), doctor.keras_mode(WELL, None),
              doctor.devices(WELL, tmp_path / "no driver"), doctor.threads(WELL, group), doctor.memory(meminfo, group), doctor.compiled()]
    assert [check for check in checks if (check.state, check.remedy) != ("ok", "")] == []
    assert doctor.memory(meminfo, group).found == "3.0 GiB free, 2 GiB needed"
    result = doctor.summary(checks)
    assert (result["problems"], command.exit_code(result), len(command.render(result))) == (0, 0, 1)  # one table, none of remedies
    assert result["checks"][0] == {"check": "Python", "state": "ok", "found": checks[0].found, "remedy": None}


def test_problems_have_remedies_and_exit_code_1(tmp_path, linux):
    checks = [doctor.imports(BROKEN, tmp_path), doctor.keras_mode(BROKEN, None), doctor.devices(BROKEN), doctor.memory(*linux(1))]
    result = doctor.summary(checks)
    assert (result["problems"], command.exit_code(result), len(command.render(result))) == (4, 1, 2)
    imports, keras, devices, memory = result["checks"]
    assert imports["found"] == "tensorflow: ImportError: libcudart.so: cannot open"
    assert "requirements.txt" in imports["remedy"]
    assert keras["remedy"] == devices["remedy"] == "see imports"
    assert "2 GiB" in memory["remedy"]


def test_memory_is_what_machine_and_control_group_leave(tmp_path, linux):
    limited = linux(9, memory_max=f"{4 << 30}", memory_current=f"{1 << 30}")
    assert doctor.memory(*limited).found.startswith("3.0 GiB free")
    assert doctor.memory(*linux(9, memory_max="max")).found.startswith("9.0 GiB free")
    assert doctor.memory(tmp_path / "absent", tmp_path / "absent")[1:] == ("unknown on this system", "")


def test_versions_other_than_pinned(tmp_path):
    pins = tmp_path / "requirements.txt"
    pins.write_text("-c constraints.txt\n# numpy==1\nnumpy==0.1\nno-such-library==2.0\n")
    check = doctor.versions(pins)
    assert (check.state, check.found.split(", ")[1]) == ("problem", "no-such-library is missing (pinned: 2.0)")
    assert check.found.startswith("numpy 1.26.4 (pinned: 0.1)")
    assert doctor.versions(tmp_path / "absent.txt").state == "ok"


def test_what_is_missing_may_be_there_for_another_python(tmp_path):
    assert "requirements.txt" in doctor.imports(BROKEN, tmp_path).remedy
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    assert doctor.imports(BROKEN, tmp_path).remedy == "call it with .venv/bin/python"


def test_an_import_that_ends_the_process_is_named(probe_of):
    report = probe_of("""echo '{"trying": "numpy"}'; echo '{"trying": "tensorflow"}'; kill -4 $$""")
    assert report == {"errors": {"tensorflow": "ended its process with code -4"}, "tensorflow": None}
    assert "tensorflow" in doctor.imports(report).found


def test_a_probe_that_says_nothing_or_hangs(probe_of):
    assert probe_of("exit 3")["errors"] == {"the probe": "ended its process with code 3"}
    assert "more than 0.5 s" in probe_of("""echo '{"trying": "numba"}'; exec sleep 20""", 0.5)["errors"]["numba"]


@pytest.mark.parametrize(("given", "keras", "state"), [(None, "tf_keras 2.21.0", "ok"), ("1", "tf_keras 2.21.0", "ok"),
                                                       ("0", "tf_keras 2.21.0", "problem"), (None, "keras 3.15.1", "problem")])
def test_keras_must_be_2(given, keras, state):
    report = {**WELL, "tensorflow": {**WELL["tensorflow"], "keras": keras}}
    assert doctor.keras_mode(report, given).state == state


def test_a_gpu_that_tensorflow_does_not_find(monkeypatch, tmp_path):
    (driver := tmp_path / "version").touch()
    assert "and-cuda" in doctor.devices(WELL, driver).remedy
    report = {**WELL, "tensorflow": {**WELL["tensorflow"], "gpus": ["H100", "H100"]}}
    assert doctor.devices(report, driver)[1:] == ("1 CPU, 2 x H100", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.devices(WELL, driver).state == "ok"


def test_a_quota_below_the_cores(monkeypatch, linux):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    _, group = linux(1, cpu_max="250000 100000\n")
    check = doctor.threads(WELL, group)
    assert "8 of" in check.found
    assert "OMP_NUM_THREADS 4; a quota of 2.5 cores" in check.found
    assert check.remedy.startswith("taskset -c 0-1 ")
    linux(1, cpu_max="max 100000\n")
    assert doctor.threads(WELL, group).remedy == ""


def test_compiled_code_that_cannot_be_kept(monkeypatch, tmp_path):
    assert "0 programs by XLA (0 MB)" in doctor.compiled().found
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=(1 << 28) - 1))
        assert doctor.compiled().remedy.startswith("free 0.25 GiB there")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DOPPLER_XLA_CACHE", str(tmp_path / "file" / "xla"))
    assert "cannot be written" in doctor.compiled().found
    monkeypatch.setenv("DOPPLER_XLA_CACHE", "off")
    assert doctor.compiled()[2] == ""
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/elsewhere")
    assert "TF_XLA_FLAGS" in doctor.compiled().found


def test_without_any_library(tmp_path):
    """An environment of its own, with nothing in it."""
    venv.create(tmp_path / "empty", with_pip=False)
    done = subprocess.run([tmp_path / "empty/bin/python", "-m", "doppler_tf", "doctor", "--json"], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, check=False)
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert "numpy: ModuleNotFoundError" in found["imports"]["found"]
    assert "remedy for imports: " in done.stderr
    assert all(found[name]["remedy"] == "see imports" for name in ("Keras", "devices"))


def test_this_machine():
    done = process("-m", "doppler_tf", "doctor", "--json")
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == (1 if any(check["remedy"] for check in found.values()) else 0)
    assert list(found) == ["Python", "versions", "imports", "Keras", "devices", "threads", "memory", "compiled code"]
    assert found["imports"]["found"] == ", ".join(name.partition(".")[0] for name in doctor.MODULES)
    assert found["Keras"]["found"].startswith("tf_keras 2.")
    assert (found["imports"]["state"], found["Keras"]["state"]) == ("ok", "ok")
