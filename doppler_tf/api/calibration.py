"""`calibrate`: kernels and links measured, good and bad assignments run, simulated makespans compared with measured ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data import fuse as fuse_graph
from doppler_tf.api.executors import check_executor, default_time_scale, emulated_executor, kernel_executor, load_program
from doppler_tf.api.inputs import ClusterLike, load_cluster, load_costs
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, DeadlockError, FormatError, field_error
from doppler_tf.formats.files import plain, write_bytes, write_json
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.machine_json import load_machine, store_machine
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.report.calibration import GIVEN, PROFILED, Durations, compare_models, link_records, markdown, number
from doppler_tf.report.progress import progress_bar
from doppler_tf.report.scatter import scatter_png
from doppler_tf.report.tables import percent
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.executor import Executor
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schema import check_integer

if TYPE_CHECKING:
    from runtime import Profile
    from runtime.clusters.cluster import Cluster

# How often each assignment is run, where nobody says.
REPEATS = {"tf": 3, "emulated": 1}


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured.

    Attributes:
      figures: what the command prints with `--json`.
      graph, costs: with the measured times, fused unless that was not wanted; with those given where devices were emulated.
    """

    figures: Mapping[str, Any]
    graph: DataflowGraph
    costs: CostModel


def calibrate(graph: GraphLike, topology: TopologyLike | CostModel, executor: str = "tf", *, costs: str = "given",
              time_scale: float | None = None, assignments: int = 50, repeats: int | None = None, fuse: bool = True, anew: bool = False,
              out: str | Path | None = None, cluster: ClusterLike | None = None, seed: int = 0) -> Calibration:
    """Measures kernels and links, runs good and bad assignments, and compares simulated with measured makespans.

    Args:
      graph, topology, costs, cluster: as of `run`.
      executor: `tf`: profiles and runs real kernels; `emulated`: devices with modelled times, without profiling.
      time_scale: emulated: a modelled second takes so many; None: 1, or so that a run takes about 2 s.
      assignments: how many are run.
      repeats: runs of each, of which the median counts; None: 3, emulated 1.
      fuse: of a workload, vertices that gain nothing from separate devices are fused first.
      anew: measures kernels and links again that earlier calls measured.
      out: folder for the report and the measured graph and topology; None writes nothing.

    Raises:
      UserError: options that do not go together, a graph without kernels, or `out` cannot be written.
      DeadlockError: no assignment fits.
    """
    check_executor(executor, "calibrate", tuple(REPEATS))
    check_integer(assignments, 1, "calibrate", "assignments")
    check_integer(seed, 0, "calibrate", "seed")
    read = [Path(source).resolve() for source in (graph, topology) if isinstance(source, str | Path)]
    taken = [] if out is None else [path for path in _costs_files(Path(out)).values() if path.resolve() in read]
    if taken:
        raise field_error(ConfigError, "calibrate", "", "--out", f"another folder than that of {taken[0]}, which is read", str(out))
    started = time.perf_counter()
    graph, given = load_costs(graph, topology, costs)
    if cluster is not None and executor != "tf":
        raise field_error(ConfigError, "calibrate", "", "--cluster", "real kernels (--executor tf)", f"--executor {executor}")
    cluster, unfused = load_cluster(cluster, given.topology), len(graph.work_vertices)
    if cluster is not None:
        given = build_costs(graph, cluster.named(given.topology))
    if executor == "tf" and fuse and "workload" in graph.attributes:
        graph = fuse_graph(graph)
        given = build_costs(graph, given.topology)
    program = load_program(graph, seed) if executor == "tf" else None
    tried, simulated_s = _feasible_assignments(graph, given, assignments, seed)
    if out is not None:
        _make_folder(Path(out))
    profile = None if program is None else profiled(graph, given, program.inputs, anew, cluster)
    models = {GIVEN: given} if profile is None else {GIVEN: given, PROFILED: profile.costs}
    time_scale = 1.0 if program else time_scale or default_time_scale(max(simulated_s))
    repeats, durations = repeats or REPEATS[executor], Durations(graph, models)
    with (emulated_executor(executor, time_scale, seed) if program is None else
          kernel_executor(executor, program, cluster=cluster, keep_inputs=True)) as engine:
        runs_s = _measured(graph, given, tried, repeats, engine, durations)
    links = [] if profile is None else link_records(profile.costs)
    found = {"graph": graph.name, "topology": given.topology.name, "executor": executor, "time_scale": time_scale,
             "assignments": len(tried), "repeats": repeats,
             "profile": None if profile is None else {"vertices": len(graph.work_vertices), "unfused_vertices": unfused,
                                                      "kernels": profile.num_kernels, "new_kernels": profile.new_kernels},
             "links": links, "kinds": durations.by_kind(), **compare_models(graph, models, tried, runs_s)}
    figures = {**found, "seconds": time.perf_counter() - started, "files": {} if out is None else _write_files(Path(out), found, profile)}
    return Calibration(figures, graph, given) if profile is None else Calibration(figures, profile.graph, profile.costs)


