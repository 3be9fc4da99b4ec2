"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# The first round's steps by unit, and how rounds grow; each cools from HOT to COLD typical losses, geometrically.
_FIRST_STEPS, _GROWTH, _HOT, _COLD = 300, 1.5, 0.3, 0.001
# Where rounds that go on from what other searches found begin: short and hardly warm, for that is good already.
_WARM_STEPS, _WARM = 30, 0.01


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None, least_share: float = 0.0) -> Found:
    """Rounds of annealing, each half as long again as the one before and from the best so far; never worse than its start.

    (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.) Temperatures are multiples of the geometric mean of losses, measured before.

    Args:
      exchange: with searches beside this one.
      least_share: beside them, rounds after the first of which the seconds left would not allow this share give way to short ones,
        from the best of all; so do all rounds once this search is hopelessly behind.
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange)
    log_loss, losses = walker.walk(np.zeros(walker.num_units), measure=True)
    typical_s = np.exp(log_loss / losses) if losses else walker.levels[1]
    hot, first = _HOT, _FIRST_STEPS * walker.num_units
    steps = first
    while not walker.over:
        walker.follows = walker.follows or (steps > first and not walker.affords(least_share * steps))
        walker.return_to_best()
        if walker.follows and hot == _HOT:
            hot, steps = _WARM, _WARM_STEPS * walker.num_units
        walker.walk(typical_s * np.geomspace(hot, _COLD, steps))
        steps = int(steps * _GROWTH)
    return walker.found("annealing")
