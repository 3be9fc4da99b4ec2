"""Is the portfolio with a budget ever worse than one of its methods with the same budget? `make bench NAME=portfolio`.

Random graphs of all shapes on equal and unequal devices; every method alone, then `auto`, the same seconds each. At the default of 100
graphs and 10 seconds it runs for an hour or more: `.venv/bin/python -m benchmarks.portfolio --graphs 10 --budget-s 2` is quick.
"""

from __future__ import annotations

import argparse
from statistics import mean

import numpy as np

from benchmarks.tables import finish, show
from data.layered import Layered, layered_graph
from doppler_tf.costs import build_costs
from doppler_tf.errors import DeadlockError
from doppler_tf.heuristics import HEURISTICS
from doppler_tf.heuristics.cp_sat import small_enough
from doppler_tf.placement import place
from doppler_tf.topology import Topology, preset

# Sums of floating-point costs differ in the last places between equally good assignments.
_ROUNDING = 1e-12


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--budget-s", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    args = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in HEURISTICS}
    gaps, winners, losses, wrong_bounds = [], [], [], 0
    for number in range(args.first, args.first + args.graphs):
        graph, costs = random_case(number)
        whole = place(graph, costs, budget_s=args.budget_s)
        gaps.append(whole.gap)
        winners.append(whole.assignment.method)
        for name in HEURISTICS:
            if name == "cp_sat" and not small_enough(graph, costs):
                continue
            try:
                alone = place(graph, costs, name, budget_s=args.budget_s)
            except DeadlockError:
                continue
            ratios[name].append(alone.makespan_s / whole.makespan_s)
            wrong_bounds += whole.lower_bound_s > alone.makespan_s * (1 + _ROUNDING)
            if alone.makespan_s < whole.makespan_s * (1 - _ROUNDING):
                losses.append({"graph": number, "method": name, "ratio": alone.makespan_s / whole.makespan_s})
        print(f"graph {number}: {graph.work_vertices.size} vertices on {costs.topology.name}, {whole.assignment.method}, "
              f"{whole.gap:.2%} above the bound, {len(losses)} losses so far", flush=True)
    rows = {name: {"graphs": len(each), "mean_ratio": mean(each), "least_ratio": min(each),
                   "as_good_share": mean(ratio <= 1 + _ROUNDING for ratio in each)} for name, each in ratios.items() if each}
    show(f"makespan over the portfolio's, {args.budget_s:g} s each; a least ratio below 1 is a loss", rows)
    finish({"graphs": args.graphs, "budget_s": args.budget_s, "losses": losses, "wrong_bounds": wrong_bounds, "mean_gap": mean(gaps),
            "proven_optimal_share": mean(gap <= _ROUNDING for gap in gaps), "winners": {w: winners.count(w) for w in sorted(set(winners))},
            "methods": rows})


def random_case(number: int):
    """Graph and costs number `number`: 10 to 400 vertices, presets and unequal devices, links that queue."""
    rng = np.random.default_rng(number)
    topology = (preset("p100x4"), preset("v100x8"), preset("cpu:2"), unequal(rng))[number % 4]
    vertices, width, skip, window = (int(rng.integers(low, high)) for low, high in ((10, 400), (2, 24), (1, 5), (3, 12)))
    # Of few vertices with few places for their edges, not many edges can be drawn.
    degree = float(rng.uniform(1, 1 + min(width, window) / 4))
    # Mean exec from that of a transfer to about fifty times as much.
    flops = 10 ** rng.uniform(9.5, 11) * (0.005 if topology.name.startswith("cpu") else 1)
    layered = Layered(vertices, min(width, vertices - 1), degree, skip, window, flops, 8e6 if flops > 1e9 else 1e6,
                      float(rng.choice([0.0, 0.5, 1.0])))
    graph = layered_graph(layered, number)
    return graph, build_costs(graph, topology)


def unequal(rng: np.random.Generator) -> Topology:
    """Two to five devices, the fastest up to eight times as fast as the slowest."""
    count = int(rng.integers(2, 6))
    devices = [{"name": f"d{d}", "flops_per_s": float(rng.uniform(1, 8)) * 1e12, "mem_bytes_per_s": 1e12} for d in range(count)]
    links = {"bandwidth_bytes_per_s": float(rng.choice([5e9, 5e10, 5e11])), "latency_s": 1e-6}
    return Topology.from_json({"name": f"unequal:{count}", "devices": devices, "links": links})


if __name__ == "__main__":
    main()
