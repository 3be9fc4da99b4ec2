"""What ran where and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

DEVICE_KINDS = ("virtual", "emulated", "tf")


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one run; times in seconds from the first dispatch.

    Attributes:
      vertex, device: int32 [M]; start_s, end_s: float64 [M], one row an execution.
      producer, source, destination: int32 [T]; transfer_start_s, transfer_end_s: float64 [T], one row a transfer.
      dispatch: the rule that ordered the queues (`fifo`, `b_level`, `order`, or `levels` for the synchronous engine).
      device_kind: `virtual` (simulated clock), `emulated` (wall clock, modelled times) or `tf` (real kernels).
      log: the same run as the dispatcher saw it (when it gave an instruction, when it heard of the end), where a wall clock
        makes the two differ.
    """

    vertex: np.ndarray
    device: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    producer: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    transfer_start_s: np.ndarray
    transfer_end_s: np.ndarray
    dispatch: str = "fifo"
    device_kind: str = "virtual"
    log: Trace | None = None

    @property
    def makespan_s(self) -> float:
        """From the first dispatch to the end of the last event."""
        return float(max(self.end_s.max(initial=0.0), self.transfer_end_s.max(initial=0.0)))


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """Bytes in use on one device: `used_bytes[i]` from `time_s[i]` on."""

    time_s: np.ndarray
    used_bytes: np.ndarray


def memory_profiles(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[MemoryProfile]:
    """Memory in use by device, from a complete trace, by the rules of memory.

    An output is reserved when its vertex starts, a copy when its transfer starts, inputs at time 0 where they are used; all are
    freed after the last use there (a consumer or an outgoing transfer); outputs that nothing uses stay.
    """
    start, end = np.zeros(graph.num_vertices), np.zeros(graph.num_vertices)
    start[trace.vertex], end[trace.vertex] = trace.start_s, trace.end_s
    device = assignment.device
    reserved: dict[tuple[int, int], float] = {(v, int(device[v])): float(start[v]) for v in graph.work_vertices.tolist()}
    last_use: dict[tuple[int, int], float] = {}
    for p, source, destination, begun, ended in zip(trace.producer.tolist(), trace.source.tolist(), trace.destination.tolist(),
                                                    trace.transfer_start_s.tolist(), trace.transfer_end_s.tolist(), strict=True):
        reserved[p, destination] = begun
        last_use[p, source] = max(last_use.get((p, source), 0.0), ended)
    for p, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
        key = (p, int(device[v]))
        last_use[key] = max(last_use.get(key, 0.0), float(end[v]))
        if graph.is_input[p]:
            reserved[key] = 0.0
    changes: list[list[tuple[float, float]]] = [[] for _ in range(costs.num_devices)]
    for (p, d), begun in reserved.items():
        size = float(costs.output_bytes[p])
        changes[d].append((begun, size))
        if (p, d) in last_use:
            changes[d].append((last_use[p, d], -size))
    return [_profile(rows) for rows in changes]


def _profile(changes: list[tuple[float, float]]) -> MemoryProfile:
    """Net change at each instant, summed up: at one instant what ends is freed before what starts is reserved."""
    if not changes:
        return MemoryProfile(np.zeros(1), np.zeros(1))
    table = np.array(changes)
    times, inverse = np.unique(table[:, 0], return_inverse=True)
    return MemoryProfile(times, np.cumsum(np.bincount(inverse, table[:, 1])))
