"""The dispatcher under the wall clock: one coordinator, worker threads by device and link, no barriers and no polling.

The calling thread is the coordinator. It alone owns the dispatcher: it hands instructions to the lanes' threads, sleeps until a
completion comes, and tells the dispatcher all that have come by then, at one instant. What runs, and in which order it is started,
is therefore the simulator's logic; only the durations are the world's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import TracebackType

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.dispatch import Dispatcher, Event, Instruction, StartTransfer, StartVertex, TransferEnded, VertexEnded
from doppler_tf.errors import DeadlockError, ExecutionError
from doppler_tf.graph import DataflowGraph
from doppler_tf.trace import Trace
from runtime.backend import Backend, Session
from runtime.workers import Completion, Task, Workers

MakeDispatcher = Callable[[DataflowGraph, CostModel, Assignment], Dispatcher]


class Engine:
    """An Executor of one backend and one kind of dispatcher.

    Threads start with the first run and serve all runs; `close()`, or leaving a `with` block, joins them. A run that fails or is
    interrupted is cancelled and its threads are joined before the error leaves `execute`; the next run starts new ones.
    """

    def __init__(self, backend: Backend, make_dispatcher: MakeDispatcher):
        self._backend, self._make_dispatcher = backend, make_dispatcher
        self._workers = Workers()
        self._one_run_at_a_time = threading.Lock()
        self._warm = not backend.warmup
        self._finished: Session | None = None

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """Runs `assignment` once.

        Returns:
          A Trace of measured times (wall clock / the backend's time scale) in seconds from the first dispatch; its `log` holds the
          times at which the dispatcher gave the instructions and heard of the ends.

        Raises:
          DeadlockError: nothing runs and nothing that waits fits in memory.
          ExecutionError: a vertex or transfer failed; the message names it and its device.
          UserError: the backend cannot run this graph (no kernel, no input, too few devices); nothing has run.
        """
        with self._one_run_at_a_time:
            if not self._warm:
                self._run(graph, costs, assignment)
                self._warm = True
            return self._run(graph, costs, assignment)

    @property
    def outputs(self) -> dict[int, np.ndarray]:
        """Arrays that the last run left, by vertex (see the backend); empty without kernels, before a run and after a failure."""
        return {} if self._finished is None else self._finished.outputs()

    def close(self) -> None:
        """Joins all threads. The executor may be used again."""
        self._workers.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _run(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        self._finished = None  # its tensors go before new ones come
        dispatcher = self._make_dispatcher(graph, costs, assignment)
        session = self._backend.open(graph, costs, assignment, dispatcher.transfers)
        try:
            run = _Run(graph, costs, dispatcher, session, self._workers, self._backend.time_scale)
            run.prepare_lanes(assignment)
            run.drive()
        except BaseException:
            session.cancel()
            self._workers.close()
            raise
        self._finished = session
        return run.trace(self._backend.device_kind)


class _Run:
    """One run: the coordinator's loop and what the workers measured."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, dispatcher: Dispatcher, session: Session, workers: Workers,
                 time_scale: float):
        self.graph, self.costs, self.dispatcher, self.session, self.workers = graph, costs, dispatcher, session, workers
        self.time_scale = time_scale
        transfers = len(dispatcher.transfers.producer)
        self.vertex_start_s, self.vertex_end_s = [0.0] * graph.num_vertices, [0.0] * graph.num_vertices
        self.transfer_start_s, self.transfer_end_s = [0.0] * transfers, [0.0] * transfers

    def prepare_lanes(self, assignment: Assignment) -> None:
        """Starts the threads that this run will need: lane (d, d) is device d, lane (s, d) the link from s to d."""
        names, plan, link_slots = self.costs.topology.device_names, self.dispatcher.transfers, self.costs.topology.link_slots
        devices, vertices = np.unique(assignment.device[self.graph.work_vertices], return_counts=True)
        for d, count in zip(devices.tolist(), vertices.tolist(), strict=True):
            self.workers.prepare((d, d), names[d], min(count, int(self.costs.slots[d])))
        links, copies = np.unique(np.stack([plan.source, plan.destination]), axis=1, return_counts=True)
        for (s, d), count in zip(links.T.tolist(), copies.tolist(), strict=True):
            self.workers.prepare((s, d), f"{names[s]}->{names[d]}", min(count, link_slots or 1))

    def drive(self) -> None:
        """From the first dispatch until every vertex has ended."""
        self.origin_s = perf_counter()
        self._issue(self.dispatcher.begin(0.0))
        while not self.dispatcher.done:
            if not self.workers.in_flight:
                raise DeadlockError(self.dispatcher.stuck())
            ended = [self._ended(completion) for completion in self.workers.collect()]
            self._issue(self.dispatcher.advance(self._traced_s(perf_counter()), ended))

    def _traced_s(self, clock_s: float) -> float:
        return (clock_s - self.origin_s) / self.time_scale

    def _issue(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, StartVertex):
                call = partial(self.session.run_vertex, *instruction)
                self.workers.submit(Task((instruction.device, instruction.device), instruction, call))
            elif isinstance(instruction, StartTransfer):
                call = partial(self.session.run_transfer, *instruction)
                self.workers.submit(Task((instruction.source, instruction.destination), instruction, call))
            else:
                self.session.free(*instruction)

    def _ended(self, completion: Completion) -> Event:
        """Notes a completion's times and makes it an event. Raises ExecutionError if its task has failed."""
        instruction = completion.tag
        if completion.error is not None:
            raise ExecutionError(self._failure(instruction, completion.error)) from completion.error
        begun_s, ended_s = self._traced_s(completion.begun_s), self._traced_s(completion.ended_s)
        if isinstance(instruction, StartVertex):
            self.vertex_start_s[instruction.vertex], self.vertex_end_s[instruction.vertex] = begun_s, ended_s
            return VertexEnded(instruction.vertex)
        self.transfer_start_s[instruction.transfer], self.transfer_end_s[instruction.transfer] = begun_s, ended_s
        return TransferEnded(instruction.transfer)

    def _failure(self, instruction: StartVertex | StartTransfer, error: BaseException) -> str:
        names = self.costs.topology.device_names
        if isinstance(instruction, StartVertex):
            what = f"vertex {self.graph.vertex_label(instruction.vertex)!r} failed on device {names[instruction.device]!r}"
        else:
            what = (f"transfer of vertex {self.graph.vertex_label(instruction.producer)!r} failed from device "
                    f"{names[instruction.source]!r} to {names[instruction.destination]!r}")
        reason = next(iter(str(error).splitlines()), "")
        return f"{self.graph.name}: {what}: {type(error).__name__}{': ' if reason else ''}{reason}"

    def trace(self, device_kind: str) -> Trace:
        """The complete run: measured times, with the dispatcher's own log beside them."""
        log = self.dispatcher.trace(device_kind)
        return replace(log, start_s=np.array(self.vertex_start_s)[log.vertex], end_s=np.array(self.vertex_end_s)[log.vertex],
                       transfer_start_s=np.array(self.transfer_start_s), transfer_end_s=np.array(self.transfer_end_s), log=log)
