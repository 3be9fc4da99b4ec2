"""The portfolio with a budget against each of its methods with the same budget: `make bench NAME=portfolio`.

It places random graphs of many shapes on equal and unequal devices with `auto`, then with every method alone, for equal seconds. `auto` and
CP-SAT use several cores and run alone. The other searches use one core and run two at a time. The result of a search depends on other work
on the machine. With the default of 30 graphs and 10 seconds it takes a quarter of an hour;
`.venv/bin/python -m benchmarks.portfolio --graphs 10 --budget-s 2` is quick.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from statistics import mean

import numpy as np

from benchmarks.tables import finish, show
from data.layered import Layered, layered_graph
from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import Topology, preset
from doppler_tf.heuristics import CONSTRUCTIVE, HEURISTICS, Problem
from doppler_tf.heuristics.exact.cp_sat import small_enough
from doppler_tf.heuristics.search.budget import ROUNDING
from doppler_tf.placement import Placement, place
from doppler_tf.schedule.assignment import AUTO

_ON_ONE_CORE = ("annealing", "local_search", "random_search")


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=30)
    parser.add_argument("--budget-s", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    args = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in HEURISTICS}
    makespans_s, gaps, winners, wrong_bounds = [], [], [], 0
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), _warm_up) as pool:
        list(pool.map(alone, [0, 0], _ON_ONE_CORE[:2], [1.0, 1.0]))  # starts both processes before anything is timed
        _warm_up()
        for number, whole, found in compared(pool, range(args.first, args.first + args.graphs), args.budget_s):
            makespans_s.append(whole.makespan_s)
            gaps.append(whole.gap)
            winners.append(whole.assignment.method)
            for name, placed in found.items():
                if placed is not None:
                    ratios[name].append(placed.makespan_s / whole.makespan_s)
                    wrong_bounds += int(whole.lower_bound_s > placed.makespan_s * (1 + ROUNDING))
            graph, costs = random_case(number)
            ahead = {name: each[-1] for name, each in ratios.items() if found.get(name) is not None and each[-1] < 1 - ROUNDING}
            print(f"graph {number}: {graph.work_vertices.size} vertices on {costs.topology.name}, {whole.assignment.method}, "
                  f"{whole.gap:.2%} above the bound", *(f"({name} {ratio:.6f})" for name, ratio in ahead.items()), flush=True)
    rows = {name: {"graphs": len(each), "mean_ratio": mean(each), "least_ratio": min(each),
                   "as_good_share": mean(float(ratio <= 1 + ROUNDING) for ratio in each)} for name, each in ratios.items() if each}
    show(f"makespan over the portfolio's, {args.budget_s:g} s each", rows)
    finish({"graphs": args.graphs, "budget_s": args.budget_s, "makespans_s": makespans_s, "wrong_bounds": wrong_bounds,
            "mean_gap": mean(gaps), "proven_optimal_share": mean(float(gap <= ROUNDING) for gap in gaps),
            "winners": {name: winners.count(name) for name in sorted(set(winners))}, "methods": rows})


def compared(pool: ProcessPoolExecutor, numbers: Sequence[int],
             budget_s: float) -> Iterator[tuple[int, Placement, dict[str, Placement | None]]]:
    """For each graph its number, the portfolio's placement, and the placement of every method alone."""
    for pair in (numbers[first:first + 2] for first in range(0, len(numbers), 2)):
        whole = {number: place(*random_case(number), budget_s=budget_s) for number in pair}
        searches = {(number, name): pool.submit(alone, number, name, budget_s) for number in pair for name in _ON_ONE_CORE}
        wait(searches.values())
        for number in pair:
            found = {name: searches[number, name].result() for name in _ON_ONE_CORE}
            yield number, whole[number], found | {name: alone(number, name, budget_s) for name in (*CONSTRUCTIVE, "cp_sat")}


def alone(number: int, name: str, budget_s: float) -> Placement | None:
    """One method's placement of graph `number`; None if the graph is too large for the method or nothing found fits in memory."""
    problem = Problem(*random_case(number), AUTO)
    if name == "cp_sat" and not small_enough(problem):
        return None
    try:
        return place(problem, method=name, budget_s=budget_s)
    except DeadlockError:
        return None


def _warm_up() -> None:
    """Loads compiled code, so that no method's seconds include it."""
    for name in _ON_ONE_CORE:
        alone(0, name, 0.1)
    place(*random_case(8), budget_s=2.0)  # small enough for CP-SAT


def random_case(number: int):
    """Graph `number` and its costs: 10 to 400 vertices, presets and unequal devices, links that queue."""
    rng = np.random.default_rng(number)
    topology = (preset("p100x4"), preset("v100x8"), preset("cpu:2"), unequal(rng))[number % 4]
    vertices, width, skip, window = (int(rng.integers(low, high)) for low, high in ((10, 400), (2, 24), (1, 5), (3, 12)))
    # A small width or window leaves room for only a few edges.
    degree = float(rng.uniform(1, 1 + min(width, window) / 4))
    # The mean exec is one to about fifty times a transfer.
    flops = 10 ** rng.uniform(9.5, 11) * (0.005 if topology.name.startswith("cpu") else 1)
    layered = Layered(vertices, min(width, vertices - 1), degree, skip, window, flops, 8e6 if flops > 1e9 else 1e6,
                      float(rng.choice([0.0, 0.5, 1.0])))
    graph = layered_graph(layered, number)
    return graph, build_costs(graph, topology)


def unequal(rng: np.random.Generator, most: int = 5) -> Topology:
    """Two to `most` devices. The fastest is up to eight times as fast as the slowest."""
    count = int(rng.integers(2, most + 1))
    devices = [{"name": f"d{d}", "flops_per_s": float(rng.uniform(1, 8)) * 1e12, "mem_bytes_per_s": 1e12} for d in range(count)]
    links = {"bandwidth_bytes_per_s": float(rng.choice([5e9, 5e10, 5e11])), "latency_s": 1e-6}
    return Topology.from_json({"name": f"unequal:{count}", "devices": devices, "links": links})


if __name__ == "__main__":
    main()
