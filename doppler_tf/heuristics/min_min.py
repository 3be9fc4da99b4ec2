"""Min-min: the earliest end first."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_ready
from doppler_tf.heuristics.timeline import by_start, problem
from doppler_tf.ranks import b_levels


def min_min(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Of all pairs of candidate and device the one that ends first; among equals the larger b-level.

    (Ibarra and Kim, JACM 24(2), 1977, algorithm D for independent tasks; here among the candidates, inputs' arrivals counted.)
    """
    name = np.argsort(-b_levels(graph, costs).value_s, kind="stable")
    return by_start(*by_ready.schedule(problem(graph, costs), np.argsort(name), name, True), "min_min")
