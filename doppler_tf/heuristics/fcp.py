"""FCP: fast critical path."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_priority
from doppler_tf.heuristics.timeline import by_start, problem
from doppler_tf.ranks import b_levels

_ANY, _NOTHING = -1, np.zeros((1, 1))


def fcp(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Vertices by b-level, each on the device that sends its last input or the one that is free first: two looks instead of all.

    Of the two the one where it ends first, which with equal devices is the paper's earliest start; all devices where neither will do.
    (Radulescu and van Gemund, "On the complexity of list scheduling algorithms for distributed-memory systems", ICS 1999.)
    """
    anywhere = np.full(graph.num_vertices, _ANY, np.int32)
    made = by_priority.schedule(problem(graph, costs), b_levels(graph, costs).value_s, _NOTHING, anywhere, False, True)
    return by_start(*made, "fcp")
