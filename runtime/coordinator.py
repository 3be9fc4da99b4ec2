"""One run under the wall clock: it passes events to the dispatcher and instructions to the threads, and keeps times, bytes and failures."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NoReturn

import numpy as np

from doppler_tf.errors import CancelledError, DeadlockError, DeviceLostError, ExecutionError, StalledError
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.dispatch import Dispatcher, Event, Free, Instruction, StartTransfer, StartVertex, Times, TransferEnded, VertexEnded
from doppler_tf.schedule.trace import Trace
from runtime.backend import Session
from runtime.plan import Plan
from runtime.residency import Residency
from runtime.workers import Completion, Task, Workers


class Coordinator:
    """Drives one run of one assignment.

    One thread at a time holds the turn and may use the dispatcher. A worker that has ended a task appends it to a list. If the turn is
    free, the worker takes it, tells the dispatcher of the whole list at one instant, and hands out the instructions. No thread waits
    for the turn: its holder looks at the list again after giving the turn back. The calling thread begins the run and sleeps until its
    end. It does the only vertex of a run itself, unless a limit of time has to be kept.
    """

    def __init__(self, plan: Plan, session: Session, workers: Workers, cancelled: threading.Event):
        """Args: cancelled: the thread that sets it must call `wake` afterwards."""
        self._plan, self._graph, self._costs, self._dispatcher = plan, plan.graph, plan.costs, plan.dispatcher
        self._session, self._workers = session, workers
        self._residency = Residency(plan.input_bytes)
        self._host = plan.costs.topology.host_device
        self._loads = plan.loads  # they hand a tensor on, which takes the place of the operand when they end
        self._instant = frozenset[tuple[int, int]]() if plan.dispatcher.limited else frozenset(
            (s, d) for s, d, _ in plan.links if session.is_instant(s, d))
        vertices, transfers = plan.graph.num_vertices, len(plan.dispatcher.transfers.producer)
        self._vertex_start_s, self._vertex_end_s = [0.0] * vertices, [0.0] * vertices
        self._transfer_start_s, self._transfer_end_s = [0.0] * transfers, [0.0] * transfers
        self._turn, self._news, self._cancelled = threading.Lock(), threading.Event(), cancelled
        self._ended: deque[Completion] = deque()
        self._submitted_s: dict[StartVertex | StartTransfer, float] = {}  # in flight, oldest first, `perf_counter` seconds
        self._complete, self._stopped, self._failure = False, False, None
        self._checked_s = 0.0  # when the session was last asked whether devices are lost

    def prepare_lanes(self) -> None:
        """Starts the threads that this run will need: lane (d, d) is device d, lane (s, d) the link from s to d."""
        names = self._costs.topology.device_names
        for d, count in self._plan.devices:
            self._workers.prepare((d, d), names[d], count)
        for s, d, count in self._plan.links:
            self._workers.prepare((s, d), f"{names[s]}->{names[d]}", 0 if self._session.is_instant(s, d) else count)

    def drive(self, time_scale: float, timeout_s: float | None) -> None:
        """From the first dispatch until every vertex has ended.

        Args:
          time_scale: wall-clock seconds to one second of the trace.
          timeout_s: wall-clock seconds that one vertex or transfer may take; None: any.

        Raises:
          DeadlockError, ExecutionError, CancelledError.
        """
        self._time_scale, self._timeout_s, self._origin_s = time_scale, timeout_s, perf_counter()
        self._by_caller = self._plan.is_single and self._session.caller_may_run and timeout_s is None
        with self._turn:
            self._issue(self._dispatcher.begin(0.0, self._instant))
        self._take_turns()
        while not self._is_over():
            self._news.wait(self._patience_s())

    def wake(self) -> None:
        """Makes the calling thread check the state of the run. Any thread may call it at any time."""
        self._news.set()

    def stop(self, wait_s: float) -> None:
        """Ends dispatching, and waits at most `wait_s` for the holder of the turn to notice. No thread gets the turn afterwards."""
        self._stopped = True
        self._turn.acquire(timeout=wait_s)

    def left(self) -> list[StartVertex | StartTransfer]:
        """After `stop`: the tasks that have not ended."""
        told = {completion.tag for completion in tuple(self._ended)}
        return [task for task, _ in self._in_flight() if task not in told]

    def describe(self, task: StartVertex | StartTransfer, verb: str) -> str:
        """A phrase that names the vertex and the devices of a task."""
        label, names = self._graph.vertex_label, self._costs.topology.device_names
        if isinstance(task, StartVertex):
            return f"vertex {label(task.vertex)!r} {verb} on device {names[task.device]!r}"
        return (f"transfer of vertex {label(self._graph.tensor_producer[task.tensor])!r} {verb} from device {names[task.source]!r} to "
                f"{names[task.destination]!r}")

    def recorded(self, device_kind: str) -> Callable[[], Trace]:
        """What makes the trace of the complete run, whenever that is: measured times and bytes, the dispatcher's own log beside them.

        It keeps no tensor of the run.
        """
        measured = self._vertex_start_s, self._vertex_end_s, self._transfer_start_s, self._transfer_end_s
        peaks = {"peak_bytes": self._residency.peak_bytes, "peak_tensor_bytes": self._session.peak_tensor_bytes()}
        return partial(_trace, self._dispatcher, device_kind, self._dispatcher.times, measured, peaks)

    def _is_over(self) -> bool:
        """Whether every vertex has ended. Raises the run's failure, if there is one."""
        self._news.clear()
        if self._failure is not None:
            raise self._failure
        if self._complete:
            return True
        in_flight = self._in_flight()
        if self._cancelled.is_set():
            raise self._cancellation()
        if not in_flight:
            return False
        now_s, (oldest, since_s) = perf_counter(), in_flight[0]
        late = self._timeout_s is not None and now_s >= since_s + self._timeout_s
        if self._session.check_s is not None and (late or now_s >= max(since_s, self._checked_s) + self._session.check_s):
            self._check([task for task, _ in in_flight])
        if late:
            raise StalledError(f"{self._graph.name}: {self.describe(oldest, 'has not ended')}: expected an end within timeout_s = "
                               f"{self._timeout_s:g} s{_others(in_flight)}; give it more time if it may take longer")
        return False

    def _check(self, tasks: list[StartVertex | StartTransfer]) -> None:
        """Raises DeviceLostError if a device is gone that one of these tasks waits for."""
        waiting = {d: task for task in reversed(tasks)  # the oldest of each device
                   for d in ([task.device] if isinstance(task, StartVertex) else [task.source, task.destination])}
        try:
            self._session.check(sorted(waiting))
        except DeviceLostError as error:
            self._fail(self.describe(waiting[error.device], "failed"), error)
        self._checked_s = perf_counter()

    def _cancellation(self) -> CancelledError:
        in_flight = self._in_flight()
        busy = f"while {self.describe(in_flight[0][0], 'was in progress')}{_others(in_flight)}" if in_flight else "before anything ran"
        return CancelledError(f"{self._graph.name}: cancelled {busy}")

    def _patience_s(self) -> float | None:
        """Seconds until the oldest task has used up `timeout_s`, or the session is to be asked about it; None: no limit."""
        if self._timeout_s is None and self._session.check_s is None:
            return None
        in_flight, now_s = self._in_flight(), perf_counter()
        oldest_s = in_flight[0][1] if in_flight else now_s
        limits_s = [] if self._timeout_s is None else [oldest_s + self._timeout_s]
        if self._session.check_s is not None:
            limits_s.append(max(oldest_s, self._checked_s) + self._session.check_s)
        return min(max(min(limits_s) - now_s, 0.0), threading.TIMEOUT_MAX)

    def _in_flight(self) -> tuple[tuple[StartVertex | StartTransfer, float], ...]:
        """Tasks and their times of submission, oldest first. Any thread may call it: the interpreter copies a dictionary in one step."""
        return tuple(self._submitted_s.items())

    def _heard(self, completion: Completion) -> None:
        """Notes the end of a task. It runs on the worker's own thread."""
        self._ended.append(completion)
        self._take_turns()

    def _take_turns(self) -> None:
        """Tells the dispatcher of every end on the list. If another thread holds the turn, that thread does it."""
        while self._ended and not self._stopped and self._turn.acquire(blocking=False):
            try:
                self._advance([self._ended.popleft() for _ in range(len(self._ended))])
            except BaseException as error:  # the calling thread raises it
                self._failure = error
                self._news.set()
            finally:
                self._turn.release()

    def _advance(self, completions: list[Completion]) -> None:
        if self._failure is None and self._cancelled.is_set():
            self._failure = self._cancellation()
            self._news.set()
        for completion in completions:
            self._release(completion)
        if self._failure is not None:
            return
        ended = [self._noted(completion) for completion in completions]
        loaded = [c.tag.vertex for c in completions if isinstance(c.tag, StartVertex) and c.tag.vertex in self._loads]
        self._issue(self._dispatcher.advance(self._traced_s(perf_counter()), ended), loaded)

    def _release(self, completion: Completion) -> None:
        del self._submitted_s[completion.tag]
        self._workers.release(completion.lane)

    def _traced_s(self, clock_s: float) -> float:
        return (clock_s - self._origin_s) / self._time_scale

    def _issue(self, instructions: list[Instruction], loaded: Sequence[int] = ()) -> None:
        """Carries out instructions. Args: loaded: loads that have ended, whose outputs take the place of their operands."""
        given = list[Task]()
        for instruction in instructions:  # of one instant what is held at its end counts
            if isinstance(instruction, Free):
                self._residency.remove(instruction.device, self._plan.tensor_bytes[instruction.tensor])
        for instruction in instructions:
            if self._stopped:
                return
            if isinstance(instruction, StartVertex):
                if instruction.vertex not in self._loads:
                    self._residency.add(instruction.device, self._plan.vertex_bytes[instruction.vertex])
                call = partial(self._session.run_vertex, *instruction)
                self._submit((instruction.device, instruction.device), instruction, call, given)
            elif isinstance(instruction, StartTransfer):
                self._residency.add(instruction.destination, self._plan.tensor_bytes[instruction.tensor])
                call = partial(self._session.run_transfer, *instruction)
                self._submit((instruction.source, instruction.destination), instruction, call, given)
            else:
                self._free(instruction)
        for v in loaded:
            self._residency.add(self._host, self._plan.vertex_bytes[v])
        self._workers.submit(*given)
        if self._dispatcher.done:
            self._complete = True
            self._news.set()
        elif not self._submitted_s:
            raise DeadlockError(self._dispatcher.stuck())

    def _submit(self, lane: tuple[int, int], task: StartVertex | StartTransfer, call: Callable[[], None], given: list[Task]) -> None:
        self._submitted_s[task] = perf_counter()
        made = Task(lane, task, call, self._heard)
        if isinstance(task, StartTransfer) and (task.source, task.destination) in self._instant:
            completion = self._workers.perform(made)
            self._release(completion)
            self._noted(completion)  # the dispatcher knows of the end
        elif (task.device == self._host or self._by_caller if isinstance(task, StartVertex) else
              self._session.is_instant(task.source, task.destination)):
            self._ended.append(self._workers.perform(made))  # the holder of the turn looks at the list again
        else:
            given.append(made)

    def _free(self, instruction: Free) -> None:
        try:
            self._session.free(*instruction)
        except Exception as error:
            producer = self._graph.tensor_producer[instruction.tensor]
            self._fail(f"output of vertex {self._graph.vertex_label(producer)!r} could not be freed on device "
                       f"{self._costs.topology.device_names[instruction.device]!r}", error)

    def _noted(self, completion: Completion) -> Event:
        """Keeps a completion's times and makes it an event. Raises ExecutionError if its task has failed."""
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
        """Raises the error of the run that a task's failure causes."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        raise run_error(self._graph, what, error) from error


def _trace(dispatcher: Dispatcher, device_kind: str, heard: Times, measured: Times, peaks: dict) -> Trace:
    log, (start_s, end_s, transfer_start_s, transfer_end_s) = dispatcher.trace(device_kind, heard), map(np.array, measured)
    return replace(log, start_s=start_s[log.vertex], end_s=end_s[log.vertex], transfer_start_s=transfer_start_s,
                   transfer_end_s=transfer_end_s, log=log, **peaks)


def run_error(graph: DataflowGraph, what: str, error: BaseException) -> ExecutionError:
    """The error of a run that a failure of the backend causes. If a device is lost, the message says what to do."""
    reason = next(iter(str(error).splitlines()), "")
    message = f"{graph.name}: {what}: {type(error).__name__}{': ' if reason else ''}{reason}"
    if isinstance(error, DeviceLostError):
        return DeviceLostError(f"{message}; place the graph on the devices that are left", error.device)
    return ExecutionError(message)


def _others(in_flight: Sequence) -> str:
    """A phrase for the number of tasks in flight beside the oldest."""
    return f", {len(in_flight) - 1} more in progress" if len(in_flight) > 1 else ""
