"""Simulated annealing on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# The first round's steps by unit, and how rounds grow; each cools from HOT to COLD typical losses, geometrically.
_FIRST_STEPS, _GROWTH, _HOT, _COLD = 300, 1.5, 0.3, 0.001
# A round is begun if the first share of it fits into the seconds left, and takes no more than the second share of them.
_LEAST, _FILL = 0.4, 0.75
# Where there is no time for that: the first steps by unit of other rounds, and where they begin to cool, for what they begin at is good.
_WARM_STEPS, _WARM = 30, 0.01


def annealing(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Annealing from the best of some heuristics, with the default budget; `anneal` says how."""
    return anneal(graph, costs, rng).assignment


def anneal(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
           start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None) -> Found:
    """Rounds of annealing, each half as long again as the one before and from the best so far; never worse than its start.

    (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.) Temperatures are multiples of the geometric mean of losses, measured before.
    Where it may give way to other searches (`exchange`), the last such round is shortened so that it gets cold with a quarter of its time
    to spare, which goes to rounds that begin short and hardly warm, from the best of all; so does all once this search is given up.
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange)
    log_loss, losses = walker.walk(np.zeros(walker.num_units), measure=True)
    hot, steps, first = _HOT, _FIRST_STEPS * walker.num_units, True
    while not walker.over:
        most = walker.affordable
        walker.follows = walker.follows or (not first and most < _LEAST * steps)
        walker.return_to_best()
        if walker.follows and hot == _HOT:
            hot, steps = _WARM, _WARM_STEPS * walker.num_units
        # Measured steps are slow: what they say of the pace shortens the first round only where little of it would fit.
        if not first or most < _LEAST * steps:
            steps = max(1, int(min(steps, most if walker.follows else _FILL * most)))
        typical_s = np.exp(log_loss / losses) if losses else walker.levels[1]
        walker.walk(typical_s * np.geomspace(hot, _COLD, steps))
        steps, first = int(steps * _GROWTH), False
    return walker.found("annealing")
