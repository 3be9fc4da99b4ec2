"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.following import follow
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# The first round's steps by unit, and how rounds grow; each cools from HOT to COLD typical losses, geometrically.
_FIRST_STEPS, _GROWTH, _HOT, _COLD = 300, 1.5, 0.3, 0.001
# Rounds after the first are begun if this share of them, cool enough to gain, fits into the seconds left.
_LEAST = 0.4


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None) -> Found:
    """Rounds of annealing, each half as long again as the one before and from the best so far; never worse than its start.

    (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.) Temperatures are multiples of the geometric mean of losses, measured before.
    Where it may give way to other searches (`exchange`), it goes on as `follow` says when it is far behind, or when there is too little
    time for another such round.
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange)
    typical_s = walker.typical_loss_s()
    steps = _FIRST_STEPS * walker.num_units
    while not (walker.over or walker.follows):
        walker.return_to_best()
        walker.walk((typical_s or walker.levels[1]) * np.geomspace(_HOT, _COLD, steps))
        steps = int(steps * _GROWTH)
        walker.follows = walker.follows or walker.affordable < _LEAST * steps
    if walker.follows:
        follow(walker)
    return walker.found("annealing")
