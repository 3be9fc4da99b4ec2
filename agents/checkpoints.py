"""A run's folder: a new or a resumed one, and its checkpoints, of which only the last few are kept, each complete or absent.

TF-Agents' `common.Checkpointer` serves the examples, and gives less than a run needs. It restores when it is made, and does not check that
the checkpoint fits the networks. It holds variables alone, while a run's best episodes are read by commands without TensorFlow. A
process that is killed as it saves leaves files that no later process removes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from agents.config import RUN_SCHEMA, TrainConfig, stored_config
from doppler_tf.errors import CheckpointError, ConfigError
from doppler_tf.formats.files import file_name, read_json, write_json
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

CHECKPOINT_SCHEMA = "doppler-checkpoint/2"
_NAME = re.compile(r"step-(\d{8})")


def open_run(run_dir: Path, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig, resume: bool) -> TrainConfig:
    """Starts a run folder, or checks that the one to resume was made for these graphs and topology; returns the config that holds."""
    made_for = {"graphs": {graph.name: graph.graph_hash for graph in graphs}, "topology": costs[0].topology.topology_hash}
    stored = read_json(run_dir / "config.json") if (run_dir / "config.json").exists() else None
    begun = bool(checkpoint_folders(run_dir / "checkpoints"))
    if stored is not None and not begun:
        shutil.rmtree(run_dir / "train", ignore_errors=True)  # summaries of a start that never came to a checkpoint
    if not resume:
        if begun:
            raise ConfigError(f"{run_dir}: run folder: expected a new one, got one with checkpoints; go on with --resume or choose another")
        write_topology(run_dir / "topology.json", costs[0].topology)
        for graph in graphs:
            write_graph(run_dir / "graphs" / f"{file_name(graph.name)}.json", graph)
        write_json(run_dir / "config.json", {"schema": RUN_SCHEMA, "config": config.to_json(), **made_for,
                                             "topology_name": costs[0].topology.name}, indent=1)
        return config
    if stored is None:
        raise CheckpointError(f"{run_dir}: config.json: expected a run to resume, got none; start it without --resume")
    config = stored_config(run_dir)
    for key, expected in made_for.items():
        if stored.get(key) != expected:
            raise CheckpointError(f"{run_dir}: {key}: expected those that the run was started with, got others; resume with the same graph "
                                  f"files and topology, or start a new run")
    return config


def save_checkpoint(folder: Path, step: int, objects: dict, state: dict, keep: int) -> Path:
    """Writes `objects` (trackables of `tf.train.Checkpoint`) and `state` (JSON) as `folder`/step-NNNNNNNN; drops all but the last `keep`.

    Everything is written into a temporary folder first and renamed once complete.
    """
    target = folder / f"step-{step:08d}"
    temporary = folder / f".{target.name}.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".step-*"):
        shutil.rmtree(stale, ignore_errors=True)
    temporary.mkdir()
    tf.train.Checkpoint(**objects).write(str(temporary / "variables"))
    (temporary / "state.json").write_text(json.dumps({"schema": CHECKPOINT_SCHEMA, "step": step, **state}), encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    os.replace(temporary, target)
    for old in checkpoint_folders(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoint_folders(folder: Path) -> list[Path]:
    """The complete checkpoints under `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir())


def policy_checkpoint(path: str | Path) -> Path:
    """The checkpoint that a user means by a run folder (its last one) or by one checkpoint. Raises CheckpointError: none is there."""
    path = Path(path)
    checkpoint = path if (path / "state.json").exists() else next(reversed(checkpoint_folders(path / "checkpoints")), None)
    if checkpoint is None:
        raise CheckpointError(f"{path}: checkpoint: expected a run folder or a checkpoint of one, got neither; train with --run-dir {path}")
    read_state(checkpoint)
    return checkpoint


def read_state(checkpoint: Path) -> dict:
    """The JSON state of a checkpoint. Raises CheckpointError if it is of another schema."""
    state = read_json(checkpoint / "state.json")
    schema = state.get("schema") if isinstance(state, dict) else None
    if schema != CHECKPOINT_SCHEMA:
        raise CheckpointError(f"{checkpoint}: schema: expected {CHECKPOINT_SCHEMA}, got {schema!r}; train again with this version")
    missing = {"step", "seconds", "best", "greedy_s", "real", "annealed", "elite_order"} - set(state)
    if missing:
        raise CheckpointError(f"{checkpoint}: state.json: expected {sorted(missing)[0]!r}, got none; delete this checkpoint and resume")
    return state


def restore_variables(checkpoint: Path, objects: dict, partial: bool = False) -> None:
    """Restores `objects` from a checkpoint. Raises CheckpointError if variables are missing or of another shape.

    Args:
      partial: the checkpoint may hold more than `objects`.
    """
    status = None
    try:
        status = tf.train.Checkpoint(**objects).read(str(checkpoint / "variables"))
        if partial:
            status.assert_existing_objects_matched().expect_partial()
        else:
            status.assert_consumed()
    except (AssertionError, ValueError, IndexError, tf.errors.OpError) as error:
        if status is not None:
            status.expect_partial()  # else TensorFlow lists every variable on stderr
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint}: variables: expected those of the run's config, got a mismatch ({reason}); use the config "
                              f"that the run was trained with, or start a new run") from None
