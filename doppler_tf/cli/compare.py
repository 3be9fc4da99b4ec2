"""Compare methods on one graph by makespan, distance from the lower bound, and time taken."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli import options

FUNCTION = "doppler_tf.api.comparison.comparing.compare"
EXAMPLE = "python -m doppler_tf compare chainmm.json --topology p100x4 --methods random,critical_path --seeds 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    options.add_graph(parser)
    options.add_topology(parser)
    parser.add_argument("--methods", type=options.names, metavar="A,B,…",
                        help="methods to compare (default: every heuristic except searches, and the policy if one is given)")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy; shown as greedy and as best of K samples")
    parser.add_argument("--samples", type=options.sample_count, metavar="K",
                        help="try K assignments with each randomised method and report the best (default: 50; for a policy 64; for a "
                             "search 200,000 or fewer)")
    parser.add_argument("--budget-s", type=options.positive_real, metavar="S",
                        help="seconds for each method and seed; searches use all of them")
    parser.add_argument("--seeds", type=options.positive, default=1, metavar="N",
                        help="repeat with N seeds; show mean and best (default: 1)")
    parser.add_argument("--dispatch", type=options.any_rule, default="auto", metavar=options.ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment (default: auto)")
    parser.add_argument("--measure", type=options.positive, metavar="N",
                        help="also measure N runs of everything on this machine, in turn with TensorFlow alone, the engine with barriers "
                             "and TensorFlow's executor; with --policy RUN, also the assignments that the run wrote")
    options.add_cluster(parser)


def render(result: dict[str, Any]) -> list:
    """A table with one row per method and the fastest highlighted, and with --measure a table of the runs."""
    from doppler_tf.report.tables import NOTHING, facts, grid, over, time_unit

    methods, bound_s, many = result["methods"], result["lower_bound_s"], result["seeds"] > 1
    host = any(row["reloads"] is not None for row in methods.values())
    unit = time_unit([row["makespan_s"] for row in methods.values()])
    rows = [(name, NOTHING if row["samples"] is None else f"{row['samples']:,}", row["dispatch"] or NOTHING,
             unit.text(row["makespan_s"]), over(row["makespan_s"], bound_s),
             *((unit.text(row["best_makespan_s"]),) if many else ()),
             *((NOTHING if row["reloads"] is None else f"{row['reloads']:,}",) if host else ()),
             f"{row['seconds']:.3f} s") for name, row in methods.items()]
    fastest = min(range(len(rows)), key=lambda i: list(methods.values())[i]["makespan_s"])
    makespan = f"mean of {result['seeds']} seeds" if many else "makespan"
    columns = ("method", "best of", "dispatch", makespan, "above the bound", *(("best",) if many else ()),
               *(("reloads",) if host else ()), "took")
    return [grid(f"{result['graph']} on {result['topology']}", columns, rows, fastest),
            facts("", {"lower bound": unit.text(bound_s)}),
            *([] if result["measured"] is None else [_measured_table(result)])]


def _measured_table(result: dict[str, Any]):
    from doppler_tf.api.comparison.side_by_side import ALONE
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
