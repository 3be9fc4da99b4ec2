"""Compare methods on one graph: makespan, distance from the lower bound, time taken."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import DISPATCH, add_graph, add_topology, names, positive, positive_real, sample_count
from doppler_tf.errors import ConfigError, DeadlockError, field_error

if TYPE_CHECKING:
    from doppler_tf.assignment import Assignment
    from doppler_tf.cli.inputs import Policy
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph

EXAMPLE = "python -m doppler_tf compare chainmm.json --topology p100x4 --methods random,critical_path --seeds 3"
GREEDY = "policy_greedy"
LEARNED_SIMULATED, LEARNED = "learned, before stage III", "learned"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    parser.add_argument("--methods", type=names, metavar="A,B,…",
                        help="what to compare (default: every heuristic that is no search, and `policy` if given)")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy; shown greedy and best of K")
    parser.add_argument("--samples", type=sample_count, metavar="K",
                        help="assignments that each randomised method tries, the best counts (default: 50, of a policy 64, of a search "
                             "200,000 or fewer)")
    parser.add_argument("--budget-s", type=positive_real, metavar="S", help="seconds for each method and seed; searches take them all")
    parser.add_argument("--seeds", type=positive, default=1, metavar="N", help="repeat with N seeds and show mean and best (default: 1)")
    parser.add_argument("--dispatch", default="fifo", metavar=DISPATCH, help="rule that orders the queues (default: fifo)")
    parser.add_argument("--measure", type=positive, metavar="N",
                        help="also run everything N times on this machine, in turn, beside TensorFlow alone, the engine with barriers and "
                             "TensorFlow's executor; with --policy RUN the assignments that the run wrote, too")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Places with each method and each seed."""
    from doppler_tf.bounds import lower_bounds
    from doppler_tf.cli.inputs import load_costs, load_policy
    from doppler_tf.heuristics import CONSTRUCTIVE, HEURISTICS

    methods = args.methods or [*CONSTRUCTIVE, *(["policy"] if args.policy else [])]
    if "policy" in methods and args.policy is None:
        raise ConfigError("--methods policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    known = (*HEURISTICS, "policy")
    unknown = next((method for method in methods if method not in known), None)
    if unknown is not None:
        raise field_error(ConfigError, "compare", "", "--methods", f"names among {', '.join(known)}", unknown)
    graph, costs = load_costs(args.graph, args.topology)
    learned = _learned(load_policy(args.policy)) if "policy" in methods else {}
    members = [member for method in methods for member in (learned if method == "policy" else (method,))]
    if args.measure is not None:
        _check_measurable(graph)
    _load_compiled(graph, costs, ["one_device", *(member for member in members if member not in learned)])
    proven_s = [lower_bounds(graph, costs).best_s]
    best: dict[str, Assignment] = {}
    rows = {member: _row(args, graph, costs, member, learned, proven_s, best) for member in members}
    measured = None if args.measure is None else _measure(args, graph, costs, best)
    return {"graph": graph.name, "topology": costs.topology.name, "dispatch": args.dispatch, "seeds": args.seeds,
            "lower_bound_s": max(proven_s), "methods": rows, "measured": measured}


def render(result: dict[str, Any]) -> list:
    """The table: a row a method, the fastest stands out."""
    from doppler_tf.report.tables import facts, grid, over, time_unit

    methods, bound_s, many = result["methods"], result["lower_bound_s"], result["seeds"] > 1
    unit = time_unit([row["makespan_s"] for row in methods.values()])
    rows = [(name, "–" if row["samples"] is None else f"{row['samples']:,}", unit.text(row["makespan_s"]), over(row["makespan_s"], bound_s),
             *((unit.text(row["best_makespan_s"]),) if many else ()), f"{row['seconds']:.3f} s") for name, row in methods.items()]
    fastest = min(range(len(rows)), key=lambda i: list(methods.values())[i]["makespan_s"])
    makespan = f"mean of {result['seeds']} seeds" if many else "makespan"
    columns = ("method", "best of", makespan, "above the bound", *(("best",) if many else ()), "took")
    return [grid(f"{result['graph']} on {result['topology']}", columns, rows, fastest),
            facts("", {"lower bound": unit.text(bound_s), "dispatch": result["dispatch"]}),
            *([] if result["measured"] is None else [_measured_table(result)])]


def _measured_table(result: dict[str, Any]):
    from doppler_tf.cli.side_by_side import ALONE
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    rows = result["measured"]
    unit = time_unit([row["median_s"] for row in rows.values()])
    shown = [(name, NOTHING if row["simulated_s"] is None else unit.text(row["simulated_s"]), unit.text(row["median_s"]),
              f"{unit.text(row['low_s'])} to {unit.text(row['high_s'])}", f"{row['median_s'] / rows[ALONE]['median_s']:.2f}")
             for name, row in rows.items()]
    fastest = min(range(len(shown)), key=lambda i: list(rows.values())[i]["median_s"])
    runs = next(iter(rows.values()))["runs"]
    columns = ("what", "simulated", "measured", "half of all", f"over {ALONE}")
    return grid(f"measured on this machine: medians of {runs} turns", columns, shown, fastest)


def _check_measurable(graph: DataflowGraph) -> None:
    from doppler_tf.cli.executors import has_kernels

    if not has_kernels(graph):
        raise ConfigError(f"--measure: expected a graph with kernels, got {graph.name} without; make the graph with `workload`, or leave "
                          f"out --measure")


def _measure(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel,
             found: dict[str, Assignment]) -> dict[str, dict[str, float | int | None]]:
    """Runs what was found, and what a training run wrote for this graph, in turn; with barriers what is best by simulation or learned."""
    from doppler_tf.cli.inputs import load_assignment
    from doppler_tf.cli.messages import bars_wanted
    from doppler_tf.cli.side_by_side import measure_side_by_side
    from doppler_tf.formats.files import file_name
    from doppler_tf.report.progress import progress_bar
    from doppler_tf.simulator import Simulator

    found = {name: assignment for name, assignment in found.items() if name != GREEDY or "policy" not in found}
    leader = min(found, key=lambda name: Simulator(args.dispatch).execute(graph, costs, found[name]).makespan_s, default=None)
    for name, ending in ((LEARNED_SIMULATED, ".simulated.json"), (LEARNED, ".json")):
        path = None if args.policy is None else args.policy / "assignments" / f"{file_name(graph.name)}{ending}"
        if path is not None and path.exists():
            assignment, _ = load_assignment(path, graph, costs, args.dispatch)
            leader = name if assignment.method in ("", "policy") else f"{name} ({assignment.method})"
            found[leader] = assignment
    if leader is None:
        raise ConfigError("--measure: expected a method whose assignment fits in memory, got none; name others with --methods")
    with progress_bar("measuring", show=bars_wanted()) as show:
        return measure_side_by_side(args.graph, graph, costs, found, leader, args.dispatch, args.measure, show)


def _row(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel, member: str, learned: dict[str, Policy],
         proven_s: list[float], best: dict[str, Assignment]) -> dict[str, float]:
    """One method over all seeds; infinite where it runs out of memory, which is a result too.

    Lower bounds are added to `proven_s`, the fastest assignment to `best`.
    """
    from doppler_tf.heuristics import SEARCHES
    from doppler_tf.placement import learned_samples, place, tried

    samples = args.samples
    if member in learned:
        samples = 1 if member == GREEDY else samples or learned_samples(graph)
    makespans_s, seconds = [], []
    for seed in range(args.seed, args.seed + args.seeds):
        started = time.perf_counter()
        try:
            placed = place(graph, costs, member, samples, seed, args.dispatch, args.budget_s, learned)
            if placed.makespan_s < min(makespans_s, default=math.inf):
                best[member] = placed.assignment
            makespans_s.append(placed.makespan_s)
            proven_s.append(placed.lower_bound_s)
        except DeadlockError:
            makespans_s.append(math.inf)
        seconds.append(time.perf_counter() - started)
    timed = member in SEARCHES and args.samples is None and args.budget_s is not None
    shown = None if timed else samples if member in learned else tried(member, graph, samples)
    return {"samples": shown, "makespan_s": mean(makespans_s), "best_makespan_s": min(makespans_s), "seconds": mean(seconds)}


def _learned(policy: Policy) -> dict[str, Policy]:
    """A policy as two members: its greedy assignment alone, and the best of its samples."""
    return {GREEDY: policy, "policy": policy}


def _load_compiled(graph: DataflowGraph, costs: CostModel, members: list[str]) -> None:
    """Loads (or makes) the compiled code first, so that no method's time pays for it."""
    from doppler_tf.placement import place

    for method in members:
        with contextlib.suppress(DeadlockError):
            place(graph, costs, method, samples=1)
