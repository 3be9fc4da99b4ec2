"""Describe a graph and, on a topology, give lower bounds of its makespan."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli.options import add_graph, add_topology

EXAMPLE = "python -m doppler_tf info chainmm.json --topology p100x4"
SHOWN_KINDS = 20
_BOUNDS = {"work_s": "work over all devices", "path_s": "longest path", "join_s": "longest path with joins"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser, required=False)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts and totals; with a topology, also work and lower bounds."""
    from doppler_tf.api.inputs import load_costs
    from doppler_tf.formats.graph_json import read_graph
    from doppler_tf.report.description import describe, describe_costs

    if args.topology is None:
        return describe(read_graph(args.graph))
    graph, costs = load_costs(args.graph, args.topology, args.costs)
    return {**describe(graph), **describe_costs(graph, costs)}


def render(result: dict[str, Any]) -> list:
    """Tables of facts, of kinds and of bounds."""
    from doppler_tf.report.tables import NOTHING, facts, grid, quantity, time_unit, yes_no

    tables = [facts(f"graph {result['name']}", {
        "vertices": f"{result['work_vertices']:,} and {result['input_vertices']:,} inputs",
        "edges": f"{result['work_edges']:,} and {result['edges'] - result['work_edges']:,} from inputs",
        "depth": f"{result['depth']:,}", "meta-ops": f"{result['meta_ops']:,}", "kernels": yes_no(result["has_kernels"]),
        "flops": quantity(result["flops"], "FLOP"), "outputs": quantity(result["output_bytes"], "B"),
        **({"written to": str(result["out"])} if "out" in result else {})})]
    held = result["memory_bytes"]
    tables.append(facts("memory", {
        "inputs (weights)": quantity(held["input_bytes"], "B"), "all tensors": quantity(held["tensor_bytes"], "B"),
        "largest vertex": f"{quantity(held['largest_vertex_bytes'], 'B')} with its inputs and outputs: {held['largest_vertex']}",
        "peak on one device": f"{quantity(held['one_device_peak_bytes'], 'B')} in topological order"}))
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
        memory = result["memory"]
        tables.append(facts("", {
            "total work": unit.text(result["work_s"]), "lower bound": unit.text(result["lower_bound_s"]),
            "fits in memory": "there is no limit" if not memory["limited"] else _may(memory["never_fits"]),
            **({"with its host": _may(memory["never_fits_with_host"])} if memory["limited"] and memory["host"] else {}),
            **({"lower bound with host": unit.text(max(result["crossing_s"], result["lower_bound_s"]))} if result["crossing_s"] else {})}))
    return tables


def _may(proof: str | None) -> str:
    return "nothing proves that it does not; `place` looks for a way" if proof is None else f"no: {proof}"
