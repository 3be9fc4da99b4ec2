"""HEFT: heterogeneous earliest finish time."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_priority
from doppler_tf.heuristics.timeline import by_start, problem
from doppler_tf.ranks import b_levels

_ANY, _NOTHING = -1, np.zeros((1, 1))


def heft(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Vertices by upward rank (the b-level), each where it ends soonest; it may fill a gap between two placed earlier.

    (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1.)
    """
    anywhere = np.full(graph.num_vertices, _ANY, np.int32)
    made = by_priority.schedule(problem(graph, costs), b_levels(graph, costs).value_s, _NOTHING, anywhere, True, False)
    return by_start(*made, "heft")
