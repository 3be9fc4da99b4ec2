"""Measure kernels and links, write them as costs, and compare simulated with measured makespans."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import add_cluster, add_graph, add_topology, positive, positive_real
from doppler_tf.errors import ConfigError, FormatError, field_error

EXAMPLE = "python -m doppler_tf calibrate small.json --topology cpu:2 --assignments 20 --out runs/calibrated"
EXECUTORS = ("tf", "emulated")
REPEATS = {"tf": 3, "emulated": 1}


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
    parser.add_argument("--no-fuse", action="store_true",
                        help="tf: measure every vertex separately; by default, vertices that gain nothing from separate devices are fused")
    parser.add_argument("--anew", action="store_true", help="tf: measure kernels and links again that earlier calls measured")
    parser.add_argument("--out", type=Path, default=Path("runs/calibrated"), metavar="DIR",
                        help="folder for the report and the measured graph and topology (default: runs/calibrated)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Profiles, runs good and bad assignments, and writes the results."""
    from doppler_tf.cli.calibration_runs import feasible_assignments, fused, measure, profiled, write_files
    from doppler_tf.cli.executors import default_time_scale, load_program, make_executor
    from doppler_tf.cli.inputs import load_cluster, load_costs
    from doppler_tf.costs import build_costs
    from doppler_tf.report.calibration import GIVEN, PROFILED, Durations, compare_models, link_records

    if args.executor not in EXECUTORS:
        raise field_error(ConfigError, "calibrate", "", "--executor", f"one of {', '.join(EXECUTORS)}", args.executor)
    started = time.perf_counter()
    graph, given = load_costs(args.graph, args.topology, args.costs)
    if args.cluster is not None and args.executor != "tf":
        raise field_error(ConfigError, "calibrate", "", "--cluster", "real kernels (--executor tf)", f"--executor {args.executor}")
    cluster, unfused = load_cluster(args.cluster, given.topology), len(graph.work_vertices)
    if cluster is not None:
        given = build_costs(graph, cluster.named(given.topology))
    if args.executor == "tf" and not args.no_fuse and "workload" in graph.attributes:
        graph, given = fused(graph, given)
    program = load_program(graph, args.seed) if args.executor == "tf" else None
    assignments, simulated_s = feasible_assignments(graph, given, args.assignments, args.seed)
    _make_folder(args.out)
    profile = None if program is None else profiled(graph, given, program.inputs, args.anew, cluster)
    models = {GIVEN: given} if profile is None else {GIVEN: given, PROFILED: profile.costs}
    time_scale = 1.0 if program else args.time_scale or default_time_scale(max(simulated_s))
    repeats, durations = args.repeats or REPEATS[args.executor], Durations(graph, models)
    with make_executor(args.executor, program, time_scale, args.seed, keep_inputs=True, cluster=cluster) as executor:
        runs_s = measure(graph, given, assignments, repeats, executor, durations)
    links = [] if profile is None else link_records(profile.costs)
    found = {"graph": graph.name, "topology": given.topology.name, "executor": args.executor, "time_scale": time_scale,
             "assignments": len(assignments), "repeats": repeats,
             "profile": None if profile is None else {"vertices": len(graph.work_vertices), "unfused_vertices": unfused,
                                                      "kernels": profile.num_kernels, "new_kernels": profile.new_kernels},
             "links": links, "kinds": durations.by_kind(), **compare_models(graph, models, assignments, runs_s)}
    return {**found, "seconds": time.perf_counter() - started, "files": write_files(args.out, found, profile)}


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


def _make_folder(out: Path) -> None:
    """Makes the folder before the long work, so that a path that cannot be written is reported at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"{out}: cannot be written: {error.strerror}; choose another folder with --out") from None
