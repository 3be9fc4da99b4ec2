"""A run's folder: started, or found to be the one to go on with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from agents.checkpoints import checkpoint_folders
from agents.config import RUN_SCHEMA, TrainConfig, stored_config
from doppler_tf.costs import CostModel
from doppler_tf.errors import CheckpointError, ConfigError
from doppler_tf.formats.files import file_name, read_json, write_json
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph import DataflowGraph


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
