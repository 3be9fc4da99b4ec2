"""Hill climbing with kicks on simulated makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget, Found
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment

# A climb ends after this many steps per unit without gain. A kick has this many steps.
PATIENCE, _KICK = 30, 3


def climb(problem: Problem, rng: np.random.Generator, budget: Budget | None = None, start: Assignment | None = None,
          pool: Pool | None = None) -> Found:
    """Repeats climbs, which accept changes that are not worse, and kicks, a few random changes to the best; never worse than its start.

    (Iterated local search: Lourenço, Martin and Stützle, Handbook of Metaheuristics, 2003.)
    """
    walker = Walker("local_search", problem, rng, budget, start, pool)
    climb_and_kick(walker)
    return walker.found()


def climb_and_kick(walker: Walker) -> None:
    """Climbs and kicks until the walker's budget is spent."""
    steps = PATIENCE * walker.num_units
    while not walker.over:
        before = np.inf
        while walker.state.levels[0] < before and not walker.over:
            before = walker.state.levels[0]
            walker.walk(np.zeros(steps))
        walker.return_to_best()
        walker.walk(np.full(_KICK, np.inf))
