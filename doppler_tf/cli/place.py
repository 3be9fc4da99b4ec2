"""Find an assignment with one method or the portfolio, and choose the best by simulation or by measured runs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import (
    ANY_DISPATCH,
    add_batches,
    add_cluster,
    add_graph,
    add_pictures,
    add_topology,
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
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
    parser.add_argument("--out", type=output_file, metavar="A.json", help="assignment file to write")
    add_pictures(parser, trace=False)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Places, with --measure also runs, and writes the assignment; returns its makespan and the lower bound."""
    from doppler_tf import placement
    from doppler_tf.batches import repeat_graph
    from doppler_tf.cli.inputs import load_costs, load_policy
    from doppler_tf.cli.output import batch_figures, write_pictures
    from doppler_tf.formats.assignment_json import write_assignment
    from doppler_tf.simulator import Simulator

    if args.method == "policy" and args.policy is None:
        raise ConfigError("--method policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    if args.time_scale is not None and args.measure is None:
        raise ConfigError("--time-scale: expected --measure N beside it, got none; add it, or leave out --time-scale")
    if args.noise is not None and args.in_flight is not None:
        raise ConfigError("--noise: expected no --in-flight beside it, got both; leave out one")
    if args.cluster is not None and (args.measure is None or args.time_scale is not None):
        raise ConfigError("--cluster: expected --measure N beside it, and no --time-scale; only runs of real kernels need the machines")
    graph, costs = load_costs(args.graph, args.topology)
    cluster = None if args.measure is None else _prepare(args, graph, costs)
    learned = {} if args.policy is None else {"policy": load_policy(args.policy)}
    how, in_flight = (args.method, args.samples, args.seed, args.dispatch, args.budget_s, learned), {}
    if args.in_flight is None:
        placed = placement.place(graph, costs, *how, args.noise)
    else:
        batches = repeat_graph(graph, costs.topology, args.in_flight, args.in_flight)
        placed = placement.place_batches(batches, *how)
        graph, costs = batches.graph, batches.costs
    assignment, makespan_s, measured = placed.assignment, placed.makespan_s, {}
    if args.measure is not None:
        from doppler_tf.cli.measured_choice import choose_batches_by_runs, choose_by_runs

        assignment, makespan_s, measured = (
            choose_by_runs(graph, costs, placed, args.measure, args.time_scale, args.seed, cluster) if args.in_flight is None
            else choose_batches_by_runs(batches, placed, args.measure, args.time_scale, args.seed, cluster))
    if args.in_flight is not None:
        in_flight = batch_figures(batches, Simulator().execute(graph, costs, assignment))
    if args.out is not None:
        write_assignment(args.out, graph, costs, assignment, makespan_s, args.in_flight)
    if args.gantt is not None:
        trace = Simulator().execute(graph, costs, assignment)
        write_pictures(args, graph, costs, assignment, trace, placed.lower_bound_s)
    return {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "dispatch": assignment.dispatch,
            "makespan_s": makespan_s, **in_flight, "lower_bound_s": placed.lower_bound_s, "seconds": placed.seconds,
            "members": dict(placed.makespans_s), "rules": {name: a.dispatch for name, a in placed.assignments.items()},
            "noisy_means_s": dict(placed.noisy_means_s), **measured, "out": args.out}


def render(result: dict[str, Any]) -> list:
    """Tables of the portfolio's members, of the measured runs and of facts."""
    from doppler_tf.cli.output import batch_facts
    from doppler_tf.report.tables import facts, grid, over, time_unit

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


def _measured_table(result: dict[str, Any]):
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    rows = sorted(result["measured"].items(), key=lambda item: math.inf if item[1]["median_s"] is None else item[1]["median_s"])
    unit = time_unit([row[key] for _, row in rows for key in ("simulated_s", "high_s")])
    shown = [(name, unit.text(row["simulated_s"]), unit.text(row["median_s"]),
              f"{unit.text(row['low_s'])} to {unit.text(row['high_s'])}" if row["runs"] else NOTHING, f"{row['runs']:,}")
             for name, row in rows]
    winner = [name for name, _ in rows].index(result["chosen"])
    return grid("measured: medians", ("finalist", "simulated", "measured", "half of all", "runs"), shown, winner)


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
