"""Annealing, hill climbing and CP-SAT in parallel, within one budget of seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.annealing import anneal
from doppler_tf.heuristics.cp_sat import pairs, small_enough, solve
from doppler_tf.heuristics.local_search import climb
from doppler_tf.heuristics.race import race
from doppler_tf.heuristics.search import Budget, Found, Incumbent
from doppler_tf.heuristics.starting_point import starting_point
from doppler_tf.schedule.assignment import Assignment

# On 24 random graphs with 400 to 1,000 pairs, CP-SAT improved one bound and no assignment, and cost the searches a tenth of their steps.
_MOST_PAIRS = 400
# Seconds per vertex and edge to set up the searches. If the set-up would outlast the budget, no search starts.
_SETUP_S = 5e-5
# The longest share of the seconds that go to further starts, and then of those left that a race takes.
_RACE = 0.4
TOGETHER = {"annealing": anneal, "local_search": climb, "cp_sat": solve}


def _time_to_search(graph: DataflowGraph, seconds: float) -> bool:
    """Whether setting up a search leaves time for it."""
    return seconds >= _SETUP_S * (graph.num_vertices + graph.num_edges)


def search_together(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, known: Sequence[Assignment],
                    dispatch: str, searches: Mapping[str, Callable[..., Found]] = TOGETHER) -> dict[str, Found]:
    """Annealing, hill climbing and, on a small graph, CP-SAT, each in a thread, from the winner of a race.

    When a search returns to its best, it takes the best of all searches. If simulations are counted, it keeps to its own best instead, so
    that the result depends on the seed alone. All searches end when one of them meets the lower bound.

    Args:
      known: assignments to start from, the fastest first; then others, the most promising first.
      budget: with seconds; `simulations` limits each search separately.
      searches: by name, with the arguments of `anneal`.

    Returns:
      The best of each search by its name. An assignment's `method` names the search that found it, which may be another one. Searches that
      found theirs come first.
    """
    started = time.perf_counter()
    if not _time_to_search(graph, budget.seconds):
        return {}
    small = small_enough(graph, costs) and pairs(graph, costs) <= _MOST_PAIRS
    searches = {name: search for name, search in searches.items() if small or name != "cp_sat"}
    incumbent = Incumbent(budget.target_s, shared=budget.simulations is None)
    for_starts_s = _RACE * budget.seconds if budget.simulations is None else math.inf
    start = starting_point(graph, costs, np.random.default_rng(seed), dispatch, known[0], for_starts_s)
    distinct = dict[bytes, Assignment]()
    for each in (start, *known):
        distinct.setdefault(each.device.tobytes(), each)
    starts = list(distinct.values())
    seconds = _RACE * (budget.seconds - (time.perf_counter() - started))
    if budget.simulations is None and len(starts) > 1 and _time_to_search(graph, seconds):
        start = race(graph, costs, seed, Budget(seconds=seconds, target_s=budget.target_s), starts, dispatch).assignment

    def run(name: str) -> Found:
        left_s = max(0.0, budget.seconds - (time.perf_counter() - started))
        return searches[name](graph, costs, np.random.default_rng(seed), replace(budget, seconds=left_s), start, dispatch, incumbent)

    with ThreadPoolExecutor(len(searches), "portfolio") as pool:
        running = {name: pool.submit(run, name) for name in searches}
        try:
            for ended in as_completed(running.values()):
                ended.result()
        except BaseException:
            incumbent.stop()  # because the pool waits for all threads
            raise
    found = {name: future.result() for name, future in running.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].assignment.method != item[0]))
