"""Runs a cell of a `bench`, in whichever process."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from doppler_tf.api.benchmark.cells import ASSIGNMENTS, RUNS, Cell, record_of
from doppler_tf.api.benchmark.suite import EXECUTES, PLACES, SAMPLES, TRAINS
from doppler_tf.api.executors import default_time_scale, emulated_executor, true_topology
from doppler_tf.api.inputs import load_assignment, load_costs, load_policy
from doppler_tf.api.runs.learning_curves import learning_curve
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, DeadlockError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import plain
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import HEURISTICS, SEARCHES, Problem
from doppler_tf.heuristics.judging import fastest, judge
from doppler_tf.offload.planning import fitted, without_shortage
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.stages import Policy, learned_samples, made

if TYPE_CHECKING:
    from agents.serving.placing import KeptSamplers
    from agents.training.learner import KeptLearner


class Kept(NamedTuple):
    """What earlier cells of this process have compiled, to train and to sample."""

    learner: KeptLearner
    samplers: KeptSamplers


@functools.cache
def kept() -> Kept:
    """The same in every call, until `kept.cache_clear()`."""
    return Kept(import_quietly("agents.training.learner").KeptLearner(), import_quietly("agents.serving.placing").KeptSamplers())


def do_cell(folder: Path, cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Runs a cell and returns its record. Args: needed: records of the cells that it needs, by their purpose."""
    begun_s = time.process_time()
    figures = plain(_WORK[cell.job["does"]](folder, cell, needed))
    return record_of(cell, {**figures, "cpu_s": time.process_time() - begun_s})


