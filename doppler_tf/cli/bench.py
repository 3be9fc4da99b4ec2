"""Run methods on graphs, topologies and seeds under one simulator, and write tables, pictures and a page; finished cells are kept."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.cli import options

FUNCTION = "doppler_tf.api.benchmark.bench.bench"
EXAMPLE = ("python -m doppler_tf bench --workload chainmm ffnn --topology p100x4 --method critical_path annealing@20000 doppler "
           "--simulated 2000 --out build/bench")
MORE_EXAMPLES = ("python -m doppler_tf bench --graph mine.json --topology v100x8 --method heft annealing@5s --seeds 5 --out build/mine",
                 "python -m doppler_tf bench benchmarks/results.toml --out build/results --page docs/results.md --jobs 2")
STAGES = ("imitation", "simulated", "real")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("suite", type=Path, nargs="?", metavar="SUITE.toml",
                        help="file of methods, graphs and sections of the page; without it, use the options below")
    parser.add_argument("--workload", nargs="+", default=[], metavar="NAME", help="workloads at paper scale, cut for the topology")
    parser.add_argument("--graph", nargs="+", default=[], metavar="FILE", help="graph files (doppler-graph/1)")
    parser.add_argument("--topology", nargs="+", default=[], metavar="T", help=options.TOPOLOGIES)
    parser.add_argument("--method", nargs="+", default=[], metavar="NAME[@N|@Ss]",
                        help="heuristics, searches (annealing@20000: 20,000 simulations; annealing@5s: 5 seconds), auto, and trained "
                             "methods (doppler, sel_only, plc_only, joint, per_step, placeto, gdp)")
    parser.add_argument("--budget-s", type=options.positive_real, metavar="S",
                        help="seconds for each search and auto without a budget of its own")
    parser.add_argument("--dispatch", type=options.any_rule, metavar=options.ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment (default: auto)")
    parser.add_argument("--seeds", type=options.positive, metavar="N", help="use seeds 0 to N-1 (default: as the suite says, else 3)")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", type=options.natural, metavar="N",
                            help=f"{stage} episodes of trained methods (default: as `train`)")
    parser.add_argument("--samples", type=options.sample_count, metavar="K",
                        help="draw K assignments from each policy and report the best (default: as the suite says, else 64)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder of cells, tables and pictures; an interrupted run continues in the same folder")
    options.add_workers(parser, "cells")
    parser.add_argument("--page", type=options.output_file, metavar="FILE.md",
                        help="page to write (default: DIR/results.md); its pictures lie beside it")


def render(result: dict[str, Any]) -> list:
    """Tables of a terminal's width, failures and the paths of the files; the page also has the spread and the paper's figures."""
    from doppler_tf.report.bench.results import long_table, matrix_table
    from doppler_tf.report.tables import facts, grid

    tables = []
    for section in result["sections"]:
        rows = section["rows"]
        if section["layout"] == "matrix":
            parts = {section["title"]: matrix_table(rows, section["reference"], spread=False)} if rows else {}
        else:
            places = dict.fromkeys((row["graph"], row["topology"]) for row in rows)
            parts = {f"{section['title']}: {' on '.join(place)}":
                     long_table([row for row in rows if (row["graph"], row["topology"]) == place]) for place in places}
        tables += [grid(title, *table) for title, table in parts.items()]
    return [*tables, *([facts("failed", result["failed"])] if result["failed"] else []),
            facts("", {"cells": f"{result['cells']}: {result['ran']} run now, {result['kept']} kept, {len(result['failed'])} failed",
                       "took": f"{result['seconds']:.1f} s", **{name: str(path) for name, path in result["files"].items()}})]


def exit_code(result: Mapping[str, Any]) -> int:
    """1 if a cell failed."""
    return 1 if result["failed"] else 0
