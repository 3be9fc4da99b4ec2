"""Run methods on graphs, topologies and seeds under one simulator, and write tables, pictures and a page; finished cells are kept."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import (
    ANY_DISPATCH,
    TOPOLOGIES,
    add_workers,
    any_rule,
    natural,
    output_file,
    positive,
    positive_real,
    sample_count,
)
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.formats.files import held

if TYPE_CHECKING:
    from doppler_tf.cli.benchmark.suite import Suite

EXAMPLE = ("python -m doppler_tf bench --workload chainmm ffnn --topology p100x4 --method critical_path annealing@20000 doppler "
           "--simulated 2000 --out build/bench")
MORE_EXAMPLES = ("python -m doppler_tf bench --graph mine.json --topology v100x8 --method heft annealing@5s --seeds 5 --out build/mine",
                 "python -m doppler_tf bench benchmarks/results.toml --out build/results --page docs/results.md --jobs 2")
STAGES = ("imitation", "simulated", "real")
DIRECT = ("workload", "graph", "topology", "method", "budget_s", "dispatch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", *MORE_EXAMPLES))
    parser.add_argument("suite", type=Path, nargs="?", metavar="SUITE.toml",
                        help="file of methods, graphs and sections of the page; without it, use the options below")
    parser.add_argument("--workload", nargs="+", default=[], metavar="NAME", help="workloads at paper scale, cut for the topology")
    parser.add_argument("--graph", nargs="+", default=[], metavar="FILE", help="graph files (doppler-graph/1)")
    parser.add_argument("--topology", nargs="+", default=[], metavar="T", help=TOPOLOGIES)
    parser.add_argument("--method", nargs="+", default=[], metavar="NAME[@N|@Ss]",
                        help="heuristics, searches (annealing@20000: 20,000 simulations; annealing@5s: 5 seconds), auto, and trained "
                             "methods (doppler, sel_only, plc_only, joint, per_step, placeto, gdp)")
    parser.add_argument("--budget-s", type=positive_real, metavar="S", help="seconds for each search and auto without a budget of its own")
    parser.add_argument("--dispatch", type=any_rule, metavar=ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment (default: auto)")
    parser.add_argument("--seeds", type=positive, metavar="N", help="use seeds 0 to N-1 (default: as the suite says, else 3)")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", type=natural, metavar="N", help=f"{stage} episodes of trained methods (default: as `train`)")
    parser.add_argument("--samples", type=sample_count, metavar="K",
                        help="draw K assignments from each policy and report the best (default: as the suite says, else 64)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder of cells, tables and pictures; an interrupted run continues in the same folder")
    add_workers(parser, "cells")
    parser.add_argument("--page", type=output_file, metavar="FILE.md",
                        help="page to write (default: DIR/results.md); its pictures lie beside it")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the cells that have no results yet, and writes tables, pictures and the page."""
    from doppler_tf.cli.benchmark.cell_queue import run_cells
    from doppler_tf.cli.benchmark.cells import plan
    from doppler_tf.cli.benchmark.results_files import write_results

    started = time.perf_counter()
    suite = _suite(args)
    with held(args.out, "--out"):
        cells = plan(suite, args.out)
        records, ran = run_cells(args.out, cells, args.ray, args.jobs)
    made_by = f"python -m doppler_tf bench {args.suite}" if args.suite else "python -m doppler_tf bench"
    sections, files = write_results(args.out, suite, list(records.values()), args.page or args.out / "results.md", made_by)
    failed = {key: record["error"] for key, record in records.items() if record["status"] != "done"}
    return {"out": args.out, "cells": len(cells), "ran": len(ran), "kept": len(cells) - len(ran), "failed": failed, "sections": sections,
            "files": files, "seconds": time.perf_counter() - started}


def render(result: dict[str, Any]) -> list:
    """Tables of a terminal's width, failures and the paths of the files; the page also has the spread and the paper's figures."""
    from doppler_tf.report.results import long_table, matrix_table
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


def _suite(args: argparse.Namespace) -> Suite:
    """The suite from the file, or a suite of one section from the options."""
    from doppler_tf.cli.benchmark.suite import Override
    from doppler_tf.cli.benchmark.suite_file import read_suite, suite_from_record

    stages = {stage: getattr(args, stage) for stage in STAGES if getattr(args, stage) is not None}
    override = Override(args.seeds, args.samples, stages)
    given = [f"--{name.replace('_', '-')}" for name in DIRECT if getattr(args, name)]
    if args.suite is not None:
        if given:
            raise ConfigError(f"bench: {given[0]}: expected no such option beside {args.suite}, got it; put it into the suite or leave the "
                              f"suite out")
        return read_suite(args.suite, override)
    for name, value in {"--workload or --graph": args.workload or args.graph, "--topology": args.topology, "--method": args.method}.items():
        if not value:
            raise field_error(ConfigError, "bench", "", name, "at least one without a suite", "none", f"see {EXAMPLE}")
    methods = {text: _method(text, args.budget_s) for text in args.method}
    graphs = {Path(file).stem.removesuffix(".graph"): {"file": file} for file in args.graph}
    names = [*args.workload, *graphs]
    duplicate = next((name for name in names if names.count(name) > 1 or len(graphs) < len(args.graph)), None)
    if duplicate is not None:
        raise field_error(ConfigError, "bench", "", "--workload, --graph", "different names", duplicate, "rename a file")
    for name in args.workload:
        graphs[name] = {"workload": name}
    section = {"methods": list(methods), "graphs": names, "topologies": args.topology, "layout": "long", "title": "All methods",
               "pictures": ["bars", "curves", "gantt"]}
    return suite_from_record({"title": "Methods compared", "dispatch": args.dispatch or "auto", "methods": methods, "graphs": graphs,
                              "sections": [section]}, "bench", override)


def _method(text: str, budget_s: float | None) -> dict[str, Any]:
    """The suite's record of a method written as NAME, NAME@N or NAME@Ss."""
    from doppler_tf.heuristics import SEARCHES

    name, at, budget = text.partition("@")
    budgeted = name in SEARCHES or name == "auto"
    if not at:
        return {"method": name, **({"seconds": budget_s} if budgeted and budget_s else {})}
    if not budgeted:
        raise field_error(ConfigError, "bench", "", "--method", f"a budget only after {', '.join(SEARCHES)} or auto", text)
    try:
        found = positive_real(budget.removesuffix("s")) if budget.endswith("s") else positive(budget)
    except argparse.ArgumentTypeError:
        raise field_error(ConfigError, "bench", "", "--method", "NAME@N (simulations) or NAME@Ss (seconds)", text) from None
    return {"method": name, ("seconds" if budget.endswith("s") else "simulations"): found}
