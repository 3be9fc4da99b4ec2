"""Simulate an assignment: its makespan, the lower bound, and the busy share of each device."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli.options import add_assignment, add_batches, add_graph, add_pictures, add_topology

FUNCTION = "doppler_tf.api.traces.simulated"
EXAMPLE = "python -m doppler_tf simulate chainmm.json --topology p100x4 --assignment placed.json --gantt chainmm.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    add_assignment(parser)
    add_batches(parser)
    add_pictures(parser)


def render(result: dict[str, Any]) -> list:
    """Tables of facts and of devices."""
    from doppler_tf.cli.output import batch_facts, device_table, offload_facts
    from doppler_tf.report.tables import facts, over, time_unit, yes_no

    unit = time_unit([result["makespan_s"]])
    return [facts(f"{result['graph']} on {result['topology']}, simulated", {
        "assignment": result["method"] or "by hand", "dispatch": result["dispatch"], "makespan": unit.text(result["makespan_s"]),
        **batch_facts(result), **offload_facts(result),
        "lower bound": unit.text(result["lower_bound_s"]), "above the bound": over(result["makespan_s"], result["lower_bound_s"]),
        "transfers": f"{result['transfers']:,}", "trace valid": yes_no(result["trace_valid"]),
        "work conserving": yes_no(result["work_conserving"])}),
        device_table(result)]
