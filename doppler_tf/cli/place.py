"""Find assignments of graphs with one method or the portfolio, and choose the best by simulation or by measured runs."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.messages import note
from doppler_tf.cli.options import (
    ANY_DISPATCH,
    add_batches,
    add_cluster,
    add_pictures,
    add_topology,
    add_workers,
    any_rule,
    output_file,
    positive,
    positive_real,
    sample_count,
    share,
)
from doppler_tf.errors import ConfigError

if TYPE_CHECKING:
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from runtime.cluster import Cluster

EXAMPLE = "python -m doppler_tf place chainmm.json --topology p100x4 --out placed.json --gantt chainmm.png"
SEVERAL = "python -m doppler_tf place graphs/ --topology v100x8 --budget-s 60 --out placed/ --jobs 8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", SEVERAL))
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH",
                        help="graph file (doppler-graph/1); or several, or a folder of them, each placed by itself")
    add_topology(parser)
    parser.add_argument("--method", default="auto", metavar="NAME",
                        help="a heuristic (critical_path, heft, cpop, peft, etf, fcp, min_min, enumerative, partition, round_robin, "
                             "one_device, random), a search (annealing, local_search, tied_search, random_search, cp_sat) or policy; "
                             "auto (the default) is the portfolio")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy, for the portfolio or --method policy")
    parser.add_argument("--samples", type=sample_count, metavar="K",
                        help="try at most K assignments with each randomised method (default: 50; for a policy 64; for a search 200,000 "
                             "or fewer)")
    parser.add_argument("--budget-s", type=positive_real, metavar="S",
                        help="take S seconds; the portfolio then also searches (annealing, local_search, cp_sat)")
    parser.add_argument("--dispatch", type=any_rule, default="auto", metavar=ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment; hill climbing then moves priorities, too "
                             "(default: auto)")
    add_batches(parser, repeat=False)
    parser.add_argument("--measure", type=positive, metavar="N",
                        help="choose by N runs in total of the assignments found and simple placements, on this machine (the graph needs "
                             "kernels) or, with --time-scale, on emulated devices")
    add_cluster(parser)
    parser.add_argument("--time-scale", type=positive_real, metavar="X",
                        help="with --measure: run on emulated devices, where a modelled second takes X seconds")
    parser.add_argument("--noise", type=share, metavar="S",
                        help="choose by the mean of 20 simulations in which every time varies by about this share, such as 0.05")
    parser.add_argument("--out", type=Path, metavar="A.json|DIR", help="assignment file to write; for several graphs a folder")
    add_pictures(parser, trace=False)
    add_workers(parser, "graphs")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Places, with --measure also runs, and writes the assignment; returns its makespan and the lower bound."""
    from doppler_tf.cli.inputs import load_costs
    from doppler_tf.cli.output import write_pictures
    from doppler_tf.cli.placements import How, figures, graph_files, place_as, place_several
    from doppler_tf.formats.assignment_json import write_assignment
    from doppler_tf.simulator import Simulator

    _check_options(args)
    how = How(args.method, args.samples, args.seed, args.dispatch, args.budget_s, args.noise, args.in_flight, args.policy)
    if len(args.graphs) > 1 or args.graphs[0].is_dir():
        return place_several(how, graph_files(args.graphs), args.topology, args.costs, args.out, args.ray, args.jobs)
    if args.ray is not None or (args.jobs or 1) > 1:
        note("--jobs, --ray: one graph is placed by this process")
    if args.out is not None:
        output_file(args.out)
    graph, costs = load_costs(args.graphs[0], args.topology, args.costs)
    cluster = None if args.measure is None else _prepare(args, graph, costs)
    placed, batches = place_as(how, graph, costs)
    assignment, makespan_s, measured = placed.assignment, placed.makespan_s, {}
    if batches is not None:
        graph, costs = batches.graph, batches.costs
    if args.measure is not None:
        from doppler_tf.cli.measured_choice import choose_batches_by_runs, choose_by_runs

        assignment, makespan_s, measured = (
            choose_by_runs(graph, costs, placed, args.measure, args.time_scale, args.seed, cluster) if batches is None
            else choose_batches_by_runs(batches, placed, args.measure, args.time_scale, args.seed, cluster))
    assignment = replace(assignment, proven_bound_s=placed.assignment.proven_bound_s)  # runs may have chosen another one
    if args.out is not None:
        write_assignment(args.out, graph, costs, assignment, makespan_s, args.in_flight)
    if args.gantt is not None:
        trace = Simulator().execute(graph, costs, assignment)
        write_pictures(args, graph, costs, assignment, trace, placed.lower_bound_s)
    return {"graph": graph.name, "topology": costs.topology.name, **figures(placed, batches, assignment), "makespan_s": makespan_s,
            **measured, "out": args.out}


