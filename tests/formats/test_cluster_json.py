"""The machines of a cluster: what is read, and what is refused in one line that says why."""

import json

import pytest

from doppler_tf.errors import FormatError
from doppler_tf.formats.cluster_json import ClusterSpec, parse_address, read_cluster


def write(tmp_path, value):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(value))
    return path


def test_workers_and_a_chief(tmp_path):
    path = write(tmp_path, {"worker": ["a.example:2222", "10.0.0.2:22", "[fd00::1]:2223"], "chief": ["10.0.0.1:2221"]})
    assert read_cluster(path) == ClusterSpec(str(path), (("a.example", 2222), ("10.0.0.2", 22), ("fd00::1", 2223)), ("10.0.0.1", 2221))
    assert read_cluster(write(tmp_path, {"worker": ["a:1"]})).chief is None


@pytest.mark.parametrize(("record", "field"), [
    ([], "cluster"), ({}, "cluster"), ({"chief": ["a:1"]}, "cluster"), ({"worker": ["a:1"], "ps": ["b:1"]}, "cluster"),
    ({"worker": []}, "worker"), ({"worker": "a:1"}, "worker"), ({"worker": {"0": "a:1"}}, "worker"), ({"worker": ["a"]}, "worker"),
    ({"worker": [1]}, "worker"), ({"worker": ["a:0"]}, "worker"), ({"worker": ["a:65536"]}, "worker"), ({"worker": [":1"]}, "worker"),
    ({"worker": ["a:x"]}, "worker"), ({"worker": ["http://a:1"]}, "worker"), ({"worker": ["a b:1"]}, "worker"),
    ({"worker": ["a" * 64 + ":1"]}, "worker"), ({"worker": ["a:1", "a:1"]}, "cluster"), ({"worker": ["a:1"], "chief": ["a:1"]}, "cluster"),
    ({"worker": ["a:1"], "chief": ["b:1", "c:1"]}, "chief"), ({"worker": ["a:1"], "chief": None}, "chief")])
def test_anything_else_is_refused(tmp_path, record, field):
    path = write(tmp_path, record)
    with pytest.raises(FormatError) as caught:
        read_cluster(path)
    assert str(caught.value).startswith(f"{path}: {field}: expected ")


def test_an_address_may_have_any_port_that_there_is():
    assert parse_address("localhost:0") == ("localhost", 0)
    with pytest.raises(ValueError, match="localhost:-1"):
        parse_address("localhost:-1")
