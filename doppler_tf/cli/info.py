"""Describe a graph and, on a topology, give lower bounds of its makespan."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import add_graph, add_topology

if TYPE_CHECKING:
    import numpy as np

    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph

EXAMPLE = "python -m doppler_tf info chainmm.json --topology p100x4"
SHOWN_KINDS = 20
_BOUNDS = {"work_s": "work over all devices", "path_s": "longest path", "join_s": "longest path with joins"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser, required=False)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts and totals; with a topology, also work and lower bounds."""
    from doppler_tf.cli.inputs import load_costs
    from doppler_tf.formats.graph_json import read_graph

    if args.topology is None:
        return describe(read_graph(args.graph))
    graph, costs = load_costs(args.graph, args.topology, args.costs)
    return {**describe(graph), **_on_topology(graph, costs)}


def describe(graph: DataflowGraph) -> dict[str, Any]:
    """Counts and totals of the graph. `depth` counts the vertices of its longest path, without inputs."""
    import numpy as np

    work = graph.work_vertices
    members: dict[str, list[int]] = {}
    for v in work.tolist():
        members.setdefault(graph.kinds[v], []).append(v)
    rows = {kind: np.array(members[kind]) for kind in sorted(members, key=lambda kind: (-len(members[kind]), kind))}
    return {
        "name": graph.name, "vertices": graph.num_vertices, "edges": graph.num_edges, "input_vertices": int(graph.is_input.sum()),
        "work_vertices": len(work), "work_edges": len(graph.work_edges), "depth": graph.depth,
        "meta_ops": len(set(graph.meta_op) - {None}), "has_kernels": all(graph.kernel[v] is not None for v in work.tolist()),
        "flops": _total(graph.flops[work]), "output_bytes": _total(graph.output_bytes[work]), "edge_bytes": _total(graph.edge_bytes),
        "kinds": {kind: {"vertices": len(rows[kind]), "flops": _total(graph.flops[rows[kind]]),
                         "output_bytes": _total(graph.output_bytes[rows[kind]])} for kind in rows},
    }


def render(result: dict[str, Any]) -> list:
    """Tables of facts, of kinds and of bounds."""
    from doppler_tf.report.tables import NOTHING, facts, grid, quantity, time_unit, yes_no

    tables = [facts(f"graph {result['name']}", {
        "vertices": f"{result['work_vertices']:,} and {result['input_vertices']:,} inputs",
        "edges": f"{result['work_edges']:,} and {result['edges'] - result['work_edges']:,} from inputs",
        "depth": f"{result['depth']:,}", "meta-ops": f"{result['meta_ops']:,}", "kernels": yes_no(result["has_kernels"]),
        "flops": quantity(result["flops"], "FLOP"), "outputs": quantity(result["output_bytes"], "B"),
        **({"written to": str(result["out"])} if "out" in result else {})})]
    shown = list(result["kinds"].items())[:SHOWN_KINDS]
    rows = [(kind, f"{row['vertices']:,}", quantity(row["flops"], "FLOP"), quantity(row["output_bytes"], "B")) for kind, row in shown]
    more = len(result["kinds"]) - len(shown)
    if more:
        rows.append((f"{more:,} more", f"{result['work_vertices'] - sum(row['vertices'] for _, row in shown):,}", NOTHING, NOTHING))
    tables.append(grid("kinds", ("kind", "vertices", "flops", "outputs"), rows))
    if "bounds" in result:
        bounds = result["bounds"]
        unit = time_unit([result["work_s"]])
        best = list(bounds.values()).index(result["lower_bound_s"])
        tables.append(grid(f"on {result['topology']}", ("no faster than", "time"),
                           [(_BOUNDS[key], unit.text(bounds[key])) for key in bounds], best))
        tables.append(facts("", {"total work": unit.text(result["work_s"]), "lower bound": unit.text(result["lower_bound_s"])}))
    return tables


def _on_topology(graph: DataflowGraph, costs: CostModel) -> dict[str, Any]:
    """`work_s` sums the exec of every vertex on its fastest device. The `bounds` hold for every assignment and dispatch rule."""
    from dataclasses import asdict

    from doppler_tf.bounds import lower_bounds

    bounds = lower_bounds(graph, costs)
    return {"topology": costs.topology.name, "devices": costs.num_devices,
            "work_s": float(costs.exec_s[graph.work_vertices].min(axis=1).sum()), "lower_bound_s": bounds.best_s, "bounds": asdict(bounds)}


def _total(values: np.ndarray) -> float | None:
    """The sum of the values that are not NaN; None if all are."""
    import numpy as np

    return None if np.isnan(values).all() else float(np.nansum(values))
