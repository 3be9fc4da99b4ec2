"""The start of a search: several assignments are climbed from, and the better half goes on, until one is left.

What is fastest before a search is often not what a search makes most of. (Successive halving: Jamieson and Talwalkar, AISTATS 2016.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.search.budget import Budget, Found
from doppler_tf.heuristics.search.walker import Standing, Walker
from doppler_tf.schedule.assignment import Assignment

# Steps from the first start that tell the pace.
_TRIAL = 30


def race(pool: Pool, seed: int, seconds: float, starts: Sequence[Assignment]) -> Found:
    """The best assignment met in a race of starts, the most promising first; on two cores, if there are."""
    lanes = [starts[i::2] for i in range(2)] if len(starts) > 2 and (os.cpu_count() or 1) > 1 else [starts]
    apart = Pool(pool.problem, pool.bound_s)

    def run(number: int) -> Found:
        rng = np.random.default_rng([seed, number])
        walker = Walker("local_search", pool.problem, rng, Budget(seconds=seconds), lanes[number][0], apart)
        _halve(walker, lanes[number])
        return walker.found()

    with ThreadPoolExecutor(len(lanes), "race") as threads:
        running = threads.map(run, range(len(lanes)))
        try:
            return min(running, key=lambda found: found.makespan_s)
        except BaseException:
            apart.stop()  # because the executor waits for all threads
            raise


def _rounds(starts: int) -> int:
    """The walks of a race in all rounds, in multiples of those of a start in the first one."""
    walks, each = 0, 1
    while starts > 1:
        walks, starts, each = walks + starts * each, -(-starts // 2), 2 * each
    return walks


def _halve(walker: Walker, starts: Sequence[Assignment]) -> None:
    """Lets as many starts as time allows walk as many steps as there are units; then the better half twice as many, and so on."""
    steps, standing = walker.num_units, list[Standing]()
    walker.walk(np.zeros(_TRIAL))
    for number, start in enumerate(starts, 1):
        if walker.over or steps * (_rounds(max(number, 2)) - len(standing)) > walker.affordable:  # one alone is no race
            break
        walker.begin_at(start)
        walker.walk(np.zeros(steps))
        standing.append(walker.standing())
    while len(better := sorted(standing, key=lambda each: each.level_s)[:-(-len(standing) // 2)]) > 1:
        steps, standing = 2 * steps, list[Standing]()
        for each in better:
            walker.resume(each)
            walker.walk(np.zeros(steps))
            standing.append(walker.standing())
