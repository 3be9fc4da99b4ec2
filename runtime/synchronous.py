"""The engine with a barrier after each level, which the asynchronous one is compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from doppler_tf.errors import AssignmentError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph, longest_paths
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.dispatch import Dispatcher, Instruction
from runtime.backend import Backend
from runtime.engine import Engine
from runtime.tensors import TensorFlowBackend


class LevelDispatcher(Dispatcher):
    """The work-conserving dispatcher behind a gate: no vertex is queued before all vertices and transfers of earlier levels have ended.

    A vertex's level is the longest path (in edges) that leads to it from a vertex that is not an input. Within a level the rules are
    the dispatcher's own: slots, `fifo`, memory, and transfers that go out as soon as their producer has ended. One difference more
    lies in memory alone: the gate may keep tensors longer, so that a deadlock can arise where the asynchronous engine has none.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment):
        """Raises: as Dispatcher's; AssignmentError for one with offload, whose order the barriers might contradict."""
        if assignment.after is not None:
            raise AssignmentError(f"{graph.name}: barriers: expected an assignment that fits in the devices' memory, got one with offload; "
                                  f"run it without barriers")
        super().__init__(graph, costs, assignment, "fifo")
        self.rule = "levels"
        edges = graph.work_edges  # `graph.levels` counts inputs, which would add a needless barrier
        level = longest_paths(graph.sources[edges], graph.targets[edges], graph.num_vertices)
        work, producer = graph.work_vertices, self.transfers.producer
        self._level: list[int] = level.tolist()
        # By level: how many vertices and transfers. The last entry is a sentinel that never opens.
        self._members: list[int] = [*np.bincount(np.concatenate([level[work], level[producer]])).tolist(), 1]

    def begin(self, now_s: float = 0.0, instant: Collection[tuple[int, int]] = ()) -> list[Instruction]:
        """As Dispatcher.begin."""
        self._pending, self._open_level = self._members.copy(), 0
        self._held: list[list[int]] = [[] for _ in self._pending]
        return super().begin(now_s, instant)

    def _vertex_ended(self, v: int, now_s: float, instructions: list) -> None:
        self._pending[self._level[v]] -= 1
        super()._vertex_ended(v, now_s, instructions)

    def _arrived(self, t: int, now_s: float, instructions: list) -> None:
        self._pending[self._level[self.transfers.producer[t]]] -= 1
        super()._arrived(t, now_s, instructions)

    def _enqueue_vertex(self, v: int, now_s: float) -> None:
        if self._level[v] > self._open_level:
            self._held[self._level[v]].append(v)
        else:
            super()._enqueue_vertex(v, now_s)

    def _start(self, now_s: float) -> list[Instruction]:
        while not self._pending[self._open_level]:
            self._open_level += 1
            for v in self._held[self._open_level]:
                self._enqueue_vertex(v, now_s)
        return super()._start(now_s)


class SynchronousExecutor(Engine):
    """Level by level on any backend: the same threads, kernels and traces (`dispatch` = `levels`); valid, not work conserving."""

    def __init__(self, backend: Backend, timeout_s: float | None = None):
        """Args: backend: a TensorFlowBackend or an EmulatedBackend; timeout_s: as Engine's."""
        super().__init__(backend, LevelDispatcher, timeout_s)


def with_barriers(inputs: Mapping[int, np.ndarray], fetch: Iterable[int], timeout_s: float | None = None, restart_on_loss: bool = False,
                  **options: Any) -> SynchronousExecutor:
    """Real kernels level by level, for `MergedExecutor(make=...)`. Args: as TensorFlowExecutor's; lost devices end the run."""
    return SynchronousExecutor(TensorFlowBackend(inputs, fetch, **options), timeout_s)
