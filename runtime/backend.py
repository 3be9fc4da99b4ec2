"""The protocols that the engine drives: a backend opens a session for each run, and the session carries out instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, Transfers


class Session(Protocol):
    """One run on one backend. `Worker threads call `run_*`, which block until the work is done. The coordinator calls the rest.

    `run_*`, `free` and `fetch` raise DeviceLostError where a device is gone, anything else where that alone has failed.

    Attributes:
      check_s: seconds after which `check` is asked about a task in progress, again and again; None: never.
      caller_may_run: whether the calling thread may run the only vertex of a run, during which nobody can end the run.
      kept: the device of each tensor that can be fetched after a complete run: those that nothing consumes and those asked for.
    """

    check_s: float | None
    caller_may_run: bool
    kept: Mapping[int, int]

    def run_vertex(self, vertex: int, device: int) -> None:
        """Computes a vertex, whose inputs are resident on `device`; its outputs are resident there on return."""

    def run_transfer(self, transfer: int, tensor: int, source: int, destination: int) -> None:
        """Copies a tensor from `source`; it is resident at `destination` on return."""

    def is_instant(self, source: int, destination: int) -> bool:
        """Whether a transfer between these devices takes no time to speak of, so that no thread need be woken for it."""

    def free(self, tensor: int, device: int) -> None:
        """Drops a tensor from `device`, where nothing will use it again. Never blocks."""

    def check(self, devices: Sequence[int]) -> None:
        """Raises DeviceLostError if one of the devices, on which a task has been in progress for long, is gone."""

    def cancel(self) -> None:
        """Ends the run early: drops every tensor. Calls in progress return as soon as they can, and their outputs are dropped too. Never
        blocks or fails."""

    def fetch(self, tensor: int) -> np.ndarray:
        """After a complete run: the array of a tensor in `kept`."""

    def peak_tensor_bytes(self) -> np.ndarray | None:
        """After a complete run: as in `Trace`; None without kernels."""


class Backend(Protocol):
    """A kind of devices.

    Attributes:
      device_kind: as in `Trace`: `tf` or `emulated`.
      time_scale: seconds of wall clock to one second of the trace.
      warmup: whether an executor's first run is to be done twice, the first time untimed.
    """

    device_kind: str
    time_scale: float
    warmup: bool

    def open(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, transfers: Transfers) -> Session:
        """Checks everything and places the inputs, before the clock starts. Raises a UserError if the graph cannot be run, DeviceLostError
        if a device is lost, any other error if inputs cannot be placed."""
