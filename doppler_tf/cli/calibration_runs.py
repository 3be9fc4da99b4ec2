"""The parts of `calibrate`: profiling kernels and links, running good and bad assignments, writing the files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data import fuse
from doppler_tf.assignment import Assignment
from doppler_tf.cli.messages import bars_wanted
from doppler_tf.cli.output import plain
from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import DeadlockError
from doppler_tf.executor import Executor
from doppler_tf.formats.files import write_bytes, write_json
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.machine_json import load_machine, store_machine
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.report.calibration import Durations, markdown, number
from doppler_tf.report.progress import progress_bar
from doppler_tf.report.scatter import write_scatter
from doppler_tf.report.tables import percent
from doppler_tf.simulator import Simulator

if TYPE_CHECKING:
    from runtime import Profile
    from runtime.cluster import Cluster


def feasible_assignments(graph: DataflowGraph, costs: CostModel, count: int, seed: int) -> tuple[list[Assignment], list[float]]:
    """Good and bad assignments that fit in memory, and their simulated makespans. Raises DeadlockError if none fits."""
    feasible, simulated_s = [], []
    for assignment in spread_assignments(graph, costs, count, np.random.default_rng(seed)):
        with contextlib.suppress(DeadlockError):
            simulated_s.append(Simulator().execute(graph, costs, assignment).makespan_s)
            feasible.append(assignment)
    if not feasible:
        raise DeadlockError(f"{graph.name}: out of memory on {costs.topology.name} with each of {count} assignments; nothing to measure")
    return feasible, simulated_s


def fused(graph: DataflowGraph, costs: CostModel) -> tuple[DataflowGraph, CostModel]:
    """The graph with vertices fused that gain nothing from separate devices, and its costs on the same topology."""
    graph = fuse(graph)
    return graph, build_costs(graph, costs.topology)


def profiled(graph: DataflowGraph, costs: CostModel, inputs: dict[int, np.ndarray], anew: bool,
             cluster: Cluster | None = None) -> Profile:
    """Measures kernels and links that are not on file for this machine or cluster, and stores them. Args: anew: measures all of them."""
    runtime, machine = import_quietly("runtime"), load_machine()
    # The speed of a kernel depends on the number of devices that share the machine.
    where = "" if cluster is None else f"{cluster.name}, "
    here = f"{where}{costs.num_devices} devices: "
    known = {} if anew else {key.removeprefix(here): value for key, value in machine.seconds.items() if key.startswith(here)}
    with progress_bar("profiling", show=bars_wanted()) as show:
        found = runtime.profile(graph, costs.topology, inputs, progress=show, known=known, cluster=cluster)
    machine.seconds |= {here + key: value for key, value in known.items()}
    store_machine(machine)
    return found


def measure(graph: DataflowGraph, costs: CostModel, assignments: Sequence[Assignment], repeats: int, executor: Executor,
            durations: Durations) -> np.ndarray:
    """Makespans in seconds [A, repeats]. The durations of every run are added to `durations`."""
    measured_s = np.zeros((len(assignments), repeats))
    with progress_bar("running", show=bars_wanted()) as show:
        # Repeats of one assignment are far apart in time, so that a burst of other work on the machine disturbs only one of them.
        for done, (r, i) in enumerate(np.ndindex(repeats, len(assignments)), start=1):
            trace = executor.execute(graph, costs, assignments[i])
            durations.add(trace, assignments[i])
            measured_s[i, r] = trace.makespan_s
            show(done, measured_s.size)
    return measured_s


def write_files(out: Path, found: dict[str, Any], profile: Profile | None) -> dict[str, Path]:
    """Writes the report, the picture and, if there is a profile, its graph and topology; returns their paths by name."""
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
