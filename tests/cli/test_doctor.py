"""`doctor` says what it finds, and what to do about each problem; it works where libraries are missing, break or end their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from doppler_tf.cli import doctor
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


def probe_is(monkeypatch, tmp_path, script: str) -> dict:
    """What `probe` reports where that shell script is Python."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return doctor.probe()


def test_all_is_well(cli, monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda: WELL)
    monkeypatch.setattr(doctor, "versions", lambda: doctor.Check("versions", "all as pinned"))
    monkeypatch.setattr(doctor, "_free_memory", lambda: 3 << 30)
    monkeypatch.setattr(doctor, "_quota", lambda: None)
    outcome = cli("doctor", "--json")
    assert (outcome.code, outcome.json["problems"]) == (0, 0), outcome.json
    names = ["Python", "versions", "imports", "Keras", "devices", "threads", "memory", "compiled code"]
    assert [check["check"] for check in outcome.json["checks"]] == names
    assert all((check["state"], check["remedy"]) == ("ok", None) for check in outcome.json["checks"])
    assert "3.0 GiB free, 2 GiB needed" in outcome.err
    assert "remedies" not in outcome.err


def test_problems_have_remedies_and_exit_code_1(cli, monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda: BROKEN)
    monkeypatch.setattr(doctor, "_free_memory", lambda: 1 << 30)
    monkeypatch.setattr(sys, "prefix", str(doctor.ROOT / ".venv"))
    outcome = cli("doctor")
    assert (outcome.code, "remedies" in outcome.out) == (1, True)
    found = {check["check"]: check for check in cli("doctor", "--json").json["checks"]}
    assert found["imports"]["found"] == "tensorflow: ImportError: libcudart.so: cannot open"
    assert "requirements.txt" in found["imports"]["remedy"]
    assert found["Keras"]["remedy"] == found["devices"]["remedy"] == "see imports"
    assert "2 GiB" in found["memory"]["remedy"]


def test_versions_other_than_pinned(tmp_path):
    pins = tmp_path / "requirements.txt"
    pins.write_text("-c constraints.txt\n# numpy==1\nnumpy==0.1\nno-such-library==2.0\n")
    check = doctor.versions(pins)
    assert (check.state, check.found.split(", ")[1]) == ("problem", "no-such-library is missing (pinned: 2.0)")
    assert check.found.startswith("numpy 1.26.4 (pinned: 0.1)")
    assert doctor.versions(tmp_path / "absent.txt").state == "ok"


def test_what_is_missing_may_be_there_for_another_python(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert "requirements.txt" in doctor.imports(BROKEN).remedy
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    assert doctor.imports(BROKEN).remedy == "call it with .venv/bin/python"


def test_an_import_that_ends_the_process_is_named(monkeypatch, tmp_path):
    report = probe_is(monkeypatch, tmp_path, """echo '{"trying": "numpy"}'; echo '{"trying": "tensorflow"}'; kill -4 $$""")
    assert report == {"errors": {"tensorflow": "ended its process with code -4"}, "tensorflow": None}
    assert "tensorflow" in doctor.imports(report).found


def test_a_probe_that_says_nothing_or_hangs(monkeypatch, tmp_path):
    assert probe_is(monkeypatch, tmp_path, "exit 3")["errors"] == {"the probe": "ended its process with code 3"}
    monkeypatch.setattr(doctor, "_PROBE_S", 0.5)
    assert "more than 0.5 s" in probe_is(monkeypatch, tmp_path, """echo '{"trying": "numba"}'; exec sleep 20""")["errors"]["numba"]


@pytest.mark.parametrize(("given", "keras", "state"), [(None, "tf_keras 2.21.0", "ok"), ("1", "tf_keras 2.21.0", "ok"),
                                                       ("0", "tf_keras 2.21.0", "problem"), (None, "keras 3.15.1", "problem")])
def test_keras_must_be_2(given, keras, state):
    report = {**WELL, "tensorflow": {**WELL["tensorflow"], "keras": keras}}
    assert doctor.keras_mode(report, given).state == state


def test_a_gpu_that_tensorflow_does_not_find(monkeypatch):
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/proc/driver/nvidia/version" or exists(path))
    assert "and-cuda" in doctor.devices(WELL).remedy
    report = {**WELL, "tensorflow": {**WELL["tensorflow"], "gpus": ["H100", "H100"]}}
    assert doctor.devices(report)[1:] == ("1 CPU, 2 x H100", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.devices(WELL).state == "ok"


def test_a_quota_below_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(doctor, "_quota", lambda: 2.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    check = doctor.threads(WELL)
    assert "8 of" in check.found
    assert "OMP_NUM_THREADS 4; a quota of 2.5 cores" in check.found
    assert check.remedy.startswith("taskset -c 0-1 ")


def test_compiled_code_that_cannot_be_kept(monkeypatch, tmp_path):
    assert "0 programs by XLA (0 MB)" in doctor.compiled().found
    monkeypatch.setattr(doctor, "NEEDED_DISK", 1 << 62)
    assert "free" in doctor.compiled().remedy
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
    assert found["imports"]["found"] == ", ".join(name.partition(".")[0] for name in doctor.MODULES)
    assert found["Keras"]["found"].startswith("tf_keras 2.")
    assert (found["imports"]["state"], found["Keras"]["state"]) == ("ok", "ok")
