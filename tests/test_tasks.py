"""Tasks in this process and on Ray: the same results, failures told, lost workers replaced, and nothing left behind."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from doppler_tf import tasks
from doppler_tf.errors import ConfigError, FormatError
from doppler_tf.tasks import Ended, Here, each_done, open_tasks

LOST = "its worker was lost 3 times, crashed, killed or without memory: "


def half(number: int) -> float:
    if number == 3:
        raise FormatError("3: expected an even number")
    return number / (2 if number else 0)


def where() -> tuple[int, str]:
    """The process that does this task, and its folder."""
    return os.getpid(), os.getcwd()


def writable(array: np.ndarray) -> tuple[bool, np.ndarray]:
    return array.flags.writeable, array


def die(mark: Path | None) -> str:
    """Kills its process; if there is a place for a mark, the first time only."""
    if mark is not None and mark.exists():
        return "done"
    if mark is not None:
        mark.touch()
    os.kill(os.getpid(), 9)


@pytest.fixture(scope="module")
def on_ray():
    with open_tasks("local", 2, 100) as found:
        yield found


@pytest.fixture(params=["here", "on_ray"])
def each(request):
    return Here() if request.param == "here" else request.getfixturevalue("on_ray")


def test_results_come_with_their_keys_and_failures_in_a_line(each):
    found = {ended.key: ended for ended in each_done(each, half, {f"n{i}": (i,) for i in range(6)})}
    assert [found[f"n{i}"].value for i in range(6)] == [None, 0.5, 1.0, None, 2.0, 2.5]
    assert found["n0"] == Ended("n0", None, "ZeroDivisionError: division by zero")
    assert found["n3"].error == "3: expected an even number"
    assert not each.busy


def test_workers_stay_and_work_in_the_callers_folder(on_ray):
    found = [{ended.value for ended in each_done(on_ray, where, dict.fromkeys(range(8), ()))} for _ in range(2)]
    both = found[0] | found[1]  # one worker may have done all of the first round
    assert len(both) <= 2
    assert {folder for _, folder in both} == {os.getcwd()}
    assert os.getpid() not in dict(both)


def test_a_lost_workers_task_is_done_again_and_the_others_go_on(on_ray, tmp_path):
    calls = {"once": (tmp_path / "mark",), "always": (None,), **{f"fine{i}": (Path("/"),) for i in range(4)}}
    found = {ended.key: ended for ended in each_done(on_ray, die, calls)}
    assert found.pop("always").error.startswith(LOST)
    assert {(ended.value, ended.error) for ended in found.values()} == {("done", "")}


def test_what_cannot_be_sent_is_a_failure(on_ray):
    found = {ended.key: ended.error for ended in each_done(on_ray, sys._getframe, {"there": (sys._getframe(),), "back": ()})}
    assert all("pickle" in error for error in found.values())
    assert found.keys() == {"there", "back"}


def test_arrays_arrive_as_they_are(on_ray):
    """Numba compiles again for arrays that cannot be written to."""
    (ended,) = each_done(on_ray, writable, {0: (np.arange(1000.0),)})
    assert ended.value[0]
    assert ended.value[1].flags.writeable


def test_one_task_or_one_job_needs_no_ray(monkeypatch):
    monkeypatch.setattr(tasks, "_connected", None)
    for how in ((None, None, 9), (None, 1, 9), ("local", 1, 9), ("local", None, 1), (None, 4, 1), ("host:1", None, 0)):
        with open_tasks(*how) as found:
            assert isinstance(found, Here)


def test_without_ray_all_runs_in_this_process(monkeypatch, caplog):
    monkeypatch.setattr(tasks, "_installed", lambda: False)
    monkeypatch.setattr(logging.getLogger("doppler_tf"), "propagate", True)
    with caplog.at_level(logging.INFO, "doppler_tf.tasks"), open_tasks(None, 4, 9) as found:
        assert isinstance(found, Here)
    assert "--jobs 4: all runs in this process, as Ray is not installed" in caplog.text
    with pytest.raises(ConfigError, match="--ray local: expected Ray, got none installed; "), open_tasks("local", None, 9):
        pass


def test_workers_that_see_another_folder_are_refused(tmp_path):
    with tasks._token(tmp_path) as (path, content):
        assert tasks._Worker("/nowhere", (path, content)).problem() == (None, "")
        assert "share" in tasks._Worker("/nowhere", (path, "other")).problem()[1]
    assert "share" in tasks._Worker("/nowhere", (path, content)).problem()[1]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "ray://127.0.0.1:1", "nowhere.invalid:6379", "no-port"])
def test_an_address_where_nobody_answers(address):
    with pytest.raises(ConfigError) as refused, open_tasks(address, None, 2):
        pass
    said = str(refused.value)
    assert said.startswith(f"--ray {address}: expected the address of a Ray cluster, HOST:PORT, got ")
    assert said.endswith("; start one with `ray start`")
