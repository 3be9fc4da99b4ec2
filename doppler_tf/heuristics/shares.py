"""How much of the work each device should get."""

from __future__ import annotations

import numpy as np

from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

# No device counts as more than this many times as fast as the slowest.
_MOST = 1e3


def work_shares(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """float64 [D], sums to 1: shares by the devices' speeds, which are told from how long each would take for everything."""
    total_s = costs.exec_s[graph.work_vertices].sum(axis=0)
    slowest_s = total_s.max()
    speed = 1.0 / np.maximum(total_s / slowest_s, 1.0 / _MOST) if slowest_s > 0 else np.ones(costs.num_devices)
    return speed / speed.sum()
