"""Simulated annealing on simulated makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget, Found
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment

# Steps per unit in the first round, and the factor by which each further round is longer.
_FIRST_STEPS, _GROWTH = 300, 1.5
# Temperatures at the start and the end of a round, in multiples of a typical loss.
_HOT, _COLD = 0.3, 0.001


def anneal(problem: Problem, rng: np.random.Generator, budget: Budget | None = None, start: Assignment | None = None,
           pool: Pool | None = None) -> Found:
    """Anneals from a start, by `cool`; never worse than the start. (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.)"""
    walker = Walker("annealing", problem, rng, budget, start, pool)
    cool(walker)
    return walker.found()


def cool(walker: Walker) -> None:
    """Rounds of annealing until the walker's budget is spent, each from the best so far and 1.5 times as long as the one before.

    Temperatures are multiples of the geometric mean of losses, which is measured first. If a round would outlast a budget of seconds, it
    is shortened, so that it still ends cold.
    """
    typical_s = walker.typical_loss_s()
    steps = _FIRST_STEPS * walker.num_units
    while not walker.over:
        walker.return_to_best()
        walker.walk((typical_s or walker.state.levels[1]) * np.geomspace(_HOT, _COLD, min(steps, walker.affordable)))
        steps = int(steps * _GROWTH)
