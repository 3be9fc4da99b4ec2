"""Hill climbing with kicks on the simulator's own makespans."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.following import follow
from doppler_tf.heuristics.search import Budget, Exchange, Found, Walker

# Steps by unit without gain after which a climb has ended, and those of a kick, taken whatever they lose.
_PATIENCE, _KICK = 30, 3


def local_search(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Hill climbing from the best of some heuristics, with the default budget; `climb` says how."""
    return climb(graph, costs, rng).assignment


def climb(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
          start: Assignment | None = None, dispatch: str = "fifo", exchange: Exchange | None = None) -> Found:
    """Changes that lose nothing, until none is found for long; then a few at random from the best so far, and again; never worse
    than its start. Where it may give way to other searches (`exchange`) and is far behind, it goes on as `follow` says.

    (Iterated local search: Lourenço, Martin and Stützle, Handbook of Metaheuristics, 2003.)
    """
    walker = Walker(graph, costs, rng, budget, start, dispatch, exchange)
    steps = _PATIENCE * walker.num_units
    while not (walker.over or walker.follows):
        before = np.inf
        while walker.levels[0] < before and not (walker.over or walker.follows):
            before = walker.levels[0]
            walker.walk(np.zeros(steps))
        if not walker.follows:
            walker.return_to_best()
            walker.walk(np.full(_KICK, np.inf))
    if walker.follows:
        follow(walker)
    return walker.found("local_search")
