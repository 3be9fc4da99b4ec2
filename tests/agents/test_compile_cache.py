"""What XLA compiles stays on disk, and a folder that is of no use, or does harm, is left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.compile_cache import keep_compiled

ROOT = Path(__file__).resolve().parents[2]
WHOLE = b"\x0a\x01k\x12\xc8\x01" + 200 * b"p" + b"\x1a\x02cc"  # a key, a program of 200 bytes, code
LEARN = """
from doppler_tf.api.tensorflow import prepare_tensorflow
prepare_tensorflow()
from agents import summaries
from agents.config import TrainConfig
from agents.training.learner import Learner
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.task import Task
from data import build_workload
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import p100x4
graph = build_workload("chainmm", 2)
task = Task.of([graph], [build_costs(graph, p100x4())], TrainConfig(hidden=8, rounds=1, batch=2, simulated=200))
learner = Learner(task)
stage = SimulatedStage(Training.of(task, learner))
for step in range(2):
    scalars = stage.update(step, 0.0)["chainmm"]
    print({tag: value.hex() for tag, value in scalars.items() if tag != summaries.RATE})
print([v.numpy().tobytes().hex() for v in learner.network.variables])
"""


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """keep_compiled() under other variables of the environment -> its folder and TF_XLA_FLAGS; by default in `tmp_path`."""
    def keep(flags="", **variables):
        for name, value in {"DOPPLER_XLA_CACHE": str(tmp_path), "TF_XLA_FLAGS": flags, **variables}.items():
            monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
        return keep_compiled(), os.environ["TF_XLA_FLAGS"]
    return keep


def entry(folder: Path, name: str, content: bytes = WHOLE, written_s: float = 1e9) -> Path:
    """An entry as TensorFlow names them, written so many seconds after 1970."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"xla_compile_cache__{name}__XLA_CPU_JIT.pb"
    path.write_bytes(content)
    os.utime(path, (written_s, written_s))
    return path


def large(folder: Path, name: str, written_s: float, size: int = 1 << 29) -> Path:
    """A whole entry of so many bytes, most of which are a hole."""
    key, code = b"\x0a\x01k\x12", b"\x1a\x02cc"
    length = size - len(key) - 5 - len(code)
    path = entry(folder, name, key + bytes(length >> 7 * i & 127 | (128 if i < 4 else 0) for i in range(5)))
    with path.open("r+b") as file:
        file.seek(size - len(code))
        file.write(code)
    os.utime(path, (written_s, written_s))
    return path


@pytest.mark.thorough
def test_a_second_process_is_served_and_learns_the_same(tmp_path):
    def learn() -> str:
        environment = {**os.environ, "DOPPLER_XLA_CACHE": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run([sys.executable, "-c", LEARN], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert "XlaSerializedCacheEntry" not in done.stderr
        assert "cpu_aot_loader" not in done.stderr
        return done.stdout

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}

    cold, first = learn(), written()
    broken = min(first, key=lambda path: path.stat().st_size)
    os.truncate(broken, broken.stat().st_size // 2)
    assert learn() == cold
    second = written()
    assert len(first) >= 3  # episodes, the elite's, the update
    assert {path for path in second if second[path] != first.get(path)} == {broken}
    assert second.keys() == first.keys()


def test_the_folder_is_added_to_the_users_flags_and_a_parents_is_replaced(kept, tmp_path):
    folder, flags = kept("--tf_xla_clustering_debug=false", DOPPLER_XLA_CACHE=str(tmp_path / "a b"))
    assert folder.parent == tmp_path / "a b"
    ours = f'--tf_xla_persistent_cache_directory="{tmp_path}/a b/{folder.name}" --tf_xla_persistent_cache_device_types=CPU'
    assert flags == f"--tf_xla_clustering_debug=false {ours}"
    _, inherited = kept("--tf_xla_clustering_debug=false")
    assert kept(inherited) == (tmp_path / folder.name, inherited)
    assert kept(inherited, DOPPLER_XLA_CACHE="off") == (None, "--tf_xla_clustering_debug=false")


@pytest.mark.parametrize("flags", ["--tf_xla_persistent_cache_directory=/mine", "flags.txt"])
def test_a_folder_that_the_user_names_stays(kept, flags):
    assert kept(flags) == (None, flags)


@pytest.mark.parametrize("value", ["0", "off", "OFF"])
def test_the_user_can_switch_it_off(kept, value):
    assert kept(DOPPLER_XLA_CACHE=value) == (None, "")


@pytest.mark.parametrize("named", [None, ""])
def test_by_default_it_stands_among_the_users_caches(kept, tmp_path, named):
    assert kept(DOPPLER_XLA_CACHE=named, XDG_CACHE_HOME=str(tmp_path))[0].parent == tmp_path / "doppler_tf" / "xla"
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": None}
    assert kept(DOPPLER_XLA_CACHE=named, **home)[0].parent == tmp_path / "home" / ".cache" / "doppler_tf" / "xla"


def test_without_a_folder_to_write_in_nothing_is_kept(kept, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    assert kept(DOPPLER_XLA_CACHE=str(tmp_path / "file")) == (None, "")
    assert kept(DOPPLER_XLA_CACHE="/dev/null/folder") == (None, "")
    assert kept(DOPPLER_XLA_CACHE=str(tmp_path / 'a "b')) == (None, "")  # no flag can name it
    folder, _ = kept()
    in_the_way = folder / "xla_compile_cache__1__2__XLA_CPU_JIT.pb"
    in_the_way.mkdir()
    assert kept() == (None, "")
    in_the_way.rmdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=(1 << 28) - 1))
    assert kept() == (None, "")


def test_machines_and_versions_have_folders_of_their_own(kept, monkeypatch, tmp_path):
    folders = {kept()[0], kept(XLA_FLAGS="--xla_cpu_enable_fast_math=true")[0]}
    monkeypatch.setenv("XLA_FLAGS", "")
    with monkeypatch.context() as other:
        (tmp_path / "site" / "tensorflow-0.1.dist-info").mkdir(parents=True)
        (tmp_path / "site" / "tensorflow-0.1.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 0.1\n")
        other.syspath_prepend(str(tmp_path / "site"))
        folders.add(kept()[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1000))
    assert len(folders | {kept()[0]}) == 4


def test_what_a_crash_has_left_is_removed(kept):
    folder, _ = kept()
    whole = entry(folder, "whole")
    for length in (0, 1, 5, 150, len(WHOLE) - 4, len(WHOLE) - 1):
        entry(folder, f"{length} bytes", WHOLE[:length])
    for content in (WHOLE + b"\0", 204 * b"\0", 204 * b"\xfa"):
        entry(folder, f"{content[-1]} at last", content)
    assert kept()[0] == folder
    assert list(folder.iterdir()) == [whole]


def test_what_was_written_last_stays_when_there_is_too_much(kept, tmp_path):
    """A GiB is kept, the foreign file not counted; these entries are of half a GiB and more, with holes that take no room on the disk."""
    folder, another = kept()[0], tmp_path / "another version"
    entries = [large(folder, "first", 1e9), large(another, "second", 2e9), large(folder, "third", 3e9)]
    foreign = another / "notes.txt"
    foreign.write_bytes(1000 * b"-")
    kept()
    assert [path.exists() for path in entries] == [False, True, True]
    entries.append(large(folder, "fourth", 4e9, size=(1 << 30) + 1))
    kept()
    assert not any(path.exists() for path in entries)
    assert foreign.exists()
