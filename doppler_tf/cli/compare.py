"""Compare methods on one graph by makespan, distance from the lower bound, and time taken."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import (
    ANY_DISPATCH,
    add_cluster,
    add_graph,
    add_topology,
    any_rule,
    names,
    positive,
    positive_real,
    sample_count,
)
from doppler_tf.errors import ConfigError, field_error

if TYPE_CHECKING:
    from doppler_tf.graph import DataflowGraph

EXAMPLE = "python -m doppler_tf compare chainmm.json --topology p100x4 --methods random,critical_path --seeds 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    parser.add_argument("--methods", type=names, metavar="A,B,…",
                        help="methods to compare (default: every heuristic except searches, and the policy if one is given)")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy; shown as greedy and as best of K samples")
    parser.add_argument("--samples", type=sample_count, metavar="K",
                        help="try K assignments with each randomised method and report the best (default: 50; for a policy 64; for a "
                             "search 200,000 or fewer)")
    parser.add_argument("--budget-s", type=positive_real, metavar="S", help="seconds for each method and seed; searches use all of them")
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="repeat with N seeds; show mean and best (default: 1)")
    parser.add_argument("--dispatch", type=any_rule, default="auto", metavar=ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment (default: auto)")
    parser.add_argument("--measure", type=positive, metavar="N",
                        help="also measure N runs of everything on this machine, in turn with TensorFlow alone, the engine with barriers "
                             "and TensorFlow's executor; with --policy RUN, also the assignments that the run wrote")
    add_cluster(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Places with each method and each seed."""
    from doppler_tf.cli.inputs import load_cluster, load_costs, load_policy
    from doppler_tf.cli.side_by_side import measure_found
    from doppler_tf.heuristics import CONSTRUCTIVE, HEURISTICS
    from doppler_tf.report.comparison import compare_methods

    methods = args.methods or [*CONSTRUCTIVE, *(["policy"] if args.policy else [])]
    if "policy" in methods and args.policy is None:
        raise ConfigError("--methods policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    known = (*HEURISTICS, "policy")
    unknown = next((method for method in methods if method not in known), None)
    if unknown is not None:
        raise field_error(ConfigError, "compare", "", "--methods", f"names among {', '.join(known)}", unknown)
    if args.cluster is not None and args.measure is None:
        raise ConfigError("--cluster: expected --measure N beside it, got none; only runs need the machines")
    graph, costs = load_costs(args.graph, args.topology, args.costs)
    if args.measure is not None:
        _check_measurable(graph)
    cluster = load_cluster(args.cluster, costs.topology)  # before a policy runs TensorFlow's first operation
    policy = load_policy(args.policy) if "policy" in methods else None
    seeds = range(args.seed, args.seed + args.seeds)
    found = compare_methods(graph, costs, methods, policy, seeds, args.samples, args.budget_s, args.dispatch)
    measured = None
    if args.measure is not None:
        measured = measure_found(args.graph, graph, costs, found.best, args.policy, args.measure, cluster)
    return {"graph": graph.name, "topology": costs.topology.name, "dispatch": args.dispatch, "seeds": args.seeds,
            "lower_bound_s": found.lower_bound_s, "methods": found.rows, "measured": measured,
            "cluster": None if args.cluster is None else str(args.cluster)}


def render(result: dict[str, Any]) -> list:
    """A table with one row per method and the fastest highlighted, and with --measure a table of the runs."""
    from doppler_tf.report.tables import NOTHING, facts, grid, over, time_unit

    methods, bound_s, many = result["methods"], result["lower_bound_s"], result["seeds"] > 1
    unit = time_unit([row["makespan_s"] for row in methods.values()])
    rows = [(name, NOTHING if row["samples"] is None else f"{row['samples']:,}", row["dispatch"] or NOTHING,
             unit.text(row["makespan_s"]), over(row["makespan_s"], bound_s),
             *((unit.text(row["best_makespan_s"]),) if many else ()), f"{row['seconds']:.3f} s") for name, row in methods.items()]
    fastest = min(range(len(rows)), key=lambda i: list(methods.values())[i]["makespan_s"])
    makespan = f"mean of {result['seeds']} seeds" if many else "makespan"
    columns = ("method", "best of", "dispatch", makespan, "above the bound", *(("best",) if many else ()), "took")
    return [grid(f"{result['graph']} on {result['topology']}", columns, rows, fastest),
            facts("", {"lower bound": unit.text(bound_s)}),
            *([] if result["measured"] is None else [_measured_table(result)])]


def _measured_table(result: dict[str, Any]):
    from doppler_tf.cli.side_by_side import ALONE
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    rows = result["measured"]
    alone_s = min(row["median_s"] for name, row in rows.items() if name.startswith(ALONE))
    unit = time_unit([row["median_s"] for row in rows.values()])
    shown = [(name, NOTHING if row["simulated_s"] is None else unit.text(row["simulated_s"]), unit.text(row["median_s"]),
              f"{unit.text(row['low_s'])} to {unit.text(row['high_s'])}", f"{row['median_s'] / alone_s:.2f}")
             for name, row in rows.items()]
    fastest = min(range(len(shown)), key=lambda i: list(rows.values())[i]["median_s"])
    runs = next(iter(rows.values()))["runs"]
    columns = ("what", "simulated", "measured", "half of all", f"over the best of {ALONE}")
    return grid(f"measured on {result['cluster'] or 'this machine'}: medians of {runs} turns", columns, shown, fastest)


def _check_measurable(graph: DataflowGraph) -> None:
    from doppler_tf.cli.executors import has_kernels

    if not has_kernels(graph):
        raise ConfigError(f"--measure: expected a graph with kernels, got {graph.name} without; make the graph with `workload`, or leave "
                          f"out --measure")
