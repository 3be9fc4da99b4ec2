"""Annealing, hill climbing and CP-SAT in parallel, within one budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import numpy as np

from doppler_tf.heuristics.exact.cp_sat import pairs, small_enough, solve
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.annealing import anneal
from doppler_tf.heuristics.search.budget import Budget, Found
from doppler_tf.heuristics.search.local_search import climb
from doppler_tf.heuristics.search.race import race
from doppler_tf.schedule.assignment import Assignment

# On 24 random graphs with 400 to 1,000 pairs, CP-SAT improved one bound and no assignment, and cost the searches a tenth of their steps.
_MOST_PAIRS = 400
# Seconds per vertex and edge to set up the searches. If the set-up would outlast the budget, no search starts.
_SETUP_S = 5e-5
# The longest share of the seconds that a race takes.
_RACE = 0.4
TOGETHER = {"annealing": anneal, "local_search": climb, "cp_sat": solve}


def _time_to_search(problem: Problem, seconds: float) -> bool:
    """Whether setting up a search leaves time for it."""
    return seconds >= _SETUP_S * problem.size


def search_together(pool: Pool, seed: int, budget: Budget, searches: Mapping[str, Callable[..., Found]] = TOGETHER) -> None:
    """Annealing, hill climbing and, on a small graph, CP-SAT, each in a thread, from the winner of a race of what is in the pool.

    When a search returns to its best, it takes the best of all searches. If simulations are counted, it keeps to its own best instead, so
    that the result depends on the seed alone. All searches end when one of them meets the lower bound. The pool gets the best of each.
    Searches whose best another one found come last.

    Args:
      budget: with seconds; `simulations` limits each search separately.
      searches: by name, with the arguments of `anneal`.
    """
    started, problem, counted = time.perf_counter(), pool.problem, budget.simulations is not None
    if not _time_to_search(problem, budget.seconds):
        return
    small = small_enough(problem) and pairs(problem) <= _MOST_PAIRS
    searches = {name: search for name, search in searches.items() if small or name != "cp_sat"}
    pool.alone, pool.shared = False, not counted
    known = pool.starts()
    start, distinct = known[0], dict[bytes, Assignment]()
    for each in known:
        distinct.setdefault(each.device.tobytes(), each)
    seconds = _RACE * (budget.seconds - (time.perf_counter() - started))
    if not counted and len(distinct) > 1 and _time_to_search(problem, seconds):
        start = race(pool, seed, seconds, list(distinct.values())).assignment

    def run(name: str) -> Found:
        left_s = max(0.0, budget.seconds - (time.perf_counter() - started))
        return searches[name](problem, np.random.default_rng(seed), replace(budget, seconds=left_s), start, pool)

    with ThreadPoolExecutor(len(searches), "portfolio") as threads:
        running = {name: threads.submit(run, name) for name in searches}
        try:
            for ended in as_completed(running.values()):
                ended.result()
        except BaseException:
            pool.stop()  # because the executor waits for all threads
            raise
    found = {name: future.result() for name, future in running.items()}
    for name in sorted(found, key=lambda name: found[name].assignment.method != name):
        pool.enter(name, found[name])
