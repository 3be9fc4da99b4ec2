"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# The first round's steps by unit, and how rounds grow; each cools from HOT to COLD typical losses, geometrically.
_FIRST_STEPS, _GROWTH, _HOT, _COLD = 300, 1.5, 0.3, 0.001


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None, least_share: float = 0.0) -> Found:
    """Rounds of annealing, each half as long again as the one before and from the best so far; never worse than its start.

    (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.) Temperatures are multiples of the geometric mean of losses, measured before.

    Args:
      exchange: with searches beside this one.
      least_share: after the first, no round begins of which the seconds left would not allow this share.
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange)
    log_loss, losses = walker.walk(np.zeros(walker.num_units), measure=True)
    typical_s = np.exp(log_loss / losses) if losses else walker.levels[1]
    steps = _FIRST_STEPS * walker.num_units
    while not walker.over:
        walker.return_to_best()
        walker.walk(typical_s * np.geomspace(_HOT, _COLD, steps))
        steps = int(steps * _GROWTH)
        if not walker.affords(least_share * steps):
            break
    return walker.found("annealing")
