"""Teacher episodes on disk: sharded TFRecord files and `dataset.json`, which ties them to one graph and topology."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from doppler_tf.errors import DatasetError, FormatError, field_error
from doppler_tf.formats.files import read_json, write_json

DATASET_SCHEMA = "doppler-episodes/1"
RECORD_NAME = "dataset.json"


def write_episodes(folder: str | Path, graph_hash: str, topology_hash: str, num_devices: int,
                   episodes: Iterable[tuple[np.ndarray, np.ndarray]], shard_size: int = 1024) -> dict:
    """Writes episodes one after another and returns the dataset's record.

    Shards are written under temporary names and renamed when all are complete. `dataset.json` is written last, and removed first if the
    folder has one, so that a folder is a complete dataset or none.

    Args:
      episodes: pairs (order, device), int32 [M] each, M work vertices: the vertices in the order of choice, and the device of each.
      shard_size: episodes per file.

    Raises:
      DatasetError: there is no episode, an episode differs in length from the first, an order repeats a vertex, a device is out of range,
        or the folder cannot be written.
    """
    folder = Path(folder)
    if shard_size < 1:
        raise field_error(DatasetError, str(folder), "", "shard_size", "an integer >= 1", shard_size)
    shards: list[tuple[Path, int]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (folder / RECORD_NAME, *folder.glob("episodes-*.tfrecord"), *folder.glob(".episodes-*.part")):
            stale.unlink(missing_ok=True)
        num_vertices = _write_shards(folder, episodes, num_devices, shard_size, shards)
        files = []
        for s, (part, count) in enumerate(shards):
            final = folder / f"episodes-{s:05d}-of-{len(shards):05d}.tfrecord"
            digest = _digest(part)
            part.rename(final)
            files.append({"name": final.name, "episodes": count, "bytes": final.stat().st_size, "sha256": digest})
        record = {"schema": DATASET_SCHEMA, "graph_hash": graph_hash, "topology_hash": topology_hash, "num_devices": num_devices,
                  "num_vertices": num_vertices, "num_episodes": sum(count for _, count in shards), "files": files}
        write_json(folder / RECORD_NAME, record, indent=1)
    except (OSError, FormatError, tf.errors.OpError) as error:
        raise DatasetError(f"{folder}: cannot be written: {error}; choose another place") from None
    finally:
        for part, _ in shards:
            part.unlink(missing_ok=True)
    return record


def read_record(folder: str | Path, graph_hash: str, topology_hash: str) -> dict:
    """The record of a dataset, after checking all its files.

    Raises:
      DatasetError: the dataset is missing, damaged, of another schema, or made for another graph or topology.
    """
    folder = Path(folder)
    remedy = "write it again with `write_episodes` (train with --imitation)"
    try:
        record = read_json(folder / RECORD_NAME)
    except FormatError as error:
        raise DatasetError(f"{folder}: expected a dataset of teacher episodes, got: {error}; {remedy}") from None
    expected = {"schema": DATASET_SCHEMA, "graph_hash": graph_hash, "topology_hash": topology_hash}
    for field, value in expected.items():
        got = record.get(field) if isinstance(record, Mapping) else record
        if got != value:
            raise field_error(DatasetError, str(folder), "", field, repr(value), got, remedy)
    try:
        files = [(folder / file["name"], int(file["bytes"]), file["sha256"]) for file in record["files"]]
        whole = files and int(record["num_vertices"]) >= 1 and sum(file["episodes"] for file in record["files"]) == record["num_episodes"]
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise field_error(DatasetError, str(folder), RECORD_NAME, "files", "counts that agree", record.get("files"), remedy)
    for path, size, digest in files:
        got = path.stat().st_size if path.is_file() else None
        if got != size or _digest(path) != digest:
            shown = "no such file" if got is None else f"{got} bytes" if got != size else "other content"
            raise DatasetError(f"{folder}: {path.name}: expected {size} bytes of SHA-256 {digest[:12]}..., got {shown}; {remedy}")
    return record


def read_episodes(folder: str | Path, graph_hash: str, topology_hash: str) -> tf.data.Dataset:
    """The episodes in the order written: dense (order, device), int32 [M] each. Raises DatasetError like `read_record`."""
    record = read_record(folder, graph_hash, topology_hash)
    feature = tf.io.FixedLenFeature([record["num_vertices"]], tf.int64)

    def parse(example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.io.parse_single_example(example, {"order": feature, "device": feature})
        return tf.cast(row["order"], tf.int32), tf.cast(row["device"], tf.int32)

    names = [str(Path(folder) / file["name"]) for file in record["files"]]
    dataset = tf.data.TFRecordDataset(names).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.apply(tf.data.experimental.assert_cardinality(record["num_episodes"]))


def _write_shards(folder: Path, episodes: Iterable[tuple[np.ndarray, np.ndarray]], num_devices: int, shard_size: int,
                  shards: list[tuple[Path, int]]) -> int:
    """Fills `shards` with (temporary path, episodes) as they are written, and returns M."""
    num_vertices, writer = None, None
    try:
        for e, (order, device) in enumerate(episodes):
            order, device = np.asarray(order), np.asarray(device)
            num_vertices = len(order) if num_vertices is None else num_vertices
            _check_episode(folder, e, order, device, num_vertices, num_devices)
            if e % shard_size == 0:
                if writer is not None:
                    writer.close()
                shards.append((folder / f".episodes-{len(shards):05d}.part", 0))
                writer = tf.io.TFRecordWriter(str(shards[-1][0]))
            writer.write(_example(order, device))
            shards[-1] = (shards[-1][0], shards[-1][1] + 1)
    finally:
        if writer is not None:
            writer.close()
    if num_vertices is None:
        raise field_error(DatasetError, str(folder), "", "episodes", "at least one", "none")
    return num_vertices


def _check_episode(folder: Path, e: int, order: np.ndarray, device: np.ndarray, num_vertices: int, num_devices: int) -> None:
    what = f"episode {e}"
    for name, array in (("order", order), ("device", device)):
        if array.shape != (num_vertices,) or array.dtype.kind not in "iu" or num_vertices == 0:
            raise field_error(DatasetError, str(folder), what, name, f"integers of shape [{num_vertices or 'M >= 1'}]",
                              f"{array.dtype} {array.shape}")
    if len(np.unique(order)) < num_vertices or order.min() < 0:
        raise field_error(DatasetError, str(folder), what, "order", "every vertex once", order.tolist())
    if device.min() < 0 or device.max() >= num_devices:
        raise field_error(DatasetError, str(folder), what, "device", f"device indices from 0 to {num_devices - 1}", device.tolist())


def _example(order: np.ndarray, device: np.ndarray) -> bytes:
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=array.tolist()))
                for name, array in (("order", order), ("device", device))}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