def render(result: dict[str, Any]) -> list:
    """Tables of the portfolio's members, of the measured runs and of facts."""
    from doppler_tf.cli.output import batch_facts
    from doppler_tf.report.tables import facts, grid, over, time_unit

    if "graphs" in result:
        return _several_tables(result)
    bound_s, members = result["lower_bound_s"], result["members"]
    unit = time_unit([result["makespan_s"], *members.values()])
    noisy = result["noisy_means_s"]
    rows = [(name, result["rules"][name], unit.text(makespan_s), over(makespan_s, bound_s), *([unit.text(noisy[name])] if noisy else []))
            for name, makespan_s in members.items()]
    winner = list(members).index(result["method"]) if result["method"] in members else None
    columns = ("method", "dispatch", "makespan", "above the bound", *(["with noise"] if noisy else []))
    return [grid(f"{result['graph']} on {result['topology']}", columns, rows, winner),
            *([_measured_table(result)] if "measured" in result else []),
            *([result["reason"], ""] if result.get("reason") else []),
            facts("", {**batch_facts(result), "lower bound": unit.text(bound_s), "placed in": f"{result['seconds']:.2f} s",
                       "dispatch": result["dispatch"], "written to": str(result["out"] or "nowhere; --out A.json writes it")})]


def exit_code(result: dict[str, Any]) -> int:
    """1 if one of several graphs could not be placed."""
    return 1 if result.get("failed") else 0


def _several_tables(result: dict[str, Any]) -> list:
    from doppler_tf.report.tables import facts, grid, over, time_unit

    unit = time_unit([row["makespan_s"] for row in result["graphs"].values()])
    rows = [(name, row["method"], row["dispatch"], unit.text(row["makespan_s"]), over(row["makespan_s"], row["lower_bound_s"]),
             f"{row['seconds']:.2f} s") for name, row in result["graphs"].items()]
    return [grid(f"on {result['topology']}", ("graph", "method", "dispatch", "makespan", "above the bound", "placed in"), rows),
            *([facts("failed", result["failed"])] if result["failed"] else []),
            facts("", {"took": f"{result['seconds']:.1f} s", "written to": str(result["out"] or "nowhere; --out DIR writes them")})]


def _measured_table(result: dict[str, Any]):
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    rows = sorted(result["measured"].items(), key=lambda item: math.inf if item[1]["median_s"] is None else item[1]["median_s"])
    unit = time_unit([row[key] for _, row in rows for key in ("simulated_s", "high_s")])
    shown = [(name, unit.text(row["simulated_s"]), unit.text(row["median_s"]),
              f"{unit.text(row['low_s'])} to {unit.text(row['high_s'])}" if row["runs"] else NOTHING, f"{row['runs']:,}")
             for name, row in rows]
    winner = [name for name, _ in rows].index(result["chosen"])
    return grid("measured: medians", ("finalist", "simulated", "measured", "half of all", "runs"), shown, winner)


def _check_options(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not go together."""
    if args.method == "policy" and args.policy is None:
        raise ConfigError("--method policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    if args.time_scale is not None and args.measure is None:
        raise ConfigError("--time-scale: expected --measure N beside it, got none; add it, or leave out --time-scale")
    if args.noise is not None and args.in_flight is not None:
        raise ConfigError("--noise: expected no --in-flight beside it, got both; leave out one")
    if args.cluster is not None and (args.measure is None or args.time_scale is not None):
        raise ConfigError("--cluster: expected --measure N beside it, and no --time-scale; only runs of real kernels need the machines")
    for option in ("measure", "gantt"):
        if getattr(args, option) is not None and (len(args.graphs) > 1 or args.graphs[0].is_dir()):
            raise ConfigError(f"--{option}: expected one graph file beside it, got {' '.join(map(str, args.graphs))}; place one at a time")


def _prepare(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel) -> Cluster | None:
    """Raises ConfigError for a graph that cannot be measured. Makes the devices before a policy runs TensorFlow's first operation."""
    from doppler_tf.cli.executors import has_kernels
    from doppler_tf.cli.inputs import load_cluster
    from doppler_tf.cli.tensorflow import import_quietly

    if args.time_scale is not None:
        return None
    if not has_kernels(graph):
        raise ConfigError(f"--measure: expected a graph with kernels, got {graph.name} without; make the graph with `workload`, or give "
                          f"--time-scale X for emulated devices")
    if args.cluster is not None:
        return load_cluster(args.cluster, costs.topology)
    if args.policy is not None:
        import_quietly("agents.config")
        import_quietly("runtime").prepare_devices(costs.num_devices)
    return None