def _feasible_assignments(graph: DataflowGraph, costs: CostModel, count: int, seed: int) -> tuple[list[Assignment], list[float]]:
    """Good and bad assignments that fit in memory, and their simulated makespans. Raises DeadlockError if none fits."""
    feasible, simulated_s = [], []
    for assignment in spread_assignments(Problem(graph, costs), count, np.random.default_rng(seed)):
        with contextlib.suppress(DeadlockError):
            simulated_s.append(Simulator().execute(graph, costs, assignment).makespan_s)
            feasible.append(assignment)
    if not feasible:
        raise DeadlockError(f"{graph.name}: out of memory on {costs.topology.name} with each of {count} assignments, none of which keeps "
                            f"tensors on a host; calibrate without limits, and give --memory to place")
    return feasible, simulated_s


def profiled(graph: DataflowGraph, costs: CostModel, inputs: dict[int, np.ndarray], anew: bool,
             cluster: Cluster | None = None) -> Profile:
    """Measures kernels and links that are not on file for this machine or cluster, and stores them. Args: anew: measures all of them."""
    runtime, machine = import_quietly("runtime"), load_machine()
    # The speed of a kernel depends on the number of devices that share the machine.
    where = "" if cluster is None else f"{cluster.name}, "
    here = f"{where}{costs.num_devices} devices: "
    known = {} if anew else {key.removeprefix(here): value for key, value in machine.seconds.items() if key.startswith(here)}
    with progress_bar("profiling") as show:
        found = runtime.profile(graph, costs.topology, inputs, progress=show, known=known, cluster=cluster)
    machine.seconds |= {here + key: value for key, value in known.items()}
    store_machine(machine)
    return found


def _measured(graph: DataflowGraph, costs: CostModel, assignments: Sequence[Assignment], repeats: int, executor: Executor,
            durations: Durations) -> np.ndarray:
    """Makespans in seconds [A, repeats]. The durations of every run are added to `durations`."""
    measured_s = np.zeros((len(assignments), repeats))
    with progress_bar("running") as show:
        # Repeats of one assignment are far apart in time, so that a burst of other work on the machine disturbs only one of them.
        for done, (r, i) in enumerate(np.ndindex(repeats, len(assignments)), start=1):
            trace = executor.execute(graph, costs, assignments[i])
            durations.add(trace, assignments[i])
            measured_s[i, r] = trace.makespan_s
            show(done, measured_s.size)
    return measured_s


def _write_files(out: Path, found: dict[str, Any], profile: Profile | None) -> dict[str, Path]:
    """Writes the report, the picture and, if there is a profile, its graph and topology; returns their paths by name."""
    files = {"report": out / "report.md", "figures": out / "report.json", "picture": out / "scatter.png"}
    records, models = found["makespans"], found["models"]
    captions = {name: f"median error {percent(row['median_error'])}, rank correlation {number(row['rank_correlation'])}"
                for name, row in models.items()}
    write_bytes(files["picture"], scatter_png(
        f"{found['graph']} on {found['topology']}, {found['executor']} executor", np.array([record["measured_s"] for record in records]),
        {name: np.array([record[f"{name}_s"] for record in records]) for name in models},
        [record["method"] for record in records], captions))
    if profile is not None:
        files |= _costs_files(out)
        write_graph(files["graph"], profile.graph)
        write_topology(files["topology"], profile.costs.topology)
    write_bytes(files["report"], markdown(found).encode())
    write_json(files["figures"], plain(found), indent=1)
    return files


def _costs_files(out: Path) -> dict[str, Path]:
    return {"graph": out / "graph.json", "topology": out / "topology.json"}


def _make_folder(out: Path) -> None:
    """Makes the folder before the long work, so that a path that cannot be written is reported at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"{out}: cannot be written: {error.strerror}; choose another folder with --out") from None
