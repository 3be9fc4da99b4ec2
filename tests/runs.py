"""A finished training run's folder, made without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import file_name, write_json
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.placement import place
from doppler_tf.schedule.bounds import lower_bounds

BATCH = 8


def make_run(folder: Path, graphs: Sequence[DataflowGraph], topology: Topology) -> Mapping[str, dict]:
    """Writes what `train` leaves, checkpoints and dataset aside, with the critical path's assignments; returns the figures."""
    from agents.config import RUN_SCHEMA, TrainConfig
    from agents.training import summaries

    figures, writer = {}, summaries.Summaries(folder / "train")
    write_topology(folder / "topology.json", topology)
    for graph in graphs:
        name, costs = file_name(graph.name), build_costs(graph, topology)
        placed = place(graph, costs, "critical_path")
        write_graph(folder / "graphs" / f"{name}.json", graph)
        write_assignment(folder / "assignments" / f"{name}.json", graph, costs, placed.assignment, placed.makespan_s)
        figures[graph.name] = {"greedy_makespan_s": placed.makespan_s * 1.25, "best_makespan_s": placed.makespan_s,
                               "lower_bound_s": lower_bounds(graph, costs).best_s, "episodes": 1234, "seconds": 5.5}
        writer.write("imitation", name, 1, {summaries.AGREEMENT: -1.5})
        for update in range(2, 6):
            slower = 1 + 1 / update
            writer.write("simulated", name, update, {summaries.GREEDY: placed.makespan_s * slower, summaries.BEST: placed.makespan_s,
                                                     summaries.SAMPLED: placed.makespan_s * slower * 1.1})
    writer.flush()
    write_json(folder / "config.json", {"schema": RUN_SCHEMA, "config": TrainConfig(batch=BATCH * len(graphs)).to_json(),
                                        "graphs": {graph.name: graph.graph_hash for graph in graphs},
                                        "topology": topology.topology_hash, "topology_name": topology.name})
    write_json(folder / "result.json", {"graphs": figures})
    return figures
