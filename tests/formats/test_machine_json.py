"""What has been measured on a machine: read back whole, of this machine alone, and never in the way."""

import json
import os

import pytest

from doppler_tf.errors import FormatError
from doppler_tf.formats.machine_json import Machine, fingerprint, load_machine, store_machine
from doppler_tf.graph.topology import cpu


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("DOPPLER_MACHINE", str(tmp_path))
    return tmp_path


def test_what_is_stored_is_loaded():
    path = store_machine(Machine(fingerprint(), cpu(2), {"CPU: einsum 1": 1e-3}))
    found = load_machine()
    assert (found.topology.topology_hash, found.seconds) == (cpu(2).topology_hash, {"CPU: einsum 1": 1e-3})
    assert json.loads(path.read_text())["schema"] == "doppler-machine/7"


def test_nothing_is_known_of_another_machine(monkeypatch):
    store_machine(Machine(fingerprint(), cpu(2), {"a": 1.0}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 4, 5, 6})
    found = load_machine()
    assert (found.topology, found.seconds) == (None, {})
    assert found.fingerprint["cores"] == 7


def test_off_keeps_nothing_and_a_folder_that_cannot_be_written_is_no_error(monkeypatch, folder):
    (folder / "file").write_text("")
    monkeypatch.setenv("DOPPLER_MACHINE", str(folder / "file" / "below"))
    assert store_machine(Machine(fingerprint(), None, {"a": 1.0})) is None
    monkeypatch.setenv("DOPPLER_MACHINE", "off")
    assert store_machine(Machine(fingerprint(), None, {"a": 1.0})) is None
    assert load_machine().seconds == {}


@pytest.mark.parametrize("seconds", [{"a": -1.0}, {"a": "fast"}, [1.0], None])
def test_a_damaged_file_is_named_with_the_remedy(seconds):
    path = store_machine(Machine(fingerprint(), None, {"a": 1.0}))
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": seconds}))
    with pytest.raises(FormatError, match=r"machine-.*seconds: expected an object of numbers >= 0.*remove the file"):
        load_machine()
