"""The start of a search: several assignments are climbed from, and the better half goes on, until one is left.

What is fastest before a search is often not what a search makes most of. (Successive halving: Jamieson and Talwalkar, AISTATS 2016.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Found, Incumbent
from doppler_tf.heuristics.walker import Walker

# A race starts with as many assignments as it can take through all rounds in this part of its seconds. With one it is over.
_PART = 0.5
# Steps that tell the pace.
_TRIAL = 30


def race(graph: DataflowGraph, costs: CostModel, seed: int, budget: Budget, starts: Sequence[Assignment], dispatch: str) -> Found:
    """The best assignment met in a race of starts, which come in the order of their makespans; on two cores, if there are.

    Args: budget: with seconds.
    """
    lanes = [starts[i::2] for i in range(2)] if len(starts) > 2 and (os.cpu_count() or 1) > 1 else [starts]

    incumbent = Incumbent(budget.target_s, shared=False)

    def run(number: int) -> Found:
        walker = Walker("local_search", graph, costs, np.random.default_rng([seed, number]), budget, lanes[number][0], dispatch, incumbent)
        _halve(walker, lanes[number])
        return walker.found()

    with ThreadPoolExecutor(len(lanes), "race") as pool:
        running = pool.map(run, range(len(lanes)))
        try:
            return min(running, key=lambda found: found.makespan_s)
        except BaseException:
            incumbent.stop()  # because the pool waits for all threads
            raise


def _halve(walker: Walker, starts: Sequence[Assignment]) -> None:
    """Rounds of as many steps as there are units, then twice as many, each for the better half of the round before."""
    standing = []
    for start in starts:
        if walker.over:
            return
        walker.begin_at(start)
        standing.append(walker.standing())
    walker.resume(standing[0])
    walker.walk(np.zeros(_TRIAL))
    standing[0] = walker.standing()
    steps, most = walker.num_units, _PART * walker.affordable
    while walker.num_units * len(standing) * np.log2(len(standing)) > most:
        standing.pop()
    while len(standing) > 1:
        for i, each in enumerate(standing):
            walker.resume(each)
            walker.walk(np.zeros(steps))
            standing[i] = walker.standing()
            if walker.over:
                return
        standing = sorted(standing, key=lambda each: each.level_s)[:-(-len(standing) // 2)]
        steps *= 2
