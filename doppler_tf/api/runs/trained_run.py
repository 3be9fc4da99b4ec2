"""Reads a finished training run: settings, figures, graphs with their costs, assignments, and traces of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doppler_tf.api.inputs import load_assignment, load_costs
from doppler_tf.errors import CheckpointError, UserError
from doppler_tf.formats.chrome_trace import TraceFile, read_trace
from doppler_tf.formats.files import file_name, read_json
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment

_GREEDY = "greedy_makespan_s"
_FIGURES = (_GREEDY, "best_makespan_s", "lower_bound_s", "episodes", "seconds")


@dataclass(frozen=True)
class Trained:
    """One graph of a run: its costs, its figures in `result.json`, and its best assignment."""

    graph: DataflowGraph
    costs: CostModel
    figures: Mapping[str, Any]
    assignment: Assignment


def read_figures(run: Path) -> dict[str, Mapping[str, Any]]:
    """The figures of a finished run by graph; infinite for a greedy assignment that does not fit in memory.

    Raises: CheckpointError if the run is not finished.
    """
    path = run / "result.json"
    if not path.exists():
        raise CheckpointError(f"{run}: result.json: expected a finished training run, got none; train one, or end it with train --resume")
    record = read_json(path)
    graphs = record.get("graphs") if isinstance(record, Mapping) else None
    if not isinstance(graphs, Mapping) or not graphs or not all(isinstance(row, Mapping) and _has_figures(row) for row in graphs.values()):
        raise CheckpointError(f"{path}: graphs: expected {', '.join(_FIGURES)} of each graph, got something else; train again")
    return {name: {**row, _GREEDY: math.inf if row[_GREEDY] is None else row[_GREEDY]} for name, row in graphs.items()}


def read_trained(run: Path, figures: Mapping[str, Mapping[str, Any]]) -> list[Trained]:
    """The graphs of a run with their costs and best assignments.

    Args:
      figures: of `read_figures`.

    Raises:
      CheckpointError: graphs or topology are missing, or not those of the run.
    """
    stored, topology = read_json(run / "config.json"), run / "topology.json"
    trained = []
    for name, row in figures.items():
        path = run / "graphs" / f"{file_name(name)}.json"
        for each in (path, topology):
            if not each.exists():
                raise CheckpointError(f"{each}: expected the run's own copy, got none; put it back, or train again")
        graph, costs = load_costs(path, str(topology))
        for each, found, expected in ((path, graph.graph_hash, stored.get("graphs", {}).get(name)),
                                      (topology, costs.topology.topology_hash, stored.get("topology"))):
            if found != expected:
                raise CheckpointError(f"{each}: expected what the run was made for, got something else; put it back, or train again")
        assignment = load_assignment(run / "assignments" / f"{file_name(name)}.json", graph, costs, offload=True)
        row = {**row, "lower_bound_s": max(row["lower_bound_s"], assignment.proven_bound_s)}
        trained.append(Trained(graph, costs, row, assignment))
    return trained


def read_traces(folder: Path) -> tuple[dict[Path, TraceFile], list[str]]:
    """Trace files in a folder by path, and the errors of JSON files that are no traces."""
    traces, refused = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            traces[path] = read_trace(path)
        except UserError as error:
            refused.append(str(error))
    return traces, refused


def _has_figures(row: Mapping[str, Any]) -> bool:
    return _GREEDY in row and all(isinstance(row.get(key), int | float) or (key == _GREEDY and row[key] is None) for key in _FIGURES)
