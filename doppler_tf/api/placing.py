"""`place`: files of graphs placed by one method or the portfolio, chosen by simulation or by runs, and written; several graphs as tasks."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.api.executors import has_kernels
from doppler_tf.api.inputs import load_cluster, load_costs, load_policy
from doppler_tf.api.measuring import measure as measured_choice
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import check_writable, held
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.notes import note
from doppler_tf.placement import Placement, check_method, place, place_batches
from doppler_tf.report.progress import progress_bar
from doppler_tf.report.verdict import batch_figures, offload_figures
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.batches import Batches, repeat_graph
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.stages import Policy
from doppler_tf.tasks import each_done, open_tasks

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster


def place_files(graphs: Sequence[Path], topology: str, costs: str = "given", method: str = "auto", policy: Path | None = None,
                samples: int | None = None, budget_s: float | None = None, dispatch: str = AUTO, in_flight: int | None = None,
                measure: int | None = None, cluster: Path | None = None, time_scale: float | None = None, noise: float | None = None,
                offload: str = AUTO, out: Path | None = None, gantt: Path | None = None, jobs: int | None = None, ray: str | None = None,
                seed: int = 0) -> dict[str, Any]:
    """Places each graph file as `place` or `place_batches` do, with `measure` also as `measure` does, and writes the assignments.

    Args: those of the command.
    """
    several = len(graphs) > 1 or graphs[0].is_dir()
    if method == "policy" and policy is None:
        raise ConfigError("--method policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    if time_scale is not None and measure is None:
        raise ConfigError("--time-scale: expected --measure N beside it, got none; add it, or leave out --time-scale")
    if noise is not None and in_flight is not None:
        raise ConfigError("--noise: expected no --in-flight beside it, got both; leave out one")
    if cluster is not None and (measure is None or time_scale is not None):
        raise ConfigError("--cluster: expected --measure N beside it, and no --time-scale; only runs of real kernels need the machines")
    for option, value in (("measure", measure), ("gantt", gantt)):
        if several and value is not None:
            raise ConfigError(f"--{option}: expected one graph file beside it, got {' '.join(map(str, graphs))}; place one at a time")
    how = {"method": method, "samples": samples, "seed": seed, "dispatch": dispatch, "budget_s": budget_s, "noise": noise,
           "in_flight": in_flight, "policy": policy, "offload": offload}
    if several:
        return _place_several(how, _graph_files(graphs), topology, costs, out, ray, jobs)
    if ray is not None or (jobs or 1) > 1:
        note("--jobs, --ray: one graph is placed by this process")
    if out is not None:
        check_writable(out)
    graph, costs = load_costs(graphs[0], topology, costs)
    machines = None
    if measure is not None and time_scale is None:
        machines = _prepare(graph, costs, cluster, policy)
    placed, batches = _place_as(graph, costs, **how)
    graph, costs, assignment, makespan_s, figures = placed.graph, placed.costs, placed.assignment, placed.makespan_s, {}
    if measure is not None:
        chosen = measured_choice(placed, measure, time_scale=time_scale, cluster=machines, batches=batches, seed=seed)
        assignment, makespan_s, figures = chosen.assignment, chosen.makespan_s, chosen.figures
    if out is not None:
        write_assignment(out, graph, costs, assignment, makespan_s, in_flight)
    if gantt is not None:
        from doppler_tf.report.gantt import write_gantt  # here, as Matplotlib takes long to import
        ran = offloaded(graph, costs, assignment)
        write_gantt(gantt, *ran[:2], Simulator().execute(*ran), placed.lower_bound_s, assignment.method)
    return {"graph": graph.name, "topology": costs.topology.name, **_figures(placed, batches, assignment), "makespan_s": makespan_s,
            **figures, "out": out}


def _prepare(graph: DataflowGraph, costs: CostModel, cluster: Path | None, policy: Path | None) -> Cluster | None:
    """Raises ConfigError for a graph that cannot be measured. Makes the devices before a policy runs TensorFlow's first operation."""
    if not has_kernels(graph):
        raise ConfigError(f"--measure: expected a graph with kernels, got {graph.name} without; make the graph with `workload`, or give "
                          f"--time-scale X for emulated devices")
    if cluster is None and policy is not None:
        import_quietly("agents.config")
        import_quietly("runtime").prepare_devices(costs.num_devices)
    return load_cluster(cluster, costs.topology)


