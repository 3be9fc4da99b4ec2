"""What each mechanism of the portfolio is worth: `make bench NAME=ablation`.

Graphs are placed with a budget as usual, and with each mechanism taken out. Figures are makespans over those of the whole, and the same
under noise of 1%; list schedulers are taken out where there is no budget. Seconds are those of a thread's processor, so that other work
on the machine hardly changes results. With 1 s and one seed it takes ten minutes of one core. Graph files may be added, for a topology.
"""

from __future__ import annotations

import argparse
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np

from benchmarks.tables import finish, show
from data.generated import generated_problem
from data.layered import Layered, layered_graph
from data.workloads import build_workload
from doppler_tf import placement, stages
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import preset
from doppler_tf.heuristics import CONSTRUCTIVE, YARDSTICKS
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search import metropolis, portfolio, race, walker
from doppler_tf.heuristics.search.budget import Found
from doppler_tf.heuristics.steadiness import noisy_means
from doppler_tf.schedule.assignment import Assignment

# Generated graphs: vertices from and to, and devices. Layered graphs: vertices, width, flops of a vertex, and topology.
GENERATED = ((14, 30, 2), (15, 32, 3), (100, 200, 4), (150, 300, 8), (200, 500, 4), (300, 600, 8), (800, 1500, 16), (3000, 5000, 64))
LAYERED = ((150, 10, 1e10, "p100x4"), (400, 12, 1e10, "v100x8"), (2000, 24, 2e10, "v100x8"))
WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer", "llama_stack")
FIRST_SEED, NOISE, DRAWS = 7_000_000, 0.01, 10
Case = tuple[DataflowGraph, CostModel]


def kinds_of_change(*without: int) -> AbstractContextManager:
    """Moves of devices without some kinds; the others make up for them."""
    left = np.array(metropolis._DEVICES)
    left[list(without)] = 0.0
    return patch.object(metropolis, "_DEVICES", tuple(left / left.sum()))


def search_alone(name: str) -> AbstractContextManager:
    """One search instead of several side by side."""
    alone = functools.partial(portfolio.search_together, searches={name: portfolio.TOGETHER[name]})
    return patch.object(stages, "search_together", alone)


def constructive(*without: str) -> AbstractContextManager:
    """The portfolio without these constructive methods."""
    return patch.object(stages, "CONSTRUCTIVE", {name: make for name, make in CONSTRUCTIVE.items() if name not in without})


def first_start(pool: Pool, seed: int, seconds: float, starts: Sequence[Assignment]) -> Found:
    """Instead of a race."""
    return Found(starts[0], 0.0, 1)


MECHANISMS: dict[str, Callable[[], AbstractContextManager]] = {
    "network that proposes moves": lambda: kinds_of_change(metropolis.PROPOSED),
    "race of starts": lambda: patch.object(portfolio, "race", first_start),
    "moves of critical units": lambda: kinds_of_change(metropolis.ANYWHERE_CRITICAL, metropolis.NEAR_CRITICAL, metropolis.SWAP_CRITICAL),
    "moves to neighbours' devices": lambda: kinds_of_change(metropolis.NEAR_CRITICAL, metropolis.NEAR),
    "exchanges of two units": lambda: kinds_of_change(metropolis.SWAP_CRITICAL, metropolis.SWAP),
    "moves of sets": lambda: kinds_of_change(metropolis.GATHER, metropolis.EXCHANGE),
    "search of priorities": lambda: patch.object(metropolis, "_ORDER", 0.0),
    "climbing beside annealing": lambda: search_alone("annealing"),
    "annealing beside climbing": lambda: search_alone("local_search"),
    "CP-SAT beside both": lambda: patch.object(portfolio, "_MOST_PAIRS", 0),
    "steadiness": lambda: patch.object(walker, "_MOST_JUDGED", 0),
    "tied search": lambda: patch.object(placement, "tie_repeats", lambda pool, asked: None)}
LIST_SCHEDULERS = {name: lambda name=name: constructive(name) for name in CONSTRUCTIVE if name not in YARDSTICKS}


