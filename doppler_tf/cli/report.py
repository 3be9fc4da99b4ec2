"""Write a page on a training run: figures, methods, the best assignment over time, learning curves, the graph by device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import output_file

FUNCTION = "doppler_tf.api.runs.reporting.write_report"
EXAMPLE = "python -m doppler_tf report runs/chainmm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder that `train` wrote")
    parser.add_argument("--out", type=output_file, metavar="PAGE.html", help="page to write (default: RUN/report/index.html)")


def _measured(graphs: dict[str, dict[str, Any]]) -> list:
    """A table of the medians of stage III; none where nothing was measured."""
    from doppler_tf.report.methods import fastest_baseline
    from doppler_tf.report.tables import grid, time_unit

    rows = []
    for name, row in graphs.items():
        if (measured := row.get("measured")) is not None:
            first, first_s = fastest_baseline(measured)
            unit = time_unit([measured["best_s"], measured["before_s"], first_s])
            rows.append((name, unit.text(measured["best_s"]), unit.text(measured["before_s"]), f"{unit.text(first_s)} ({first})"))
    columns = ("graph", "best", "greedy before", "fastest baseline")
    return [grid("measured in stage III, which chose the best", columns, rows)] if rows else []


def render(result: dict[str, Any]) -> list:
    """Tables with one row per graph, and the path of the page."""
    from doppler_tf.report.methods import fastest_heuristic
    from doppler_tf.report.tables import facts, grid, over, time_unit

    rows = []
    for name, row in result["graphs"].items():
        first = fastest_heuristic(row["methods"])
        unit = time_unit([row["best_makespan_s"], row["lower_bound_s"]])
        heuristic = "none fits in memory" if first is None else f"{unit.text(row['methods'][first])} ({first})"
        rows.append((name, unit.text(row["best_makespan_s"]), unit.text(row["lower_bound_s"]),
                     over(row["best_makespan_s"], row["lower_bound_s"]), heuristic))
    return [grid("simulated", ("graph", "best", "lower bound", "best above it", "fastest heuristic"), rows), *_measured(result["graphs"]),
            facts("", {"page": str(result["page"])})]
