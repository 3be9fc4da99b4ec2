"""Measure kernels and links, write them as costs, and compare simulated with measured makespans."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.bar import bar
from doppler_tf.cli.options import add_graph, add_topology, positive, positive_real
from doppler_tf.errors import ConfigError, DeadlockError, FormatError, field_error

if TYPE_CHECKING:
    import numpy as np

    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.executor import Executor
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.report.calibration import Durations
    from runtime import Profile

EXAMPLE = "python -m doppler_tf calibrate small.json --topology cpu:2 --assignments 20 --out runs/calibrated"
EXECUTORS = ("tf", "emulated")
REPEATS = {"tf": 3, "emulated": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    parser.add_argument("--executor", default="tf", metavar="tf|emulated",
                        help="tf (the default): real kernels, which are profiled; emulated: modelled times, nothing to profile")
    parser.add_argument("--time-scale", type=positive_real, metavar="X",
                        help="emulated: seconds of wall clock to a modelled second (default: 1, or what makes a run last seconds)")
    parser.add_argument("--assignments", type=positive, default=50, metavar="N", help="assignments to run (default: 50)")
    parser.add_argument("--repeats", type=positive, metavar="N", help="runs of each, the median counts (default: 3, emulated 1)")
    parser.add_argument("--no-fuse", action="store_true",
                        help="tf: measure every vertex by itself, instead of fusing those that gain nothing by being placed apart")
    parser.add_argument("--anew", action="store_true", help="tf: measure kernels and links again that are known from earlier graphs")
    parser.add_argument("--out", type=Path, default=Path("runs/calibrated"), metavar="DIR",
                        help="folder of the report and the measured graph and topology (default: runs/calibrated)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Profiles, runs assignments of all qualities, and writes what came of it."""
    from doppler_tf.cli.executors import Program, fitting_time_scale, make_executor
    from doppler_tf.cli.inputs import load_costs
    from doppler_tf.report.calibration import GIVEN, PROFILED, Durations

    if args.executor not in EXECUTORS:
        raise field_error(ConfigError, "calibrate", "", "--executor", f"one of {', '.join(EXECUTORS)}", args.executor)
    started = time.perf_counter()
    graph, given = load_costs(args.graph, args.topology)
    unfused = len(graph.work_vertices)
    if args.executor == "tf" and not args.no_fuse:
        graph, given = _fused(graph, given)
    program = Program(graph) if args.executor == "tf" else None
    assignments, simulated_s = _assignments(graph, given, args.assignments, args.seed)
    _make_folder(args.out)
    profile = None if program is None else _profile(graph, given, program.inputs, args.anew)
    models = {GIVEN: given} if profile is None else {GIVEN: given, PROFILED: profile.costs}
    time_scale = 1.0 if program else args.time_scale or fitting_time_scale(max(simulated_s))
    repeats, durations = args.repeats or REPEATS[args.executor], Durations(graph, models)
    with make_executor(args.executor, "fifo", program, time_scale, args.seed, keep_inputs=True) as executor:
        runs_s = _measure(graph, given, assignments, repeats, executor, durations)
    links = [] if profile is None else _links(profile.costs)
    found = {"graph": graph.name, "topology": given.topology.name, "executor": args.executor, "time_scale": time_scale,
             "assignments": len(assignments), "repeats": repeats,
             "profile": None if profile is None else {"vertices": len(graph.work_vertices), "unfused_vertices": unfused,
                                                      "kernels": profile.num_kernels, "new_kernels": profile.new_kernels},
             "links": links, "kinds": durations.by_kind(), **_compared(graph, models, assignments, runs_s)}
    return {**found, "seconds": time.perf_counter() - started, "files": _write(args.out, found, profile)}


def render(result: dict[str, Any]) -> list:
    """The tables of the report, and where the files are."""
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


def _assignments(graph: DataflowGraph, costs: CostModel, count: int, seed: int) -> tuple[list[Assignment], list[float]]:
    """Assignments of all qualities that fit in memory, and their simulated makespans. Raises DeadlockError where none fits."""
    import numpy as np

    from doppler_tf.heuristics.mixtures import spread_assignments
    from doppler_tf.simulator import Simulator

    fitting, simulated_s = [], []
    for assignment in spread_assignments(graph, costs, count, np.random.default_rng(seed)):
        with contextlib.suppress(DeadlockError):
            simulated_s.append(Simulator().execute(graph, costs, assignment).makespan_s)
            fitting.append(assignment)
    if not fitting:
        raise DeadlockError(f"{graph.name}: out of memory on {costs.topology.name} with each of {count} assignments; nothing to measure")
    return fitting, simulated_s


