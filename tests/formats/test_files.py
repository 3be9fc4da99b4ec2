"""Files are written whole or not at all."""

from __future__ import annotations

import math
import os

import pytest

from doppler_tf.errors import FormatError
from doppler_tf.formats.files import check_writable, read_json, write_bytes, write_json
from tests.messages import assert_says, refusal


def test_a_write_replaces_the_whole_file_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b" / "f.json"
    write_json(path, {"long": "x" * 1000})
    write_json(path, [1])
    assert read_json(path) == [1]
    assert os.listdir(path.parent) == ["f.json"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("failing", ["fsync", "replace", "chmod"])
def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, failing):
    path = tmp_path / "f.json"
    write_json(path, "old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    assert_says(refusal(FormatError, write_json, path, "new"), f"{path}: cannot be written: No space left on device; choose another place")
    assert read_json(path) == "old"
    assert os.listdir(tmp_path) == ["f.json"]


def test_an_interrupted_write_cleans_up_and_goes_on_interrupting(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "f", b"new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", [math.nan, -math.inf, object(), {1, 2}, {"a": [math.inf]}])
def test_what_json_cannot_hold_leaves_the_old_file(tmp_path, value):
    write_json(tmp_path / "f.json", "old")
    assert_says(refusal(FormatError, write_json, tmp_path / "f.json", value), "cannot be written as JSON", "plain finite values only")
    assert read_json(tmp_path / "f.json") == "old"


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t / "file" / "below", lambda t: t / ("n" * 300), lambda t: t / "a\0b"],
                         ids=["folder", "below a file", "long name", "null byte"])
def test_places_that_cannot_be_written(tmp_path, make):
    (tmp_path / "file").write_text("here")
    assert_says(refusal(FormatError, write_json, make(tmp_path), 1), "cannot be written: ", "choose another place")
    assert os.listdir(tmp_path) == ["file"]


def test_a_place_can_be_judged_before_there_is_anything_to_write(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("here")
    assert check_writable(tmp_path / "new" / "a.json") == tmp_path / "new" / "a.json"
    for place in (tmp_path / "file", "/dev/null"):
        check_writable(place)
    for place, reason in ((tmp_path, "Is a directory"), (tmp_path / "file" / "below" / "a.json", "Not a directory")):
        assert_says(refusal(FormatError, check_writable, place), f"{place}: cannot be written: {reason}; choose another place")
    for place in (f"{tmp_path}/new/", f"{tmp_path}/file/"):
        assert_says(refusal(FormatError, check_writable, place), f"{place}: expected the name of a file, got a folder's; choose a file")
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert_says(refusal(FormatError, check_writable, tmp_path / "b.json"), "cannot be written: Permission denied")
    assert os.listdir(tmp_path) == ["file"]


def test_links_are_followed_and_pipes_written_to(tmp_path):
    import os
    import threading

    from doppler_tf.formats.files import file_name, write_bytes
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_bytes(tmp_path / "pipe", b"through")
    reader.join(10)
    assert read == [b"through"]
    assert [file_name(name) for name in ("../up", "a/b", "", "chainmm", "é" * 300)] == ["_up", "a_b", "_", "chainmm", "_" * 80]
