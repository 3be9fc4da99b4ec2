"""ETF: earliest task first."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_ready
from doppler_tf.heuristics.timeline import by_start, problem
from doppler_tf.ranks import b_levels


def etf(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Of all pairs of candidate and device the one that starts first; among equals the larger b-level.

    (Hwang, Chow, Anger and Lee, SIAM J. Computing 18(2), 1989.)
    """
    name = np.argsort(-b_levels(graph, costs).value_s, kind="stable")
    return by_start(*by_ready.schedule(problem(graph, costs), np.argsort(name), name, False), "etf")
