"""Updates of stage II by worker processes against those of one process: `make bench NAME=shards`.

The three take turns in one run: this process on all cores, this process on one core, and the workers, while this process waits for them and
applies what they learned. The second has the threads of all cores on one, so that it is slower than a process made for one core.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()  # before TF-GNN is imported, which runs TensorFlow's first operation

# ruff: noqa: E402
# isort: split
import numpy as np

from agents.config import TrainConfig
from agents.training.learner import Learner, worth_compiling
from agents.training.shards import Workers
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.task import Task
from benchmarks.tables import finish, show, timed
from data import build_workload
from doppler_tf.api.training import work
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import preset
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.tasks import open_tasks

CASES = ("chainmm on p100x4", "llama_layer on v100x8", "4 batches of llama_layer on v100x8")
BATCH, UPDATES, WORKERS = 64, 12, 2


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.shards", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=BATCH, help=f"episodes of a batch (default: {BATCH})")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"number of turns (default: {UPDATES})")
    parser.add_argument("--jobs", type=int, default=WORKERS, help=f"number of workers (default: {WORKERS})")
    args = parser.parse_args()
    result = {}
    for case in CASES:
        with open_tasks("local", args.jobs, args.jobs) as tasks:
            result[case] = measured(case, args.batch, args.updates, Workers(tasks, work))
    cores = len(os.sched_getaffinity(0))
    show(f"an update of {args.batch} episodes, medians of {args.updates}; {args.jobs} workers, {cores} cores", result)
    finish(result)


def measured(case: str, batch: int, updates: int, workers: Workers) -> dict[str, float]:
    """One row."""
    graph, topology = case_of(case)
    config = TrainConfig(batch=batch, simulated=25_600, polish=0)
    task = Task.of([graph], [build_costs(graph, preset(topology))], config)
    alone, together = (Training.of(task, Learner(task, worth_compiling(config, task.graphs))) for _ in range(2))
    stages = {"one_process": SimulatedStage(alone), "one_core": SimulatedStage(alone), "workers": SimulatedStage(together, workers)}
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    first_s, _ = timed(lambda: stages["workers"].update(0, 0.0))
    stages["one_process"].update(0, 0.0)
    for step in range(1, updates + 5):  # the first updates run what is compiled for the first time, with elites too
        for name, stage in stages.items():
            with one_core() if name == "one_core" else contextlib.nullcontext():
                seconds[name].append(timed(lambda stage=stage, step=step: stage.update(step, 0.0))[0])
    kept = {name: np.array(each[4:]) for name, each in seconds.items()}
    medians = {name: float(np.median(each)) for name, each in kept.items()}
    quartiles = {name: tuple(np.quantile(each, [0.25, 0.75])) for name, each in kept.items()}
    print(f"{case}, quartiles: " + ", ".join(f"{name} {1e3 * low:.1f} to {1e3 * high:.1f} ms" for name, (low, high) in quartiles.items()))
    return {**{f"{name}_s": each for name, each in medians.items()},
            "one_process_over_workers": medians["one_process"] / medians["workers"],
            "one_core_over_workers": medians["one_core"] / medians["workers"], "first_update_s": first_s}


def case_of(case: str) -> tuple[DataflowGraph, str]:
    """The graph and the topology that a case names."""
    name, topology = case.split(" on ")
    batches, _, name = name.rpartition(" batches of ")
    graph = build_workload(name, preset(topology).num_devices)
    return (repeat_graph(graph, preset(topology), int(batches), int(batches)).graph if batches else graph), topology


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """All threads of this process on its first core."""
    def pin(cores: set[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)

    cores = os.sched_getaffinity(0)
    pin({min(cores)})
    try:
        yield
    finally:
        pin(cores)


if __name__ == "__main__":
    main()
