"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# The first round's steps by unit, and how rounds grow; each cools from HOT to COLD typical losses, geometrically.
_FIRST_STEPS, _GROWTH, _HOT, _COLD = 300, 1.5, 0.3, 0.001
# Rounds after the first are begun if this share of them, cool enough to gain, fits into the seconds left.
_LEAST = 0.4
# Of other rounds the first steps by unit, and where they begin to cool, for what they begin at is good.
_WARM_STEPS, _WARM = 30, 0.01
# What is far behind, of a best of all and times the share of the time left.
_BEHIND = 0.05


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None) -> Found:
    """Rounds of annealing, each half as long again as the one before and from the best so far; never worse than its start.

    (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.) Temperatures are multiples of the geometric mean of losses, measured before.
    Where it may give way to other searches (`exchange`), what is left of the time when it is far behind, or when there is too little for
    such a round, goes to rounds that begin short and hardly warm, from the best of all.
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange, _BEHIND)
    log_loss, losses = walker.walk(np.zeros(walker.num_units), measure=True)
    hot, first = _HOT, _FIRST_STEPS * walker.num_units
    steps = first
    while not walker.over:
        most = walker.affordable
        walker.follows = walker.follows or (steps > first and most < _LEAST * steps)
        walker.return_to_best()
        if walker.follows:
            warm = steps if hot == _WARM else _WARM_STEPS * walker.num_units
            hot, steps = _WARM, max(1, int(min(warm, most)))
        typical_s = np.exp(log_loss / losses) if losses else walker.levels[1]
        walker.walk(typical_s * np.geomspace(hot, _COLD, steps))
        steps = int(steps * _GROWTH)
    return walker.found("annealing")
