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
from doppler_tf.heuristics.search import Budget, Exchange, Found

# A round of annealing begins if this share of it, by whose end it is cold, fits into what is left; CP-SAT may take this share of the time.
_COLD, _EXACT = 0.6, 0.12
# CP-SAT joins where its model is built in a fraction of a second, and there are seconds to solve it.
_MOST_EXACT, _LEAST_SECONDS = 2_500, 1.0


def search_together(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, first: Callable[[], tuple[float, Assignment]],
                    dispatch: str) -> dict[str, Found]:
    """Annealing and hill climbing, each in a thread and with the very steps that it takes alone; beside them `first`, then CP-SAT where
    the graph is small enough.

    In place of a last round of annealing that would not get cold in time, another climb begins at the best of all.

    Args:
      budget: with seconds; `simulations` bounds each search by itself.
      first: finds an assignment without searching, and its makespan; CP-SAT begins there.

    Returns:
      what each search found, by name; each from a generator of its own, seeded alike.
    """
    started = time.perf_counter()
    exchange = Exchange(budget.target_s)

    def run(search: Callable[..., Found], start: Assignment | None = None, share: float = 1.0, key: int | list[int] = seed) -> Found:
        left_s = max(0.0, budget.seconds - (time.perf_counter() - started))
        own = replace(budget, seconds=min(left_s, budget.seconds * share), target_s=exchange.target_s)
        found = search(graph, costs, np.random.default_rng(key), own, start, dispatch)
        exchange.offer(found.makespan_s, found.assignment)
        return found

    def cool_and_climb() -> tuple[Found, Found | None]:
        cooled = run(partial(anneal, exchange=exchange, least_share=_COLD))
        late = exchange.over or budget.simulations is not None or time.perf_counter() - started >= budget.seconds
        return cooled, None if late else run(partial(climb, exchange=exchange), exchange.best[1], key=[seed, 1])

    with ThreadPoolExecutor(2, "portfolio") as pool:
        cooling, climbing = pool.submit(cool_and_climb), pool.submit(run, partial(climb, exchange=exchange))
        try:
            begun = first()
            exchange.offer(*begun)
            found = {}
            if small_enough(graph, costs) and pairs(graph, costs) <= _MOST_EXACT and budget.seconds >= _LEAST_SECONDS and not exchange.over:
                found["cp_sat"] = run(partial(solve, workers=1), begun[1], _EXACT)
                exchange.target_s = max(exchange.target_s, found["cp_sat"].lower_bound_s)
        except BaseException:
            exchange.target_s = math.inf  # ends both lanes, for which the pool waits
            raise
        found["annealing"], again = cooling.result()
        found["local_search"] = climbing.result()
        if again is not None and again.makespan_s < found["local_search"].makespan_s:
            found["local_search"] = again
    return found
