"""Shared by the methods that balance work: each device's share of the work, and the linear assignment problem."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

# A device counts as at most this many times as fast as the slowest, so that no share is zero.
_MAX_RELATIVE_SPEED = 1e3
# The solver needs integer costs. The largest cost is scaled to this.
_LARGEST_COST = 10**9


def work_shares(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """float64 [D], sums to 1: each device's share of the work, proportional to its speed on the whole graph."""
    total_s = costs.exec_s[graph.work_vertices].sum(axis=0)
    slowest_s = total_s.max()
    speed = 1.0 / np.maximum(total_s / slowest_s, 1.0 / _MAX_RELATIVE_SPEED) if slowest_s > 0 else np.ones(costs.num_devices)
    return speed / speed.sum()


def linear_sum_assignment(cost: np.ndarray) -> np.ndarray:
    """int64 [n]: a different column for each row, with the least sum of costs.

    OR-tools' cost-scaling push-relabel solves it (Goldberg and Kennedy 1995).

    Args:
      cost: float64 [n, n], infinite for a forbidden pair.

    Raises:
      ValueError: no finite solution exists.
    """
    from ortools.graph.python import linear_sum_assignment as ortools

    row, column = np.nonzero(np.isfinite(cost))
    finite = cost[row, column]
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    solver = ortools.SimpleLinearSumAssignment()
    solver.add_arcs_with_cost(row, column, np.round(finite / largest * _LARGEST_COST).astype(np.int64))
    if solver.solve() != solver.OPTIMAL:
        raise ValueError(f"linear_sum_assignment: expected a finite solution for {len(cost)} rows, got none")
    return np.array([solver.right_mate(i) for i in range(len(cost))], np.int64)
