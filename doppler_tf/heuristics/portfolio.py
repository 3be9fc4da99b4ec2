"""All searches side by side, within one budget of seconds."""

from __future__ import annotations

import math
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
from doppler_tf.heuristics.search import Budget, Exchange, Found

# Shares of the seconds that random search and CP-SAT may take, and until which climbing goes on from its own best alone.
_RANDOM, _EXACT, _APART = 0.01, 0.12, 0.8
# CP-SAT joins where its model is built in a fraction of a second, and there are seconds to solve it.
_MOST_EXACT, _LEAST_SECONDS = 2_500, 1.0


def search_together(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, first: Callable[[], tuple[float, Assignment]],
                    dispatch: str) -> dict[str, Found]:
    """Two lanes of searches at once, each as it would be by itself; climbing in the end from the best of all.

    One lane is annealing, which has all the time; the other is `first`, random search, CP-SAT where the graph is small enough, then hill
    climbing. Annealing and climbing take the very steps that they take alone, so that neither is missed; late in the budget, climbing goes
    on from the best that annealing, the rest, or `first` has found.

    Args:
      budget: with seconds; `simulations` bounds each search by itself.
      first: finds an assignment without searching, and its makespan; CP-SAT begins there.

    Returns:
      what each search found, by name; each from a generator of its own, seeded alike.
    """
    started = time.perf_counter()
    exchange = Exchange(started + _APART * budget.seconds, budget.target_s)

    def run(search: Callable[..., Found], share: float, start: Assignment | None = None) -> Found:
        left_s = max(0.0, budget.seconds - (time.perf_counter() - started))
        own = replace(budget, seconds=min(left_s, budget.seconds * share), target_s=exchange.target_s)
        found = search(graph, costs, np.random.default_rng(seed), own, start, dispatch)
        exchange.offer(found.makespan_s, found.assignment)
        return found

    with ThreadPoolExecutor(1, "portfolio") as pool:
        lane = pool.submit(run, partial(anneal, exchange=exchange), 1.0)
        try:
            begun = first()
            exchange.offer(*begun)
            if exchange.over or time.perf_counter() - started >= budget.seconds:
                return {"annealing": lane.result()}
            found = {"random_search": run(draw_best, _RANDOM)}
            if small_enough(graph, costs) and pairs(graph, costs) <= _MOST_EXACT and budget.seconds >= _LEAST_SECONDS:
                found["cp_sat"] = run(partial(solve, workers=1), _EXACT, begun[1])
                exchange.target_s = max(exchange.target_s, found["cp_sat"].lower_bound_s)
            found["local_search"] = run(partial(climb, exchange=exchange), 1.0)
        except BaseException:
            exchange.target_s = math.inf  # ends the other lane, for which the pool waits
            raise
        found["annealing"] = lane.result()
    return found
