"""What a finished training run left: settings, figures, graphs with their costs, assignments, and traces of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.formats.chrome_trace import TraceFile
    from doppler_tf.graph import DataflowGraph

_FIGURES = ("greedy_makespan_s", "best_makespan_s", "lower_bound_s", "episodes", "seconds")


@dataclass(frozen=True)
class Trained:
    """One graph of a run: its costs, the figures of `result.json`, and the best assignment with the rule it is dispatched by."""

    graph: DataflowGraph
    costs: CostModel
    figures: Mapping[str, Any]
    assignment: Assignment
    dispatch: str


def read_figures(run: Path) -> dict[str, Mapping[str, Any]]:
    """The figures of a finished run by graph. Raises CheckpointError where it is none."""
    from doppler_tf.formats.files import read_json

    path = run / "result.json"
    if not path.exists():
        raise CheckpointError(f"{run}: result.json: expected a finished training run, got none; train one, or end it with train --resume")
    record = read_json(path)
    graphs = record.get("graphs") if isinstance(record, Mapping) else None
    if not isinstance(graphs, Mapping) or not graphs or not all(isinstance(row, Mapping) and _complete(row) for row in graphs.values()):
        raise CheckpointError(f"{path}: graphs: expected {', '.join(_FIGURES)} of each graph, got something else; train again")
    return dict(graphs)


def read_trained(run: Path, figures: Mapping[str, Mapping[str, Any]], graph_files: Sequence[Path], topology: str | None) -> list[Trained]:
    """The graphs of a run with their costs and best assignments.

    Args:
      figures: of `read_figures`.
      graph_files, topology: in place of the run folder's own, which older runs do not have.

    Raises:
      CheckpointError: graphs or topology are not there, or not those that the run was made for.
    """
    from doppler_tf.cli.inputs import load_assignment, load_costs
    from doppler_tf.formats.files import file_name, read_json

    stored = read_json(run / "config.json")
    spec = topology or str(run / "topology.json")
    paths = list(graph_files) or [run / "graphs" / f"{file_name(name)}.json" for name in figures]
    absent = next((path for path in (*paths, *([] if topology else [Path(spec)])) if not path.exists()), None)
    if absent is not None:
        raise CheckpointError(f"{absent}: no such file; for a run of an earlier version, which did not keep graphs and topology, pass "
                              f"--graph G.json and --topology T")
    loaded = {graph.name: (graph, costs) for graph, costs in (load_costs(path, spec) for path in paths)}
    trained = []
    for name, row in figures.items():
        graph, costs = loaded.get(name) or _only(loaded, figures, run, name)
        for what, hash_, expected in (("graph", graph.graph_hash, stored.get("graphs", {}).get(name)),
                                      ("topology", costs.topology.topology_hash, stored.get("topology"))):
            if hash_ != expected:
                raise CheckpointError(f"{run}: {what}: expected the one that the run was made for, got another ({name} on "
                                      f"{costs.topology.name}); pass that {what} with --{what}")
        trained.append(Trained(graph, costs, row, *load_assignment(run / "assignments" / f"{file_name(name)}.json", graph, costs, None)))
    return trained


def read_traces(folder: Path) -> tuple[dict[Path, TraceFile], list[str]]:
    """Trace files in a folder by path, and what is wrong with the other JSON files there."""
    from doppler_tf.formats.chrome_trace import read_trace

    traces, refused = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            traces[path] = read_trace(path)
        except UserError as error:
            refused.append(str(error))
    return traces, refused


def _complete(row: Mapping[str, Any]) -> bool:
    return all(isinstance(row.get(key), int | float) for key in _FIGURES)


def _only(loaded: Mapping[str, Any], figures: Mapping[str, Any], run: Path, name: str) -> tuple[DataflowGraph, CostModel]:
    """The one graph given for a run of one graph, whatever its file calls it; its hash is checked."""
    if len(loaded) == len(figures) == 1:
        return next(iter(loaded.values()))
    raise CheckpointError(f"{run}: graph {name!r}: expected it among {', '.join(loaded)}, got no such name; pass its file with --graph")
