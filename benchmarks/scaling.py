"""Seconds and peak memory from 1,000 to 100,000 vertices on 8 devices: `make bench NAME=scaling`.

It measures random layered graphs and deep Llama stacks. Each graph has a separate process, so that peaks of memory do not mix. The steps
run in the order of the table, and memory is the process's peak after each. A last process makes training steps on 10,000 vertices.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tables import best_seconds, finish, timed
from data import build_workload
from doppler_tf.api.tensorflow import prepare_tensorflow
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology, v100x8
from doppler_tf.heuristics import CriticalPath
from doppler_tf.report.progress import progress_bar
from doppler_tf.schedule.bounds import lower_bounds

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
ASSIGNMENTS, REPEATS, EPISODES = 16, 5, 8
# Without a memory limit, because devices of 32 GB would bind only for large graphs and sizes would not be comparable.
_LINK_SLOTS = {"simulation": None, "simulation, contended": 1}
STACK_HEAD, STACK_LAYER = 83, 408  # vertices of a llama_stack on 8 devices


def main() -> None:
    """Prints the tables and the JSON line."""
    result: dict[str, dict] = {}
    jobs = [(name, size) for name in ("layered", "llama_stack") for size in SIZES]
    with progress_bar("measuring", total=len(jobs), show=sys.stderr.isatty()) as move:
        for done, (name, size) in enumerate(jobs):
            move(done, status=f"{name}, {size:,} vertices")
            result.setdefault(name, {})[str(size)] = _in_a_process("steps", name, size)
        move(len(jobs))
    for name, by_size in result.items():
        _show(name, by_size)
    result["training_step"] = _in_a_process("training", "layered", 10_000)
    step = result["training_step"]
    print(f"training step, {EPISODES} episodes of {step['vertices']:,} vertices: rollout, simulation and update {step['seconds']:.1f} s "
          f"(the first one, which compiles, {step['first_s']:.1f} s), peak {step['peak_gib']:.2f} GiB")
    finish(result)


def measure_steps(name: str, size: int) -> dict:
    """Seconds and peak memory of each step, for one graph in this process."""
    graph, building = _timed(lambda: _graph(name, size))
    report = {"vertices": graph.num_vertices, "edges": graph.num_edges, "steps": {"build": building}}
    steps = report["steps"]
    topology = v100x8()
    costs, steps["costs, bounds"] = _timed(lambda: _costs_and_bounds(graph, topology))
    teacher, rng = CriticalPath(graph, costs), np.random.default_rng(0)
    teacher.sample(rng)
    _, steps["critical path"] = _best(lambda: teacher.sample(rng))
    devices = np.stack([teacher.sample(rng).device for _ in range(ASSIGNMENTS)])
    for step, link_slots in _LINK_SLOTS.items():
        simulator = FastSimulator(graph, build_costs(graph, replace(topology.with_memory(None), link_slots=link_slots)))
        simulator.makespans(devices)
        _, steps[step] = _best(lambda simulator=simulator: simulator.makespans(devices), ASSIGNMENTS)
    return {**report, **_measure_policy(graph, costs, steps)}


def _measure_policy(graph: DataflowGraph, costs: CostModel, steps: dict) -> dict:
    prepare_tensorflow()
    import tensorflow as tf

    from agents.episodes.episode import padded_graphs
    from agents.episodes.features import graph_arrays
    from agents.policies.networks import DualNetwork
    from agents.policies.rollout import Rollout

    graph_arrays(graph, costs)
    arrays, steps["features"] = _best(lambda: graph_arrays(graph, costs))
    rollout = Rollout(DualNetwork())

    def greedy() -> np.ndarray:
        episodes = rollout.run(padded_graphs([arrays]), tf.zeros([1], tf.int32), tf.constant([0, 0]), tf.ones([1], tf.bool))
        return arrays.to_devices(episodes.order, episodes.device)[0]

    _, first = _timed(greedy)
    _, steps["greedy placement"] = _best(greedy)
    return {"first_greedy_s": first["seconds"], "peak_gib": _peak_gib()}


def measure_training(name: str, size: int) -> dict:
    """Seconds and peak memory of training steps on one graph, in this process."""
    prepare_tensorflow()
    from agents.config import TrainConfig
    from agents.training.learner import Learner
    from agents.training.simulated import SimulatedStage
    from agents.training.stages import Training
    from agents.training.task import Task

    graph = _graph(name, size)
    task = Task.of([graph], [build_costs(graph, v100x8())], TrainConfig(batch=EPISODES, polish=0))
    stage = SimulatedStage(Training.of(task, Learner(task)))
    _, first = _timed(lambda: stage.update(0, 0.0))
    _, later = _timed(lambda: stage.update(1, 0.0))
    return {"vertices": graph.num_vertices, "first_s": first["seconds"], **later}


def _graph(name: str, size: int) -> DataflowGraph:
    if name == "layered":
        return build_workload(name, 8, vertices=size)
    return build_workload(name, 8, layers=max(1, round((size - STACK_HEAD) / STACK_LAYER)))


def _costs_and_bounds(graph: DataflowGraph, topology: Topology) -> CostModel:
    costs = build_costs(graph, topology)
    lower_bounds(graph, costs)
    return costs


def _timed(call: Callable) -> tuple[object, dict[str, float]]:
    seconds, value = timed(call)
    return value, {"seconds": seconds, "peak_gib": _peak_gib()}


def _best(call: Callable, share: int = 1) -> tuple[object, dict[str, float]]:
    """The value, and the least seconds of several calls, divided by `share`."""
    values = []
    seconds = best_seconds(lambda: values.append(call()), REPEATS)
    return values[-1], {"seconds": seconds / share, "peak_gib": _peak_gib()}


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _in_a_process(*job) -> dict:
    command = [sys.executable, "-m", "benchmarks.scaling", *map(str, job)]
    # Without the cache, so that the first step always compiles.
    done = subprocess.run(command, env={**os.environ, "DOPPLER_XLA_CACHE": "off"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _show(name: str, by_size: dict[str, dict]) -> None:
    table = Table(title=f"{name} on 8 V100: microseconds per vertex, and the process's peak GiB so far")
    table.add_column("step")
    for row in by_size.values():
        table.add_column(f"{row['vertices']:,} vertices\n{row['edges']:,} edges", justify="right")
    table.add_column("last / first", justify="right")
    for step in next(iter(by_size.values()))["steps"]:
        each = [(row["steps"][step]["seconds"] / row["vertices"], row["steps"][step]["peak_gib"]) for row in by_size.values()]
        table.add_row(step, *(f"{1e6 * seconds:.3f}  {peak:.2f}" for seconds, peak in each), f"{each[-1][0] / each[0][0]:.2f}")
    table.add_row("greedy, first (compiles)", *(f"{row['first_greedy_s']:.1f} s  {row['peak_gib']:.2f}" for row in by_size.values()), "")
    Console(width=140).print(table)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kind, graph_name, count = sys.argv[1:]
        print(json.dumps({"steps": measure_steps, "training": measure_training}[kind](graph_name, int(count))))
    else:
        main()
