"""Simulate an assignment: its makespan, the lower bound, and the busy share of each device."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli.options import add_assignment, add_batches, add_graph, add_pictures, add_topology

EXAMPLE = "python -m doppler_tf simulate chainmm.json --topology p100x4 --assignment placed.json --gantt chainmm.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    add_assignment(parser)
    add_batches(parser)
    add_pictures(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Simulates under the virtual clock and judges the trace exactly."""
    from doppler_tf.bounds import known_bound_s
    from doppler_tf.cli.inputs import load_assignment, load_batches, load_costs
    from doppler_tf.cli.output import batch_figures, write_pictures
    from doppler_tf.report.verdict import judge, usage
    from doppler_tf.simulator import Simulator

    graph, costs = load_costs(args.graph, args.topology, args.costs)
    batches = None
    if args.repeat is None and args.in_flight is None:
        assignment = load_assignment(args.assignment, graph, costs, args.dispatch)
    else:
        batches, assignment = load_batches(args.assignment, graph, costs, args.dispatch, args.repeat, args.in_flight)
        graph, costs = batches.graph, batches.costs
    trace = Simulator().execute(graph, costs, assignment)
    lower_bound_s = known_bound_s(graph, costs, assignment)
    write_pictures(args, graph, costs, assignment, trace, lower_bound_s)
    return {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "dispatch": assignment.dispatch,
            "makespan_s": trace.makespan_s, "lower_bound_s": lower_bound_s, "transfers": len(trace.producer),
            **({} if batches is None else batch_figures(batches, trace)),
            **judge(graph, costs, assignment, trace), **usage(graph, costs, assignment, trace, valid=True)}


def render(result: dict[str, Any]) -> list:
    """Tables of facts and of devices."""
    from doppler_tf.cli.output import batch_facts, device_table
    from doppler_tf.report.tables import facts, over, time_unit, yes_no

    unit = time_unit([result["makespan_s"]])
    return [facts(f"{result['graph']} on {result['topology']}, simulated", {
        "assignment": result["method"] or "by hand", "dispatch": result["dispatch"], "makespan": unit.text(result["makespan_s"]),
        **batch_facts(result),
        "lower bound": unit.text(result["lower_bound_s"]), "above the bound": over(result["makespan_s"], result["lower_bound_s"]),
        "transfers": f"{result['transfers']:,}", "trace valid": yes_no(result["trace_valid"]),
        "work conserving": yes_no(result["work_conserving"])}),
        device_table(result)]
