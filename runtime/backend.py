"""What the engine drives: a backend opens a session for each run, and the session does the work that instructions ask for."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from doppler_tf.assignment import Assignment, Transfers
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph


class Session(Protocol):
    """One run on one backend. `run_*` are called on worker threads and block until the work is done; the rest by the coordinator.

    `run_*`, `free` and `outputs` raise DeviceLostError where a device is gone, anything else where that alone has failed.

    Attributes:
      instant_transfers: a transfer takes no time to speak of, and no thread need be woken for it.
      pulled_transfers: a transfer takes the time of its destination, whose threads do it between vertices; else links have threads.
    """

    instant_transfers: bool
    pulled_transfers: bool

    def core(self, device: int) -> int | None:
        """The processor core that the threads of a device stay on; None: wherever the system puts them."""

    def run_vertex(self, vertex: int, device: int) -> None:
        """Computes a vertex, whose inputs are resident on `device`; its output is resident there on return."""

    def run_transfer(self, transfer: int, producer: int, source: int, destination: int) -> None:
        """Copies the producer's output from `source`; it is resident at `destination` on return."""

    def free(self, producer: int, device: int) -> None:
        """Drops the producer's output from `device`: nothing there will use it again. Never blocks."""

    def cancel(self) -> None:
        """The run is over before its end: every tensor is dropped, what calls in progress still make is not kept, and they return
        as soon as they can. Never blocks or fails."""

    def outputs(self) -> dict[int, np.ndarray]:
        """After a complete run: the arrays of the vertices whose output nothing consumes, by vertex; empty without kernels."""

    def peak_tensor_bytes(self) -> np.ndarray | None:
        """After a complete run: as in `Trace`; None without kernels."""


class Backend(Protocol):
    """Where work is done.

    Attributes:
      device_kind: as in `Trace`: `tf` or `emulated`.
      time_scale: seconds of wall clock to one second of the trace.
      warmup: whether an executor's first run is to be done twice, the first time untimed.
    """

    device_kind: str
    time_scale: float
    warmup: bool

    def open(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, transfers: Transfers) -> Session:
        """All that comes before the clock starts: checks, and inputs placed. Raises a UserError for what cannot be run, DeviceLostError
        where a device is gone, anything else where inputs cannot be placed."""
