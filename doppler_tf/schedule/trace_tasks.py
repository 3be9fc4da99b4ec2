"""The tasks of a complete trace: executions and transfers by number, with their devices, times and arrivals of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, Transfers
from doppler_tf.schedule.trace import Trace


@dataclass(frozen=True, eq=False)
class TraceTasks:
    """Tasks by number: v < N is the execution of vertex v, N + t the t-th transfer of the plan.

    Attributes:
      plan: the T transfers.
      start_s, end_s: float64 [N + T], 0 for input vertices.
      vertex: int64 [N + T], the vertex whose output the task computes or transfers.
      source, destination: int64 [N + T]; for an execution both are its device; -1 for input vertices.
      resident_s: float64 [E], the time when an edge's tensor was on its target's device; 0 for edges from input vertices.
    """

    plan: Transfers
    start_s: np.ndarray
    end_s: np.ndarray
    vertex: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    resident_s: np.ndarray


def trace_tasks(graph: DataflowGraph, plan: Transfers, assignment: Assignment, trace: Trace) -> TraceTasks:
    """The tasks of a trace that holds every vertex and transfer once. Args: plan: of `plan_transfers`."""
    count = graph.num_vertices
    start, end = np.zeros(count), np.zeros(count)
    start[trace.vertex], end[trace.vertex] = trace.start_s, trace.end_s
    by_plan = trace.in_plan_order
    arrived = trace.transfer_end_s[by_plan]
    moved = plan.of_edge >= 0
    resident = end[graph.sources]
    resident[moved] = arrived[plan.of_edge[moved]]
    device = assignment.device.astype(np.int64)
    return TraceTasks(plan, np.concatenate([start, trace.transfer_start_s[by_plan]]), np.concatenate([end, arrived]),
                      np.concatenate([np.arange(count), plan.producer]), np.concatenate([device, plan.source]),
                      np.concatenate([device, plan.destination]), resident)