class ThreadClock(threading.local):
    """Seconds of the processor that a thread took, from where the thread that started it was."""

    begun_s = 0.0

    def __call__(self) -> float:
        return self.begun_s + time.thread_time()


CLOCK = ThreadClock()


class ClockedThreads(ThreadPoolExecutor):
    """Threads by `CLOCK`; who waits for them is as late as the last."""

    def __init__(self, count: int, name: str):
        super().__init__(count, name, CLOCK.__setattr__, ("begun_s", CLOCK()))
        self._last_s = 0.0

    def submit(self, call, *arguments):
        def run():
            try:
                return call(*arguments)
            finally:
                self._last_s = max(self._last_s, CLOCK())

        return super().submit(run)

    def __exit__(self, *error):
        super().__exit__(*error)
        CLOCK.begun_s += max(0.0, self._last_s - CLOCK())


def cases(files: Sequence[str], topology: str) -> Iterator[tuple[str, Case]]:
    """Graphs with their costs, by name."""
    for path in files:
        graph = read_graph(path)
        yield graph.name, (graph, build_costs(graph, read_topology(topology)))
    for name in ("p100x4", "v100x8"):
        for workload in WORKLOADS:
            devices = preset(name).num_devices
            graph = build_workload(workload, devices, **({"layers": 4} if workload == "llama_stack" else {}))
            yield f"{workload} {name}", (graph, build_costs(graph, preset(name)))
    for number, (least, most, devices) in enumerate(GENERATED):
        graph, costs, family = generated_problem(FIRST_SEED + number, (least, most), devices)
        yield f"{family} {number}", (graph, costs)
    for number, (vertices, width, flops, name) in enumerate(LAYERED):
        graph = layered_graph(Layered(vertices, width, 2.0, 2, 6, flops, 8e6, 0.5), number)
        yield f"layered {vertices}", (graph, build_costs(graph, preset(name)))


def placed(case: Case, budget_s: float | None, seed: int) -> tuple[float, float]:
    """The makespan, and the mean under noise."""
    assignment = (found := placement.place(*case, budget_s=budget_s, seed=seed)).assignment
    return found.makespan_s, noisy_means(Problem(*case), [assignment], NOISE, seed, DRAWS)[0]


def main() -> None:
    """Prints a table by mechanism and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.ablation", description=__doc__.splitlines()[0])
    parser.add_argument("--budget-s", type=float, default=1.0, help="seconds of a placement (default: 1)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--graphs", nargs="*", default=[], help="graph files, beside the others")
    parser.add_argument("--topology", default="ideal:4", help="of the graph files (default: ideal:4)")
    args = parser.parse_args()
    suite = dict(cases(args.graphs, args.topology))
    for budget_s in (None, 60.0):  # compiles
        placement.place(*next(iter(suite.values())), budget_s=budget_s, samples=200)
    rows = {}
    with (patch.object(time, "perf_counter", CLOCK), patch.object(portfolio, "ThreadPoolExecutor", ClockedThreads),
          patch.object(race, "ThreadPoolExecutor", ClockedThreads)):
        for budget_s, mechanisms in ((args.budget_s, MECHANISMS), (None, LIST_SCHEDULERS)):
            keys = [(name, seed) for name in suite for seed in range(args.seeds)]
            whole = np.array([placed(suite[name], budget_s, seed) for name, seed in keys])
            for mechanism, taken_out in mechanisms.items():
                with taken_out():
                    ratio = np.array([placed(suite[name], budget_s, seed) for name, seed in keys]) / whole
                mean = np.exp(np.log(ratio).mean(axis=0))
                rows[mechanism] = {"mean_ratio": mean[0], "worst_ratio": ratio[:, 0].max(), "noisy_ratio": mean[1],
                                   "worst_on": keys[int(ratio[:, 0].argmax())][0] if ratio[:, 0].max() > 1 else ""}
                print(mechanism, rows[mechanism], flush=True)
    show(f"without a mechanism over with all, {len(suite)} graphs, {args.seeds} seeds, {args.budget_s:g} s", rows)
    finish(rows)


if __name__ == "__main__":
    main()
