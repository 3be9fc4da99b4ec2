"""What commands read: graph and costs, assignments, trained policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph

    Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]


def load_costs(graph_path: Path, topology: str) -> tuple[DataflowGraph, CostModel]:
    """A graph and its costs on a topology; messages name the graph's file. Whoever wants costs may have to wait for a compiler."""
    from doppler_tf.cli.compiling import announce_compiling
    from doppler_tf.costs import build_costs
    from doppler_tf.formats.graph_json import read_graph
    from doppler_tf.formats.topology_json import read_topology

    announce_compiling()
    graph = read_graph(graph_path)
    return graph, build_costs(graph, read_topology(topology), str(graph_path))


def load_assignment(path: Path, graph: DataflowGraph, costs: CostModel, dispatch: str | None) -> tuple[Assignment, str]:
    """An assignment and the dispatch rule to run it with: the one asked for, else the one it was made for, else fifo."""
    from doppler_tf.formats.assignment_json import assignment_from_json
    from doppler_tf.formats.files import read_json

    record = read_json(path)
    made_for = record.get("dispatch") if isinstance(record, Mapping) else None
    return assignment_from_json(record, graph, costs, str(path)), dispatch or made_for or "fifo"


def load_policy(path: Path) -> Policy:
    """A trained policy: (graph, costs, samples, seed) -> assignments, the greedy one first."""
    from doppler_tf.cli.tensorflow import import_quietly

    return import_quietly("agents.placing").load_policy(path)
