"""The dispatcher under the wall clock: worker threads by device and link, no barriers and no polling.

The worker that ends a task tells the dispatcher itself, and hands out what may start now (see `Coordinator`); the calling thread
sleeps. What runs, and in which order it is started, is the simulator's logic; only the durations are the world's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType

import numpy as np

from doppler_tf.errors import ConfigError, DeviceLostError, DopplerError, StalledError, UserError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.trace import Trace
from runtime.backend import Backend, Session
from runtime.clusters.watch import GRACE_S, watched
from runtime.coordinator import Coordinator, run_error
from runtime.plan import Plan
from runtime.replacement import without_devices
from runtime.workers import Workers

# Plans that an engine keeps.
_PLANS = 16

MakeDispatcher = Callable[[DataflowGraph, CostModel, Assignment], Dispatcher]


class Engine:
    """An Executor of one backend and one kind of dispatcher.

    Threads start with the first run and serve all runs; `close()`, or leaving a `with` block, joins them. A run that fails, is cancelled
    or interrupted drops its tensors and joins its threads before the error leaves `execute`; the next run starts new ones. A thread that
    does not return from its work within half a second (or `timeout_s`, if that is less) is abandoned, which the error says: it ends when
    its work does, and nothing it still does reaches a later run.

    Attributes:
      backend: what it runs on.
    """

    def __init__(self, backend: Backend, make_dispatcher: MakeDispatcher, timeout_s: float | None = None, restart_on_loss: bool = False):
        """Takes a backend and a kind of dispatcher.

        Args:
          timeout_s: wall-clock seconds that one vertex or transfer may take before the run fails; None: any.
          restart_on_loss: when a device is lost, run the whole graph again on those that are left, and say so in the trace; later
            runs do without it too, until `close`. So does `outputs` where the device that holds one is lost after the run.

        Raises:
          ConfigError: timeout_s out of range.
        """
        if timeout_s is not None and not 0 < timeout_s < float("inf"):
            raise field_error(ConfigError, "executor", "", "timeout_s", "a number > 0, or None for no limit", timeout_s)
        self.backend, self._make_dispatcher = backend, make_dispatcher
        self._timeout_s, self._restart_on_loss = timeout_s, restart_on_loss
        self._workers = Workers()
        self._one_run_at_a_time = threading.Lock()
        self._cancelled = threading.Event()  # a new one for each `execute`, so that cancelling a run does not cancel the next
        self._warm = not backend.warmup
        self._session: Session | None = None
        self._coordinator: Coordinator | None = None
        self._executed: tuple[DataflowGraph, CostModel, Assignment] | None = None  # what the last complete run was asked for
        self._lost: tuple[int, ...] = ()
        self._plans: dict[tuple, Plan] = {}  # the one used last at the end

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """Runs `assignment` once.

        Returns:
          A Trace of measured times (wall clock / the backend's time scale) in seconds from the first dispatch; its `log` holds the
          times at which the dispatcher gave the instructions and heard of the ends.

        Raises:
          DeadlockError: nothing runs and nothing that waits fits in memory.
          ExecutionError: a vertex or transfer failed (DeviceLostError: because its device is gone) or took longer than `timeout_s`
            (StalledError), and the message names it and its device; or inputs could not be placed.
          CancelledError: `cancel` was called.
          UserError: the backend cannot run this graph (no kernel, no input, too few devices); nothing has run.
        """
        return self.run(graph, costs, assignment)()

    def run(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment,
            cancelled: threading.Event | None = None) -> Callable[[], Trace]:
        """As `execute`, but returns what makes the trace, now or after later runs, for those who seldom look at one.

        Args: cancelled: once it is set the run ends as by `cancel`, which wakes it.
        """
        with self._one_run_at_a_time:
            self._cancelled = cancelled or threading.Event()
            try:
                if not self._warm:
                    self._run_on_what_is_left(graph, costs, assignment)
                    self._warm = True
                return self._run_on_what_is_left(graph, costs, assignment)
            except BaseException as error:
                self._abort(error)
                raise

    @property
    def outputs(self) -> dict[int, np.ndarray]:
        """The output arrays of the last run by tensor, fetched now. Empty without kernels, before a run and after a failure.

        Raises:
          ExecutionError: one cannot be fetched (DeviceLostError: the device that holds it has been lost since), or all together take
            longer than `timeout_s` for each (StalledError).
        """
        if self._executed is None:
            return {}
        try:
            return self._fetched(*self._executed[:2])
        except DeviceLostError:
            if not self._restart_on_loss:
                raise
        self.execute(*self._executed)
        return self.outputs

    def cancel(self) -> None:
        """Ends the run in progress, if there is one, with a CancelledError. Any thread may call it at any time. The only vertex of a run,
        which the calling thread does itself where `timeout_s` is None, ends before."""
        self._cancelled.set()
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.wake()

    def close(self) -> None:
        """Joins all threads, after the run in progress, and forgets which devices were lost. The executor may be used again."""
        with self._one_run_at_a_time:
            self._lost = ()
            self._workers.close(grace_s=60.0)  # they are idle and leave at once, unless the machine is overloaded

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _run_on_what_is_left(self, graph: DataflowGraph, costs: CostModel, asked: Assignment) -> Callable[[], Trace]:
        """Runs `asked`. If a device is lost and `restart_on_loss` is set, runs all of it again without that device."""
        while True:
            left = without_devices(graph, costs, asked, self._lost) if self._lost else asked
            if left is None:
                names = ", ".join(repr(costs.topology.device_names[d]) for d in self._lost)
                raise DeviceLostError(f"{graph.name}: device {names} was lost in an earlier run, and something runs nowhere else; close() "
                                      f"forgets what was lost", self._lost[-1])
            try:
                recorded = self._run(graph, costs, left)
            except DeviceLostError as error:
                if not self._restart_on_loss or error.device is None or error.device in self._lost or (
                        without_devices(graph, costs, asked, (*self._lost, error.device)) is None):
                    raise
                self._abort(error)
                self._lost = (*self._lost, error.device)
            else:
                self._executed = graph, costs, asked
                return partial(_told, recorded, self._lost, left) if self._lost else recorded

    def _run(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Callable[[], Trace]:
        self._forget()  # frees the last run's tensors first
        plan = self._planned(graph, costs, assignment)
        try:
            self._session = self.backend.open(graph, costs, assignment, plan.dispatcher.transfers)
        except UserError:
            raise
        except Exception as error:
            raise run_error(graph, f"placing inputs failed{_on(costs, error)}", error) from error
        self._coordinator = Coordinator(plan, self._session, self._workers, self._cancelled)
        self._coordinator.prepare_lanes()
        self._coordinator.drive(self.backend.time_scale, self._timeout_s)
        recorded = self._coordinator.recorded(self.backend.device_kind)
        self._coordinator = None
        return recorded

    def _planned(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Plan:
        """The plan of an earlier run of the same, or a new one."""
        of_order = assignment.order if assignment.priority is None else assignment.priority
        arrays = (None if array is None else array.tobytes() for array in (of_order, assignment.after))
        # A plan keeps graph and costs, so that no others get their identities.
        key = id(graph), id(costs), assignment.dispatch, assignment.device.tobytes(), *arrays
        plan = self._plans.pop(key, None) or Plan(graph, costs, assignment, self._make_dispatcher(graph, costs, assignment))
        self._plans[key] = plan
        while len(self._plans) > _PLANS:
            del self._plans[next(iter(self._plans))]
        return plan

    def _fetched(self, graph: DataflowGraph, costs: CostModel) -> dict[int, np.ndarray]:
        """What the session keeps."""
        session, fetched = self._session, {}

        def missing() -> list[int]:
            return [tensor for tensor in session.kept if tensor not in fetched]

        def fetch_outputs() -> None:
            for tensor in session.kept:
                fetched[tensor] = session.fetch(tensor)

        timeout_s = None if self._timeout_s is None else self._timeout_s * len(session.kept)
        try:
            watched(fetch_outputs, lambda: session.check([session.kept[tensor] for tensor in missing()]), session.check_s, timeout_s)
        except Exception as error:
            if not missing():
                return fetched
            tensor = next((t for t in missing() if session.kept[t] == getattr(error, "device", None)), missing()[0])
            what = (f"the output of vertex {graph.vertex_label(graph.tensor_producer[tensor])!r} on device "
                    f"{costs.topology.device_names[session.kept[tensor]]!r}")
            if timeout_s is not None and isinstance(error, TimeoutError):
                raise StalledError(f"{graph.name}: {what} has not been fetched: expected all within {timeout_s:g} s, timeout_s for each; "
                                   f"give it more time if it may take longer") from None
            raise run_error(graph, f"fetching {what} failed", error) from error
        return fetched

    def _abort(self, error: BaseException) -> None:
        """Cleans up after a run that ends with `error`, and adds to its message which threads could not be joined."""
        coordinator, session, workers = self._coordinator, self._session, self._workers
        self._plans = {}  # a thread that is left may still hold a dispatcher
        grace_s = GRACE_S if self._timeout_s is None else min(GRACE_S, self._timeout_s)
        self._forget()
        self._workers = Workers()  # the old threads cannot reach the next run
        try:  # every step is taken, even if Ctrl-C interrupts the step before
            if session is not None:
                session.cancel()
        finally:
            try:
                if coordinator is not None:
                    coordinator.stop(grace_s)
            finally:
                joined = workers.close(grace_s)
        left = [] if joined or coordinator is None else coordinator.left()
        if not left:
            return
        told = "; ".join(coordinator.describe(task, "still runs") for task in left)
        message = f"threads that did not return within {grace_s:g} s are abandoned: {told}"
        if isinstance(error, DopplerError):
            error.args = (f"{error}; {message}",)
        else:
            error.add_note(message)

    def _forget(self) -> None:
        self._executed, self._session, self._coordinator = None, None, None


def _told(recorded: Callable[[], Trace], lost: tuple[int, ...], ran: Assignment) -> Trace:
    """The trace, with the devices that were lost before."""
    return replace(recorded(), lost=lost, assignment=ran)


def _on(costs: CostModel, error: Exception) -> str:
    """A phrase that names the lost device, if the error has one."""
    device = error.device if isinstance(error, DeviceLostError) else None
    return "" if device is None else f" on device {costs.topology.device_names[device]!r}"
