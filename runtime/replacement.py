"""Where the vertices of lost devices go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, runnable


def without_devices(graph: DataflowGraph, costs: CostModel, assignment: Assignment, lost: Collection[int]) -> Assignment | None:
    """The assignment with all vertices of lost devices moved to other devices; None if a pin, a missing link or a plan for memory forbids
    it, or no device is left.

    In topological order each vertex, or colocation group, goes to the device that would then have the least work to do.
    """
    if assignment.after is not None:
        return None
    device = assignment.device.copy()
    left = np.setdiff1d(np.arange(costs.num_devices), list(lost))
    work, gone = graph.work_vertices, np.isin(device, list(lost))
    busy_s = np.bincount(device[work], costs.exec_s[work, device[work]], costs.num_devices)
    for v in graph.topological_order.tolist():
        if not gone[v] or graph.is_input[v]:
            continue
        members = work[costs.colocate[work] == costs.colocate[v]] if costs.colocate[v] >= 0 else np.array([v])
        choices = left[costs.allowed[members][:, left].all(axis=0)]
        if not choices.size:
            return None
        then_s = busy_s[choices] + costs.exec_s[members][:, choices].sum(axis=0)
        chosen = choices[np.argmin(then_s)]
        busy_s[chosen] = then_s.min()
        device[members], gone[members] = chosen, False
    return replace(assignment, device=device) if runnable(graph, costs, device) else None
