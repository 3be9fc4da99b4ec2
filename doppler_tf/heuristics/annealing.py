"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Found, Incumbent, Walker

# Steps of the first round by unit, and by how much each further round is longer.
_FIRST_STEPS, _GROWTH = 300, 1.5
# Temperatures at the begin and the end of a round, in typical losses.
_HOT, _COLD = 0.3, 0.001


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", incumbent: Incumbent | None = None) -> Found:
    """Anneals from a start, and is never worse than it; `cool` says how. (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.)"""
    walker = Walker("annealing", graph, costs, rng, budget, start, dispatch, incumbent)
    cool(walker)
    return walker.found()


def cool(walker: Walker) -> None:
    """Rounds of annealing until the walker's budget is spent, each half as long again as the one before and from the best so far.

    Temperatures are multiples of the geometric mean of losses, measured before. A round that would outlast a budget of seconds is
    shortened, so that it ends cold.
    """
    typical_s = walker.typical_loss_s()
    steps = _FIRST_STEPS * walker.num_units
    while not walker.over:
        walker.return_to_best()
        walker.walk((typical_s or walker.levels[1]) * np.geomspace(_HOT, _COLD, min(steps, walker.affordable)))
        steps = int(steps * _GROWTH)
