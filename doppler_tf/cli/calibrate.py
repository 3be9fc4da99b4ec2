"""Measure kernels and links, write them as costs, and compare simulated with measured makespans."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import add_cluster, add_graph, add_topology, positive, positive_real

FUNCTION = "doppler_tf.api.calibration.calibrate"
EXAMPLE = "python -m doppler_tf calibrate small.json --topology cpu:2 --assignments 20 --out runs/calibrated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    add_cluster(parser)
    parser.add_argument("--executor", default="tf", metavar="tf|emulated",
                        help="tf: profile and run real kernels; emulated: devices with modelled times, without profiling (default: tf)")
    parser.add_argument("--time-scale", type=positive_real, metavar="X",
                        help="emulated: a modelled second takes X seconds (default: 1, or so that a run takes about 2 s)")
    parser.add_argument("--assignments", type=positive, default=50, metavar="N", help="assignments to run (default: 50)")
    parser.add_argument("--repeats", type=positive, metavar="N",
                        help="run each assignment N times and use the median (default: 3; emulated: 1)")
    parser.add_argument("--no-fuse", dest="fuse", action="store_false",
                        help="tf: measure every vertex separately; by default, vertices that gain nothing from separate devices are fused")
    parser.add_argument("--anew", action="store_true", help="tf: measure kernels and links again that earlier calls measured")
    parser.add_argument("--out", type=Path, default=Path("runs/calibrated"), metavar="DIR",
                        help="folder for the report and the measured graph and topology (default: runs/calibrated)")


def render(result: dict[str, Any]) -> list:
    """The tables of the report, and the paths of the files."""
    from doppler_tf.report.calibration import kind_table, link_table, makespan_table
    from doppler_tf.report.tables import facts, grid, percent

    profile = result["profile"]
    tables = [grid(f"{result['graph']} on {result['topology']}, {result['executor']} executor: makespans of {result['assignments']} "
                   f"assignments, simulated and measured", *makespan_table(result["models"])),
              grid("one vertex or transfer, mean by kind", *kind_table(result["kinds"], list(result["models"])))]
    if result["links"]:
        tables.append(grid("", *link_table(result["links"])))
    fused = "" if profile is None or profile["vertices"] == profile["unfused_vertices"] else f", fused from {profile['unfused_vertices']}"
    profiled = {} if profile is None else {"profiled": f"{profile['kernels']} different kernels of {profile['vertices']} vertices{fused}; "
                                                       f"{profile['new_kernels']} measured now"}
    return [*tables, facts("", {**profiled, "runs of one assignment apart": percent(result["spread"]), "took": f"{result['seconds']:.1f} s",
                                **{name: str(path) for name, path in result["files"].items()}})]