def _place(folder: Path, cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Places with a heuristic or search."""
    job, (graph, costs) = cell.job, load_costs(Path(cell.job["graphs"][0]), cell.topology)
    method, simulations, seconds = job["method"], job["simulations"], job["seconds"]
    if "simulations_of" in needed:
        simulations = needed["simulations_of"]["episodes"] + needed["simulations_of"]["simulations"]
    if "seconds_of" in needed:
        seconds = needed["seconds_of"]["seconds"]
    for warm in ("one_device", *((method,) if method in HEURISTICS else ())):  # loads compiled code before the clock runs
        with contextlib.suppress(DeadlockError):
            place(graph, costs, warm, samples=1, offload="never")
    most = simulations or job["samples"]
    placed = place(graph, costs, method, most, cell.seed, job["dispatch"], seconds)
    unknown = method == "auto" or (method not in SEARCHES and seconds is not None and not most)
    counted = None if unknown else made(method, graph, most, list(placed.simulations.values()))
    return {"best_makespan_s": placed.makespan_s, "greedy_makespan_s": None, "lower_bound_s": placed.lower_bound_s,
            "seconds": placed.seconds, "episodes": None, "simulations": counted, "searches": method in SEARCHES,
            "winner": placed.assignment.method, **_keep(folder, cell, graph, costs, placed.assignment, placed.makespan_s)}


def _train(folder: Path, cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Trains, then samples the policy. A training on several graphs has no makespan of its own."""
    loaded = [load_costs(Path(path), cell.topology) for path in cell.job["graphs"]]
    config = import_quietly("agents.config").TrainConfig.from_json(cell.job["config"])
    training, run_dir = import_quietly("agents.training.run"), folder / RUNS / cell.key
    executor = None
    if config.real:
        truth = true_topology(config.emulate, loaded)
        scale = config.time_scale if cell.job.get("time_scale") else default_time_scale(max(_typical_run_s(*case) for case in loaded))
        executor = emulated_executor("emulated", scale, config.seed, truth=truth)
    shutil.rmtree(run_dir, ignore_errors=True)  # the remains of an interrupted run
    init = folder / RUNS / needed["init"]["key"] if "init" in needed else None
    started = time.perf_counter()
    try:
        trained = training.train([graph for graph, _ in loaded], loaded[0][1].topology, run_dir, config, executor=executor, progress=False,
                                 pictures=False, kept=kept().learner, **({"init": init} if init else {}))
    finally:
        if executor is not None:
            executor.close()
    train_s = time.perf_counter() - started
    rows = list(trained.values())
    if len(loaded) > 1:
        return {"best_makespan_s": None, "seconds": train_s, "episodes": sum(row["episodes"] for row in rows), "graphs": trained}
    figures, row = _sampled(folder, cell, load_policy(run_dir, kept().samplers), *loaded[0]), rows[0]
    figures["simulations"] += row.get("search_simulations", 0)
    figures |= {"seconds": train_s + figures["seconds"], "best_seen_s": row["best_makespan_s"], "episodes": row["episodes"],
                "learned": True, "trained": config.method, "measured": row.get("measured"),
                "curve": learning_curve(run_dir, config.batch, loaded[0][0].name)}
    return _combined(figures, needed["init"]) if _continues(cell, needed.get("init")) else figures


def _typical_run_s(graph: DataflowGraph, costs: CostModel) -> float:
    """Roughly the modelled seconds of a run."""
    return place(graph, costs, "critical_path", samples=1, offload="never").makespan_s


def _continues(cell: Cell, init: Mapping[str, Any] | None) -> bool:
    """Whether a cell continues the training of another cell on the same graph and topology."""
    return init is not None and (init["graph"], init["topology"]) == (cell.graph, cell.topology)


def _combined(figures: dict[str, Any], init: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a training and the one that it continues, as if both were one run."""
    curve = [{**point, "episodes": point["episodes"] + init["episodes"]} for point in figures["curve"]]
    return {**figures, "seconds": figures["seconds"] + init["seconds"], "episodes": figures["episodes"] + init["episodes"],
            "best_seen_s": min(figures["best_seen_s"], init["best_seen_s"]), "curve": [*init["curve"], *curve]}


def _sample(folder: Path, cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Samples an existing policy on a graph, which may be new to it. It samples twice, because the first call compiles."""
    policy = load_policy(folder / RUNS / needed["init"]["key"] if "init" in needed else Path(cell.job["policy"]), kept().samplers)
    case = load_costs(Path(cell.job["graphs"][0]), cell.topology)
    first = _sampled(folder, cell, policy, *case)
    return {**_sampled(folder, cell, policy, *case), "first_s": first["seconds"], "episodes": 0, "learned": True}


def _sampled(folder: Path, cell: Cell, policy: Policy, graph: DataflowGraph, costs: CostModel) -> dict[str, Any]:
    """A policy's greedy and best of K assignments by simulation, with plans for the host where they do not fit.

    Raises:
      DeadlockError: none fits in memory.
    """
    samples, problem = min(cell.job["samples"], learned_samples(graph)), Problem(graph, costs, cell.job["dispatch"])
    started = time.perf_counter()
    free = without_shortage(graph, costs)
    judged = judge(Problem(graph, free, cell.job["dispatch"]), list(policy(graph, free, samples, cell.seed)))
    greedy_s, _ = fitted(problem, *judged[0])
    (best_s, best), seconds = fitted(problem, *fastest(judged)), time.perf_counter() - started
    if not np.isfinite(best_s):
        Simulator().execute(graph, costs, best)  # raises a DeadlockError that names the vertices and the memory
    return {"greedy_makespan_s": greedy_s, "best_makespan_s": best_s,
            "lower_bound_s": lower_bounds(graph, costs).best_s, "seconds": seconds, "simulations": samples,
            **_keep(folder, cell, graph, costs, best, best_s)}


def _execute(folder: Path, cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Measures another cell's assignment on emulated devices. The fastest run counts, because other work can only delay a run."""
    job, (graph, costs) = cell.job, load_costs(Path(cell.job["graphs"][0]), cell.topology)
    given, work = load_assignment(folder / ASSIGNMENTS / f"{needed['of']['key']}.json", graph, costs, offload=True), graph.work_vertices
    if given.offload is not None and job["executor"] == "synchronous":
        raise ConfigError(f"{cell.label}: executor: expected emulated for an assignment with a plan for the host, got synchronous; change "
                          "it, or give the devices more memory")
    graph, costs, assignment = offloaded(graph, costs, given)
    scale = job["kernel_ms"] * 1e-3 / float(costs.exec_s[work, assignment.device[work]].mean())
    started = time.perf_counter()
    with emulated_executor(job["executor"], scale, cell.seed) as executor:
        makespans_s = [executor.execute(graph, costs, assignment).makespan_s for _ in range(job["repeats"])]
    return {"best_makespan_s": min(makespans_s), "greedy_makespan_s": None, "lower_bound_s": None, "makespans_s": makespans_s,
            "simulated_makespan_s": Simulator().execute(graph, costs, assignment).makespan_s, "executed": True,
            "seconds": time.perf_counter() - started, "episodes": None, "simulations": None}


def _keep(folder: Path, cell: Cell, graph: DataflowGraph, costs: CostModel, assignment: Assignment, makespan_s: float) -> dict[str, Any]:
    """Writes the assignment; returns the record's figures of the graph."""
    write_assignment(folder / ASSIGNMENTS / f"{cell.key}.json", graph, costs, assignment, makespan_s)
    return {"vertices": int(graph.work_vertices.size), "devices": costs.num_devices}


_WORK = {TRAINS: _train, PLACES: _place, SAMPLES: _sample, EXECUTES: _execute}

