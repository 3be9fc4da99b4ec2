"""Teacher episodes: what is written is read, and anything else is refused with the remedy."""

import json

import numpy as np
import pytest

from data.imitation_dataset import read_episodes, write_episodes
from doppler_tf.errors import DatasetError


def episodes(count=10, vertices=7, devices=3, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.permutation(vertices).astype(np.int32), rng.integers(devices, size=vertices).astype(np.int32)) for _ in range(count)]


def test_round_trip_in_shards(tmp_path):
    given = episodes()
    record = write_episodes(tmp_path / "set", "g", "t", 3, iter(given), shard_size=4)
    assert (record["num_episodes"], record["num_vertices"], record["num_devices"]) == (10, 7, 3)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    assert names == ["dataset.json", *(f"episodes-{s:05d}-of-00003.tfrecord" for s in range(3))]
    dataset = read_episodes(tmp_path / "set", "g", "t")
    assert [(spec.shape.as_list(), spec.dtype.name) for spec in dataset.element_spec] == [([7], "int32")] * 2
    assert len(dataset) == 10
    for (order, device), (order_read, device_read) in zip(given, dataset.as_numpy_iterator(), strict=True):
        assert np.array_equal(order, order_read)
        assert np.array_equal(device, device_read)


def test_writing_anew_replaces_all_and_failing_leaves_no_dataset(tmp_path):
    write_episodes(tmp_path, "g", "t", 3, episodes(9), shard_size=2)
    write_episodes(tmp_path, "g", "t", 3, episodes(3), shard_size=2)
    assert len(list(tmp_path.iterdir())) == 3

    def broken():
        yield from episodes(3)
        raise RuntimeError("teacher failed")

    with pytest.raises(RuntimeError, match="teacher"):
        write_episodes(tmp_path, "g", "t", 3, broken(), shard_size=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("bad", "words"), [
    ([], ["episodes", "at least one"]),
    ([(np.array([0, 1]), np.array([0, 3]))], ["episode 0", "device", "0 to 2"]),
    ([(np.array([0, 0]), np.array([0, 1]))], ["episode 0", "order", "once"]),
    ([(np.array([0, 1]), np.array([0, 1])), (np.array([0]), np.array([0]))], ["episode 1", "order", "[2]"]),
    ([(np.array([0.0, 1.0]), np.array([0, 1]))], ["episode 0", "order", "float64"]),
])
def test_bad_episodes(tmp_path, bad, words):
    with pytest.raises(DatasetError) as caught:
        write_episodes(tmp_path, "g", "t", 3, bad)
    assert all(word in str(caught.value) for word in words)
    assert list(tmp_path.iterdir()) == []


def _truncate(folder):
    shard = next(folder.glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-5])


def _flip(folder):
    shard = next(folder.glob("*.tfrecord"))
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)


def _edit(**changes):
    def edit(folder):
        path = folder / "dataset.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return edit


@pytest.mark.parametrize(("damage", "words"), [
    (lambda folder: (folder / "dataset.json").unlink(), ["no such file"]),
    (lambda folder: (folder / "dataset.json").write_text("{"), ["malformed JSON"]),
    (lambda folder: (folder / "dataset.json").write_text("[]"), ["schema", "[]"]),
    (lambda folder: next(folder.glob("*.tfrecord")).unlink(), ["expected", "no such file"]),
    (_truncate, ["expected", "bytes"]),
    (_flip, ["SHA-256", "other content"]),
    (_edit(schema="doppler-episodes/2"), ["schema", "doppler-episodes/1", "doppler-episodes/2"]),
    (_edit(graph_hash="h"), ["graph_hash", "'g'", "'h'"]),
    (_edit(topology_hash="u"), ["topology_hash", "'t'", "'u'"]),
    (_edit(num_episodes=11), ["files", "counts that agree"]),
    (_edit(files=3), ["files", "3"]),
])
def test_a_dataset_that_cannot_be_used_names_folder_and_remedy(tmp_path, damage, words):
    write_episodes(tmp_path, "g", "t", 3, episodes(), shard_size=4)
    damage(tmp_path)
    with pytest.raises(DatasetError) as caught:
        read_episodes(tmp_path, "g", "t")
    assert all(word in str(caught.value) for word in [str(tmp_path), "write_episodes", *words])
    assert "\n" not in str(caught.value)
