"""The protocol of executors: the simulator, the asynchronous engine, emulated devices, the synchronous engine."""

from __future__ import annotations

from typing import Protocol

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.trace import Trace


class Executor(Protocol):
    """Runs assignments."""

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """Runs `assignment` once and returns its trace.

        Raises:
          DeadlockError: nothing runs and nothing that waits fits in memory.
          ExecutionError: a vertex, transfer or device failed; the message names it.
        """
        ...
