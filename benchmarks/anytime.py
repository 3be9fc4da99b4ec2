"""Quality over seconds on graphs where search is slow: `make bench NAME=anytime`.

Stacks of Llama layers are placed on eight V100 within budgets of seconds: by the portfolio, by each search alone, and by the best heuristic
without search; with `--policy RUN` also by that policy. Figures are makespans over the lower bound. A search alone uses one core, the
portfolio several. Everything is compiled before it is timed. `--picture FILE` draws it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.tables import finish, show, timed
from data import build_workload
from doppler_tf.api.inputs import load_policy
from doppler_tf.errors import DeadlockError
from doppler_tf.formats.files import write_bytes
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import CONSTRUCTIVE
from doppler_tf.placement import Placement, place
from doppler_tf.report.figures import INK, PALETTE, new_figure, png_bytes, style_axes
from doppler_tf.stages import Policy

LAYERS, BUDGETS, SEEDS = (4, 20), (1.0, 3.0, 10.0), 3
SEARCHES = {"portfolio": "auto", "tied search": "tied_search", "hill climbing": "local_search", "annealing": "annealing"}
CONSTRUCTED, LEARNED = "best heuristic", "policy"


def main() -> None:
    """Prints a table by graph and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.anytime", description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="*", default=LAYERS, help="of the stacks (default: 4 20)")
    parser.add_argument("--graphs", nargs="*", default=[], help="graph files, beside the stacks")
    parser.add_argument("--topology", default="v100x8", help="preset or file (default: v100x8)")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="seconds (default: 1 3 10)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds (default: {SEEDS})")
    parser.add_argument("--policy", type=Path, help="run folder of a trained policy")
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    args = parser.parse_args()
    topology = read_topology(args.topology)
    graphs = {f"stack of {layers}": build_workload("llama_stack", topology.num_devices, layers=layers) for layers in args.layers}
    policy = None if args.policy is None else load_policy(args.policy)
    graphs |= {graph.name: graph for graph in map(read_graph, args.graphs)}
    found = {}
    for name, graph in graphs.items():
        found[name] = curves(graph, build_costs(graph, topology), args.budgets, args.seeds, policy)
        show(f"{name}, {graph.work_vertices.size:,} vertices on {topology.name}: makespan over the lower bound", found[name])
    if args.picture is not None:
        write_bytes(args.picture, picture(found))
    finish(found)


def curves(graph: DataflowGraph, costs: CostModel, budgets: list[float], seeds: int,
           policy: Policy | None) -> dict[str, dict[str, float | None]]:
    """By method: the mean of seeds within each budget; or the seconds that it took and the ratio.

    None: it took half as long again as the budget, or found nothing that fits in memory.
    """
    place(graph, costs, "tied_search", samples=200, budget_s=60.0)  # compiles what is not on disk
    constructed_s, constructed = timed(lambda: min((placed for name in CONSTRUCTIVE for placed in fitting(graph, costs, name)),
                                                   key=lambda placed: placed.makespan_s))
    bound_s = constructed.lower_bound_s
    rows = {CONSTRUCTED: {"took_s": constructed_s, "took_over_bound": constructed.makespan_s / bound_s}}
    if policy is not None:
        for _ in range(2):  # the first compiles
            placed = place(graph, costs, LEARNED, learned={LEARNED: policy})
        rows[LEARNED] = {"took_s": placed.seconds, "took_over_bound": placed.makespan_s / bound_s}
    for name, method in SEARCHES.items():
        rows[name] = {}
        for budget_s in budgets:
            placed = [placed for seed in range(seeds) for placed in fitting(graph, costs, method, seed=seed, budget_s=budget_s)]
            late = len(placed) < seeds or max(each.seconds for each in placed) > 1.5 * budget_s
            rows[name][f"{budget_s:g}_s_over_bound"] = None if late else float(np.mean([each.makespan_s for each in placed])) / bound_s
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    return {name: {column: row.get(column) for column in columns} for name, row in rows.items()}


def fitting(graph: DataflowGraph, costs: CostModel, method: str, **how) -> list[Placement]:
    """The placement; none if it does not fit in memory."""
    try:
        return [place(graph, costs, method, **how)]
    except DeadlockError:
        return []


def picture(found: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> bytes:
    """Lines of searches over seconds, and a point for what has no budget; a panel by graph."""
    figure = new_figure(4.2 * len(found), 3.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, found.items(), strict=True):
        for colour, (method, row) in zip(PALETTE, rows.items(), strict=False):
            points = [(float(key.partition("_")[0]), value) for key, value in row.items() if key[0].isdigit() and value is not None]
            if row["took_s"] is not None:
                axes.plot(row["took_s"], row["took_over_bound"], "D", color=colour, label=method)
            elif points:
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=method)
        axes.set_xscale("log")
        axes.set_xticks(sorted({float(key.partition("_")[0]) for row in rows.values() for key in row if key[0].isdigit()}))
        axes.minorticks_off()
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(name, loc="left", fontsize=9, color=INK)
        axes.set_xlabel("seconds", fontsize=8, color=INK)
        axes.set_ylabel("makespan over the lower bound", fontsize=8, color=INK)
        style_axes(axes)
    named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=7.5, frameon=False)
    return png_bytes(figure)


if __name__ == "__main__":
    main()
