"""CPoP: the critical path on one processor."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_priority
from doppler_tf.heuristics.timeline import by_start, problem
from doppler_tf.ranks import b_levels, t_levels

_ANY, _NOTHING = -1, np.zeros((1, 1))


def cpop(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """The critical path's vertices on the device that runs them soonest, all others where they end soonest, gaps filled.

    Priority is b-level plus t-level. (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.2.)
    """
    below = b_levels(graph, costs)
    preferred = np.full(graph.num_vertices, _ANY, np.int32)
    path, v = [], int(graph.work_vertices[np.argmax(below.value_s[graph.work_vertices])])
    while v >= 0:
        path.append(v)
        v = int(below.next_vertex[v])
    # As many of the path as pins let, then the least time.
    forbidden = (~costs.allowed[path]).sum(axis=0)
    preferred[path] = np.lexsort((costs.exec_s[path].sum(axis=0), forbidden))[0]
    priority = below.value_s + t_levels(graph, costs).value_s
    made = by_priority.schedule(problem(graph, costs), priority, _NOTHING, preferred, True, False)
    return by_start(*made, "cpop")