def _make_folder(out: Path) -> None:
    """Finds out before the long work whether its results can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"{out}: cannot be written: {error.strerror}; choose another folder with --out") from None


def _fused(graph: DataflowGraph, costs: CostModel) -> tuple[DataflowGraph, CostModel]:
    from data import fuse
    from doppler_tf.costs import build_costs

    graph = fuse(graph)
    return graph, build_costs(graph, costs.topology)


def _profile(graph: DataflowGraph, costs: CostModel, inputs: dict[int, np.ndarray], anew: bool) -> Profile:
    """Measures what is not known of this machine, and keeps it."""
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.formats.machine_json import load_machine, store_machine

    runtime, machine = import_quietly("runtime"), load_machine()
    # How fast a kernel runs depends on how many devices share the machine.
    here = f"{costs.num_devices} devices: "
    known = {} if anew else {key.removeprefix(here): value for key, value in machine.seconds.items() if key.startswith(here)}
    with bar("profiling") as show:
        found = runtime.profile(graph, costs.topology, inputs, progress=show, known=known)
    machine.seconds |= {here + key: value for key, value in known.items()}
    store_machine(machine)
    return found


def _measure(graph: DataflowGraph, costs: CostModel, assignments: Sequence[Assignment], repeats: int, executor: Executor,
             durations: Durations) -> np.ndarray:
    """Makespans in seconds [A, repeats]; every run's durations are gathered."""
    import numpy as np

    measured_s = np.zeros((len(assignments), repeats))
    with bar("running") as show:
        # Repeats of one assignment stand far apart, so that a burst of other work on the machine spoils one of them only.
        for done, (r, i) in enumerate(np.ndindex(repeats, len(assignments)), start=1):
            trace = executor.execute(graph, costs, assignments[i])
            durations.add(trace, assignments[i])
            measured_s[i, r] = trace.makespan_s
            show(done, measured_s.size)
    return measured_s


def _compared(graph: DataflowGraph, models: dict[str, CostModel], assignments: Sequence[Assignment],
              runs_s: np.ndarray) -> dict[str, Any]:
    """`models`: agreement by model; `makespans`: a record an assignment; `spread`: how far its runs lie apart, median over assignments."""
    import numpy as np

    from doppler_tf.report.calibration import agreement
    from doppler_tf.simulator import Simulator

    measured_s = np.median(runs_s, axis=1)
    simulated_s = {name: [Simulator().execute(graph, model, assignment).makespan_s for assignment in assignments]
                   for name, model in models.items()}
    devices = [len(np.unique(assignment.device[graph.work_vertices])) for assignment in assignments]
    records = [{"method": assignment.method, "devices": devices[i], "measured_s": float(measured_s[i]),
                **{f"{name}_s": values[i] for name, values in simulated_s.items()}} for i, assignment in enumerate(assignments)]
    return {"models": {name: asdict(agreement(np.array(values), measured_s)) for name, values in simulated_s.items()},
            "spread": float(np.median(np.ptp(runs_s, axis=1) / measured_s)) if runs_s.shape[1] > 1 else None, "makespans": records}


def _links(costs: CostModel) -> list[dict[str, Any]]:
    topology, names = costs.topology, costs.topology.device_names
    return [{"source": names[s], "destination": names[t], "latency_s": float(topology.latency_s[s, t]),
             "bandwidth_bytes_per_s": float(topology.bandwidth_bytes_per_s[s, t])}
            for s in range(len(names)) for t in range(len(names)) if s != t]


def _write(out: Path, found: dict[str, Any], profile: Profile | None) -> dict[str, Path]:
    """Writes report, picture and, of a profile, graph and topology; returns their paths by name."""
    import numpy as np

    from doppler_tf.cli.output import plain
    from doppler_tf.formats.files import write_bytes, write_json
    from doppler_tf.formats.graph_json import write_graph
    from doppler_tf.formats.topology_json import write_topology
    from doppler_tf.report.calibration import markdown, number
    from doppler_tf.report.scatter import write_scatter
    from doppler_tf.report.tables import percent

    files = {"report": out / "report.md", "figures": out / "report.json", "picture": out / "scatter.png"}
    records, models = found["makespans"], found["models"]
    captions = {name: f"median error {percent(row['median_error'])}, rank correlation {number(row['rank_correlation'])}"
                for name, row in models.items()}
    write_scatter(files["picture"], f"{found['graph']} on {found['topology']}, {found['executor']} executor",
                  np.array([record["measured_s"] for record in records]),
                  {name: np.array([record[f"{name}_s"] for record in records]) for name in models},
                  [record["method"] for record in records], captions)
    if profile is not None:
        files |= {"graph": out / "graph.json", "topology": out / "topology.json"}
        write_graph(files["graph"], profile.graph)
        write_topology(files["topology"], profile.costs.topology)
    write_bytes(files["report"], markdown(found).encode())
    write_json(files["figures"], plain(found), indent=1)
    return files
