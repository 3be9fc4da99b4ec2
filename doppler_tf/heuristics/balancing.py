"""Two tools of the methods that balance work: each device's share of it, and the assignment problem."""

from __future__ import annotations

import numpy as np

from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

# No device counts as more than this many times as fast as the slowest, so that no share is zero.
_MOST_SPEED = 1e3
# The solver takes whole numbers: the largest cost becomes this.
_LARGEST = 10**9


def work_shares(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """float64 [D], sums to 1: each device's share of the work, in proportion to its speed on all of it."""
    total_s = costs.exec_s[graph.work_vertices].sum(axis=0)
    slowest_s = total_s.max()
    speed = 1.0 / np.maximum(total_s / slowest_s, 1.0 / _MOST_SPEED) if slowest_s > 0 else np.ones(costs.num_devices)
    return speed / speed.sum()


def linear_sum_assignment(cost: np.ndarray) -> np.ndarray:
    """int64 [n]: a column for each row, all different, at the least sum; cost: float64 [n, n], infinite where a pair is forbidden.

    Solved by OR-tools' cost-scaling push-relabel (Goldberg and Kennedy 1995). Raises ValueError where no finite solution exists.
    """
    from ortools.graph.python import linear_sum_assignment as ortools

    row, column = np.nonzero(np.isfinite(cost))
    finite = cost[row, column]
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    solver = ortools.SimpleLinearSumAssignment()
    solver.add_arcs_with_cost(row, column, np.round(finite / largest * _LARGEST).astype(np.int64))
    if solver.solve() != solver.OPTIMAL:
        raise ValueError(f"linear_sum_assignment: expected a finite solution for {len(cost)} rows, got none")
    return np.array([solver.right_mate(i) for i in range(len(cost))], np.int64)
