"""One run under the wall clock: the coordinator's loop, what the workers measured, what the devices held, and what went wrong."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NoReturn

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.dispatch import Dispatcher, Event, Free, Instruction, StartTransfer, StartVertex, TransferEnded, VertexEnded
from doppler_tf.errors import CancelledError, DeadlockError, DeviceLostError, ExecutionError, StalledError
from doppler_tf.graph import DataflowGraph
from doppler_tf.trace import Trace
from runtime.backend import Session
from runtime.residency import Residency
from runtime.workers import Completion, Task, Workers


class Coordinator:
    """Drives one run of one assignment: hands instructions to workers, sleeps until something ends, tells the dispatcher."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, dispatcher: Dispatcher, session: Session,
                 workers: Workers):
        self._graph, self._costs, self._assignment = graph, costs, assignment
        self._dispatcher, self._session, self._workers = dispatcher, session, workers
        self._bytes: list[float] = costs.output_bytes.tolist()
        self._residency = Residency(_input_bytes(graph, costs, assignment))
        transfers = len(dispatcher.transfers.producer)
        self._vertex_start_s, self._vertex_end_s = [0.0] * graph.num_vertices, [0.0] * graph.num_vertices
        self._transfer_start_s, self._transfer_end_s = [0.0] * transfers, [0.0] * transfers

    def prepare_lanes(self) -> None:
        """Starts the threads that this run will need: lane (d, d) is device d, lane (s, d) the link from s to d."""
        names, plan, link_slots = self._costs.topology.device_names, self._dispatcher.transfers, self._costs.topology.link_slots
        devices, vertices = np.unique(self._assignment.device[self._graph.work_vertices], return_counts=True)
        for d, count in zip(devices.tolist(), vertices.tolist(), strict=True):
            self._workers.prepare((d, d), names[d], min(count, int(self._costs.slots[d])))
        links, copies = np.unique(np.stack([plan.source, plan.destination]), axis=1, return_counts=True)
        for (s, d), count in zip(links.T.tolist(), copies.tolist(), strict=True):
            self._workers.prepare((s, d), f"{names[s]}->{names[d]}", min(count, link_slots or 1))

    def drive(self, time_scale: float, timeout_s: float | None, cancelled: threading.Event) -> None:
        """From the first dispatch until every vertex has ended.

        Args:
          time_scale: wall-clock seconds to one second of the trace.
          timeout_s: wall-clock seconds that one vertex or transfer may take; None: any.
          cancelled: whoever sets it wakes the workers' `collect` afterwards.

        Raises:
          DeadlockError, ExecutionError, CancelledError.
        """
        self._time_scale, self._origin_s = time_scale, perf_counter()
        self._issue(self._dispatcher.begin(0.0))
        while not self._dispatcher.done:
            if cancelled.is_set():
                raise CancelledError(f"{self._graph.name}: cancelled{self._in_progress()}")
            oldest = self._workers.oldest
            if oldest is None:
                raise DeadlockError(self._dispatcher.stuck())
            completions = self._workers.collect(None if timeout_s is None else oldest[1] + timeout_s)
            if completions:
                ended = [self._ended(completion) for completion in completions]
                self._issue(self._dispatcher.advance(self._traced_s(perf_counter()), ended))
            elif timeout_s is not None and perf_counter() >= oldest[1] + timeout_s:
                raise StalledError(f"{self._graph.name}: {self.describe(oldest[0], 'has not ended')}: expected an end within timeout_s = "
                                   f"{timeout_s:g} s{self._others()}; give it more time if it may take longer")

    def describe(self, task: StartVertex | StartTransfer, verb: str) -> str:
        """A phrase that names the vertex and the devices of a task."""
        label, names = self._graph.vertex_label, self._costs.topology.device_names
        if isinstance(task, StartVertex):
            return f"vertex {label(task.vertex)!r} {verb} on device {names[task.device]!r}"
        return f"transfer of vertex {label(task.producer)!r} {verb} from device {names[task.source]!r} to {names[task.destination]!r}"

    def trace(self, device_kind: str) -> Trace:
        """The complete run: measured times and bytes, with the dispatcher's own log beside them."""
        log = self._dispatcher.trace(device_kind)
        return replace(log, start_s=np.array(self._vertex_start_s)[log.vertex], end_s=np.array(self._vertex_end_s)[log.vertex],
                       transfer_start_s=np.array(self._transfer_start_s), transfer_end_s=np.array(self._transfer_end_s), log=log,
                       peak_bytes=self._residency.peak_bytes, peak_tensor_bytes=self._session.peak_tensor_bytes())

    def _traced_s(self, clock_s: float) -> float:
        return (clock_s - self._origin_s) / self._time_scale

    def _issue(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, StartVertex):
                self._residency.add(instruction.device, self._bytes[instruction.vertex])
                call = partial(self._session.run_vertex, *instruction)
                self._workers.submit(Task((instruction.device, instruction.device), instruction, call))
            elif isinstance(instruction, StartTransfer):
                self._residency.add(instruction.destination, self._bytes[instruction.producer])
                call = partial(self._session.run_transfer, *instruction)
                self._workers.submit(Task((instruction.source, instruction.destination), instruction, call))
            else:
                self._free(instruction)

    def _free(self, instruction: Free) -> None:
        self._residency.remove(instruction.device, self._bytes[instruction.producer])
        try:
            self._session.free(*instruction)
        except Exception as error:
            self._fail(f"output of vertex {self._graph.vertex_label(instruction.producer)!r} could not be freed on device "
                       f"{self._costs.topology.device_names[instruction.device]!r}", error)

    def _ended(self, completion: Completion) -> Event:
        """Notes a completion's times and makes it an event. Raises ExecutionError if its task has failed."""
        task = completion.tag
        if completion.error is not None:
            self._fail(self.describe(task, "failed"), completion.error)
        begun_s, ended_s = self._traced_s(completion.begun_s), self._traced_s(completion.ended_s)
        if isinstance(task, StartVertex):
            self._vertex_start_s[task.vertex], self._vertex_end_s[task.vertex] = begun_s, ended_s
            return VertexEnded(task.vertex)
        self._transfer_start_s[task.transfer], self._transfer_end_s[task.transfer] = begun_s, ended_s
        return TransferEnded(task.transfer)

    def _fail(self, what: str, error: BaseException) -> NoReturn:
        """Raises what a failure means for the run."""
        reason = next(iter(str(error).splitlines()), "")
        message = f"{self._graph.name}: {what}: {type(error).__name__}{': ' if reason else ''}{reason}"
        if isinstance(error, DeviceLostError):
            raise DeviceLostError(f"{message}; place the graph on the devices that are left", error.device) from error
        raise ExecutionError(message) from error

    def _in_progress(self) -> str:
        oldest = self._workers.oldest
        return " before anything ran" if oldest is None else f" while {self.describe(oldest[0], 'was in progress')}{self._others()}"

    def _others(self) -> str:
        count = len(self._workers.in_flight) - 1
        return f", {count} more in progress" if count else ""


def _input_bytes(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> np.ndarray:
    """float64 [D]: inputs are resident where they are used, from the start."""
    edges = graph.is_input[graph.sources]
    producer, device = np.unique(np.stack([graph.sources[edges], assignment.device[graph.targets[edges]]]), axis=1)
    return np.bincount(device, costs.output_bytes[producer], costs.num_devices)
