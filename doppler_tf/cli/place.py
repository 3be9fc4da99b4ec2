"""Find an assignment: one method, or the portfolio; the best by simulation wins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import DISPATCH, add_graph, add_pictures, add_topology, output_file, positive_real, sample_count
from doppler_tf.errors import ConfigError

EXAMPLE = "python -m doppler_tf place chainmm.json --topology p100x4 --out placed.json --gantt chainmm.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    parser.add_argument("--method", default="auto", metavar="NAME",
                        help="a heuristic (critical_path, heft, cpop, peft, etf, fcp, min_min, enumerative, partition, round_robin, "
                             "one_device, random), a search (annealing, local_search, random_search, cp_sat) or policy; auto (the "
                             "default) is the portfolio")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy; joins the portfolio, or is method `policy`")
    parser.add_argument("--samples", type=sample_count, metavar="K",
                        help="assignments that each randomised method may try (default: 50, of a policy 64, of a search 200,000 or "
                             "fewer)")
    parser.add_argument("--budget-s", type=positive_real, metavar="S",
                        help="take this many seconds; the portfolio then brings in searches (annealing, local_search, cp_sat)")
    parser.add_argument("--dispatch", default="fifo", metavar=DISPATCH, help="rule that orders the queues (default: fifo)")
    parser.add_argument("--out", type=output_file, metavar="A.json", help="assignment file to write")
    add_pictures(parser, trace=False)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Places, writes the assignment where asked, and says how far above the lower bound it stands."""
    from doppler_tf import placement
    from doppler_tf.cli.inputs import load_costs, load_policy
    from doppler_tf.cli.verdict import write_pictures
    from doppler_tf.formats.assignment_json import write_assignment
    from doppler_tf.simulator import Simulator

    if args.method == "policy" and args.policy is None:
        raise ConfigError("--method policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    graph, costs = load_costs(args.graph, args.topology)
    learned = {} if args.policy is None else {"policy": load_policy(args.policy)}
    placed = placement.place(graph, costs, args.method, args.samples, args.seed, args.dispatch, args.budget_s, learned)
    assignment = placed.assignment
    if args.out is not None:
        write_assignment(args.out, graph, costs, assignment, placed.makespan_s, args.dispatch)
    if args.gantt is not None:
        trace = Simulator(args.dispatch).execute(graph, costs, assignment)
        write_pictures(args, graph, costs, assignment, trace, placed.lower_bound_s)
    return {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "dispatch": args.dispatch,
            "makespan_s": placed.makespan_s, "lower_bound_s": placed.lower_bound_s, "seconds": placed.seconds,
            "members": dict(placed.makespans_s), "out": args.out}


def render(result: dict[str, Any]) -> list:
    """A table of the portfolio's members and one of facts."""
    from doppler_tf.report.tables import facts, grid, over, time_unit

    bound_s, members = result["lower_bound_s"], result["members"]
    unit = time_unit([result["makespan_s"], *members.values()])
    rows = [(name, unit.text(makespan_s), over(makespan_s, bound_s)) for name, makespan_s in members.items()]
    winner = list(members).index(result["method"])
    return [grid(f"{result['graph']} on {result['topology']}", ("method", "makespan", "above the bound"), rows, winner),
            facts("", {"lower bound": unit.text(bound_s), "placed in": f"{result['seconds']:.2f} s", "dispatch": result["dispatch"],
                       "written to": str(result["out"] or "nowhere; --out keeps it")})]
