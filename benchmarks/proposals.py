"""What learned proposals are worth to searches: `make bench NAME=proposals`.

Hill climbing and annealing begin at the same assignment of graphs that were never trained on, each with several networks: the trained one,
trained without the graph's family; random weights; and an untrained one that prefers the devices of the best heuristic. The last control
has no proposals at all, as before there were any. Figures are makespans over those of this control. A search uses one core.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.stats import wilcoxon

from benchmarks.move_examples import untrained
from benchmarks.pretrain import GRAPHS, HELD_OUT, family_of, fit, kept
from benchmarks.tables import finish, show
from data.generated import FAMILIES, generated_problem
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.annealing import cool
from doppler_tf.heuristics.search.budget import Budget
from doppler_tf.heuristics.search.local_search import climb_and_kick
from doppler_tf.heuristics.search.metropolis import PROPOSED
from doppler_tf.heuristics.search.proposals import FEATURES, Proposals
from doppler_tf.heuristics.search.starting_point import starting_point
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import AUTO, Assignment

NUMBER, BUDGETS = 30, (1.0, 10.0)
VERTICES, DEVICES = (1000, 10_000), (8, 16, 32, 64)
# How much more an untrained network prefers the heuristic's device; a score's noise has a standard deviation of 1.3.
PREFERENCE = 3.0
SEARCHES = {"hill climbing": climb_and_kick, "annealing": cool}
WITHOUT = "no proposals"


def main() -> None:
    """Prints a table by search and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.proposals", description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=NUMBER, help=f"number of generated graphs (default: {NUMBER})")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="seconds (default: 1 10)")
    parser.add_argument("--dispatch", default=AUTO, help=f"rule (default: {AUTO})")
    parser.add_argument("--examples", type=Path, default=Path("build/proposals"), help="as make pretrain keeps them")
    args = parser.parse_args()
    networks = {family: fit([kept(seed, args.examples) for seed in range(GRAPHS) if family_of(seed) != family]) for family in FAMILIES}
    found: dict[str, dict[str, list[float]]] = {}
    for family, problem, start in unseen(args.graphs, args.dispatch):
        for search, run in SEARCHES.items():
            for budget_s in args.budgets:
                case = f"{search}, {budget_s:g} s"
                for name, network in controls(networks[family], start, problem).items():
                    walker = Walker(search, problem, np.random.default_rng(0), Budget(seconds=budget_s), start, proposals=network)
                    if network is None:
                        shares = walker.state.shares
                        shares[:PROPOSED] *= shares[:PROPOSED + 1].sum() / shares[:PROPOSED].sum()
                        shares[PROPOSED] = 0.0
                    run(walker)
                    found.setdefault(case, {}).setdefault(name, []).append(walker.found().makespan_s)
        print(problem.graph.name, problem.graph.num_vertices, problem.costs.num_devices,
              {case: [round(row[name][-1] / row[WITHOUT][-1], 3) for name in row] for case, row in found.items()}, flush=True)
    rows = {case: summary(row) for case, row in found.items()}
    show(f"makespans over those of a search without proposals, {len(next(iter(found.values()))[WITHOUT])} graphs", rows)
    finish(rows)


def unseen(number: int, dispatch: str) -> Iterator[tuple[str, Problem, Assignment]]:
    """Families and graphs that were not trained on and where the best heuristic can be improved, with its assignment."""
    seed = HELD_OUT
    while number:
        rng = np.random.default_rng(seed)
        least = int(np.exp(rng.uniform(*np.log(VERTICES))))
        family = FAMILIES[seed % len(FAMILIES)]
        vertices = VERTICES if family == "program" else (least, int(1.1 * least) + 50)
        problem = Problem(*generated_problem(seed, vertices, int(rng.choice(DEVICES)), family)[:2], dispatch)
        seed += 1
        start = starting_point(problem, np.random.default_rng(0))
        walker = Walker("look", problem, np.random.default_rng(0), Budget(2000), start)
        before = walker.state.levels[1]
        walker.walk(np.zeros(2000))
        if walker.state.levels[1] < 0.999 * before:
            number -= 1
            yield family, problem, start


def controls(trained: Proposals, start: Assignment, problem: Problem) -> dict[str, Proposals | None]:
    """The networks by name; None: no proposals."""
    unit_of, allowed = problem.units
    preference = np.zeros(allowed.shape)
    preference[unit_of[problem.graph.work_vertices], start.device[problem.graph.work_vertices]] = PREFERENCE
    rng = np.random.default_rng(1)
    random = Proposals(*(rng.normal(size=w.shape) / np.sqrt(len(FEATURES)) for w in untrained()[:5]))
    return {"trained": trained, "random weights": random, "untrained": untrained(),
            "heuristic preferred": untrained()._replace(preference=preference), WITHOUT: None}


def summary(row: dict[str, list[float]]) -> dict[str, float]:
    """Geometric means of ratios, and how probable the trained network's gain is by chance."""
    ratios = {name: np.array(row[name]) / np.array(row[WITHOUT]) for name in row if name != WITHOUT}
    result = {f"{name.replace(' ', '_')}_ratio": float(np.exp(np.log(each).mean())) for name, each in ratios.items()}
    return result | {"worst_trained_ratio": float(ratios["trained"].max()),
                     "wilcoxon_p": float(wilcoxon(np.log(ratios["trained"]), alternative="less").pvalue)}


if __name__ == "__main__":
    main()
