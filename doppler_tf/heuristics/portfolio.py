"""All searches side by side, within one budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.annealing import anneal
from doppler_tf.heuristics.cp_sat import pairs, small_enough, solve
from doppler_tf.heuristics.local_search import climb
from doppler_tf.heuristics.random_search import draw_best
from doppler_tf.heuristics.search import Budget, Found

POLISH = "polish"
# Shares of the seconds until which random search, CP-SAT, and both lanes of searches from their own starts may run.
_RANDOM, _EXACT, _APART = 0.02, 0.25, 0.7
# CP-SAT joins where its model is built in a fraction of a second, and there are seconds to solve it.
_MOST_EXACT, _LEAST_SECONDS = 2_500, 1.0


def search_together(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, first: tuple[float, Assignment],
                    dispatch: str) -> dict[str, Found]:
    """Two lanes of searches at once, first apart, then from the best of all.

    Apart: annealing takes the very steps that it takes by itself; beside it random search, CP-SAT where the graph is small enough, and
    hill climbing. Then `polish`: annealing in one lane and hill climbing in the other, both from the best of `first` and of all these.

    Args:
      budget: with seconds; `simulations` bounds each search by itself.
      first: makespan and assignment of the best so far, where CP-SAT begins.

    Returns:
      what each search found, by name; each from a generator of its own, seeded alike.
    """
    started = time.perf_counter()
    bound_s = budget.target_s

    def until(share: float) -> Budget:
        return replace(budget, seconds=max(0.0, budget.seconds * share - (time.perf_counter() - started)), target_s=bound_s)

    def run(search: Callable[..., Found], share: float, start: Assignment | None, seeds: int = seed) -> Found:
        return search(graph, costs, np.random.default_rng(seeds), until(share), start, dispatch)

    if first[0] <= budget.target_s:
        return {}
    with ThreadPoolExecutor(1, "portfolio") as pool:
        lane = pool.submit(run, anneal, _APART, None)
        found = {"random_search": run(draw_best, _RANDOM, None)}
        if small_enough(graph, costs) and pairs(graph, costs) <= _MOST_EXACT and budget.seconds >= _LEAST_SECONDS:
            found["cp_sat"] = run(partial(solve, workers=1), _EXACT, first[1])
            bound_s = max(bound_s, found["cp_sat"].lower_bound_s)
        found["local_search"] = run(climb, _APART, None)
        found["annealing"] = lane.result()
        best_s, best = min([first, *((each.makespan_s, each.assignment) for each in found.values())], key=lambda pair: pair[0])
        if best_s > bound_s:
            lane = pool.submit(run, anneal, 1.0, best, seed + 1)
            found[POLISH] = min(run(climb, 1.0, best, seed + 1), lane.result(), key=lambda each: each.makespan_s)
    return found