def _place_as(graph: DataflowGraph, costs: CostModel, noise: float | None, in_flight: int | None, policy: Path | None,
              offload: str, **how) -> tuple[Placement, Batches | None]:
    """A placement of the graph, or of the batches in flight that it also returns."""
    how["learned"] = {} if policy is None else {"policy": _policy(policy)}
    if in_flight is None:
        return place(graph, costs, noise=noise, offload=offload, **how), None
    batches = repeat_graph(graph, costs.topology, in_flight, in_flight)
    return place_batches(batches, offload=offload, **how), batches


def _figures(placed: Placement, batches: Batches | None, assignment: Assignment) -> dict[str, Any]:
    """What `place` tells of an assignment that it has found."""
    ran = offloaded(placed.graph, placed.costs, assignment)
    throughput = {} if batches is None else batch_figures(batches, Simulator().execute(*ran))
    return {"method": assignment.method, "dispatch": assignment.dispatch, "makespan_s": placed.makespan_s, **throughput,
            **offload_figures(*ran),
            "lower_bound_s": placed.lower_bound_s, "seconds": placed.seconds, "members": dict(placed.makespans_s),
            "rules": {name: each.dispatch for name, each in placed.assignments.items()}, "noisy_means_s": dict(placed.noisy_means_s)}


def _place_several(how: Mapping[str, Any], files: Mapping[str, Path], topology: str, costs: str, out: Path | None, ray: str | None,
                  jobs: int | None) -> dict[str, Any]:
    """Places each graph, writes its assignment as soon as it is found; returns `graphs`, the figures of each, and `failed`, the errors.

    Raises UserError, before anything is placed: a file that is no graph, no such method, or `out` is being written; KeyboardInterrupt: with
    the number of graphs placed.
    """
    started, found, failed = time.perf_counter(), {}, {}
    for name, path in files.items():
        if out is not None and (out / f"{name}.json").resolve() == path.resolve():
            raise ConfigError(f"--out {out}: expected another folder than that of {path}, which is read, got the same; choose another")
    cases = {name: load_costs(path, topology, costs) for name, path in files.items()}
    # What would fail for each graph is refused at once.
    check_method(how["method"], () if how["policy"] is None else ("policy",))
    if how["policy"] is not None:
        _policy(how["policy"])
    try:
        with (contextlib.nullcontext() if out is None else held(out, "--out"), progress_bar("graphs", 0, len(cases)) as move,
              open_tasks(ray, jobs, len(cases)) as tasks):
            for name, made, error in each_done(tasks, _place, {name: (how, *case) for name, case in cases.items()}):
                if error:
                    failed[name] = error
                else:
                    found[name], assignment = made
                    if out is not None:
                        found[name]["out"] = out / f"{name}.json"
                        _write(found[name]["out"], how, cases[name], assignment, found[name]["makespan_s"])
                move(len(found) + len(failed))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(found)} of {len(cases)} graphs are placed") from None
    return {"topology": next(iter(cases.values()))[1].topology.name, "graphs": {name: found[name] for name in cases if name in found},
            "failed": failed, "seconds": time.perf_counter() - started, "out": out}


def _graph_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Graph files by name: those given, and all .json files of folders given. Raises ConfigError: a folder without any, or a name twice."""
    files: dict[str, Path] = {}
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"{path}: expected a folder of graph files (.json), got one without; make graphs with `workload`")
        for file in inside:
            name = file.stem.removesuffix(".graph")
            if name in files:
                raise ConfigError(f"{file}: expected graph files of different names, got {files[name]}, too; rename one")
            files[name] = file
    return files


def _place(how: Mapping[str, Any], graph: DataflowGraph, costs: CostModel) -> tuple[dict[str, Any], Assignment]:
    placed, batches = _place_as(graph, costs, **how)
    return _figures(placed, batches, placed.assignment), placed.assignment


def _write(path: Path, how: Mapping[str, Any], case: tuple[DataflowGraph, CostModel], assignment: Assignment, makespan_s: float) -> None:
    graph, costs = case
    if how["in_flight"] is not None:
        batches = repeat_graph(graph, costs.topology, how["in_flight"], how["in_flight"])
        graph, costs = batches.graph, batches.costs
    write_assignment(path, graph, costs, assignment, makespan_s, how["in_flight"])


@functools.cache  # a process places several graphs with it
def _policy(path: Path) -> Policy:
    return load_policy(path)
