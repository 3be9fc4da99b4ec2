"""Annealing, hill climbing and CP-SAT side by side, within one budget of seconds."""

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

# CP-SAT may take this share of the time on one core, and so many seconds: on 22 random graphs that it takes it found and proved no more
# in all of the time.
_EXACT, _LEAST_SECONDS = 0.12, 0.2
# It waits this share of the time, or so many seconds for each of the model's `pairs`, for what the searches find soon: the shorter the
# model's horizon, the faster it is solved.
_HEAD_START, _HEAD_START_S = 0.05, 0.002
# It joins where it may find or prove something: of models with more `pairs` than this it hardly ever did in so many seconds.
_MOST_EXACT, _TRIED_S = 400, 1.2
# What setting up a search takes by vertex and edge; searches begin before `first` if that is less than this share of the time.
_SETTING_UP_S, _SOON = 5e-5, 0.05


def search_together(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, first: Callable[[], tuple[float, Assignment]],
                    dispatch: str) -> dict[str, Found]:
    """Annealing and hill climbing, each in a thread and at first with the very steps that it takes alone; beside them `first`, then
    CP-SAT where the graph is small enough. Of a graph so large that its searches begin late, `first` comes before all.

    A search that is far behind, and annealing without time for another long round, goes on from the best of all (`follow`); not where
    simulations are limited, nor under rule `order`, which ties a makespan to the search's own order.

    Args:
      budget: with seconds; `simulations` bounds each search by itself.
      first: finds an assignment without searching, and its makespan; CP-SAT begins there, or, where searches give way, at
        what is best of all a little later.

    Returns:
      what each search found itself, by name.
    """
    started = time.perf_counter()
    give_way = budget.simulations is None and dispatch != "order"
    exchange = Exchange(budget.target_s, budget.seconds if give_way else math.inf)

    def left_s() -> float:
        return max(0.0, budget.seconds - (time.perf_counter() - started))

    def run(search: Callable[..., Found], start: Assignment | None = None, seconds: float | None = None) -> Found:
        own = replace(budget, seconds=left_s() if seconds is None else seconds, target_s=exchange.target_s)
        try:
            found = search(graph, costs, np.random.default_rng(seed), own, start, dispatch)
        except BaseException:
            exchange.stop()
            raise
        exchange.offer(found.makespan_s, found.assignment)
        return found

    def prove(begun: tuple[float, Assignment]) -> Found | None:
        """What CP-SAT finds itself, beginning at `begun` or, where searches give way, at the best of all a little later; None: no part."""
        size, most = pairs(graph, costs), _MOST_EXACT * max(1.0, _EXACT * budget.seconds / _TRIED_S)
        if size > most or not small_enough(graph, costs):
            return None
        if give_way:
            exchange.wait(min(_HEAD_START * budget.seconds, _HEAD_START_S * size, left_s()))
        start_s, start = exchange.best if give_way else begun
        # Where simulations are counted, so is what it does.
        seconds = left_s() if budget.simulations else min(max(_EXACT * budget.seconds, _LEAST_SECONDS), left_s())
        if seconds < _LEAST_SECONDS or exchange.over:
            return None
        proven = run(partial(solve, exchange=exchange), start, seconds)
        # What others found is not its own.
        return proven if proven.makespan_s < start_s else replace(proven, makespan_s=begun[0], assignment=begun[1])

    setting_up_s = _SETTING_UP_S * (graph.num_vertices + graph.num_edges)
    begun = first() if setting_up_s > _SOON * budget.seconds else None
    if begun is not None:
        exchange.offer(*begun)
        if exchange.over or left_s() < setting_up_s:
            return {}
    with ThreadPoolExecutor(2, "portfolio") as pool:
        try:
            cooling = pool.submit(run, partial(anneal, exchange=exchange))
            climbing = pool.submit(run, partial(climb, exchange=exchange))
            begun = begun or first()
            exchange.offer(*begun)
            proven = prove(begun)
            found = {"cp_sat": proven} if proven else {}
            return found | {"annealing": cooling.result(), "local_search": climbing.result()}
        except BaseException:
            exchange.stop()  # the pool waits for both
            raise
