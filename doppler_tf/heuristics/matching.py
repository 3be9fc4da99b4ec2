"""The assignment problem: each row a column of its own, at the least sum."""

from __future__ import annotations

import numpy as np

# Costs are rounded to this many steps of the largest.
_STEPS = 10**9


def match(cost: np.ndarray) -> np.ndarray:
    """int64 [n]: the column of each row; cost: float64 [n, n], infinite where row and column must not meet.

    Solved by OR-tools' cost-scaling push-relabel (Goldberg and Kennedy 1995). Raises ValueError where no matching avoids infinity.
    """
    from ortools.graph.python import linear_sum_assignment

    row, column = np.nonzero(np.isfinite(cost))
    finite = cost[row, column]
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    solver = linear_sum_assignment.SimpleLinearSumAssignment()
    solver.add_arcs_with_cost(row, column, np.round(finite / largest * _STEPS).astype(np.int64))
    if solver.solve() != solver.OPTIMAL:
        raise ValueError(f"matching: expected a finite perfect matching of {len(cost)} rows, got none")
    return np.array([solver.right_mate(i) for i in range(len(cost))], np.int64)
