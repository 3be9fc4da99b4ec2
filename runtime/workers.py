"""Worker threads by lane (a device or a link): tasks in through one queue a lane, completions out through one queue for all."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import Any, NamedTuple


class Task(NamedTuple):
    """Work for a lane; `tag` (hashable, its own among those in flight) says what it is when it comes back."""

    lane: Hashable
    tag: Any
    call: Callable[[], None]


class Completion(NamedTuple):
    """A task's end: when the thread that did it began and ended (`perf_counter` seconds), and what it raised, if anything."""

    lane: Hashable
    tag: Any
    begun_s: float
    ended_s: float
    error: BaseException | None


class _Lane:
    """One inbox and the threads that serve it; `busy` counts tasks whose completion has not been collected."""

    def __init__(self, name: str, completions: SimpleQueue[Completion | None]):
        self.name, self.completions = name, completions
        self.inbox: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.busy = 0

    def grow(self, count: int) -> None:
        while len(self.threads) < count:
            # Daemons: neither a caller who forgets close() nor a task that hangs may keep the interpreter from ending.
            thread = threading.Thread(target=_serve, args=(self.inbox, self.completions), daemon=True,
                                      name=f"{self.name}#{len(self.threads)}")
            self.threads.append(thread)
            try:
                thread.start()
            except KeyboardInterrupt:  # it may be on its way, and nobody can join one that has not got there
                until_s = perf_counter() + 0.1
                while not thread.is_alive() and perf_counter() < until_s:
                    sleep(1e-3)
                raise


class Workers:
    """Lanes of threads, started on demand, kept from run to run, joined by `close`. All methods but `wake` are for one calling thread.

    Every task finds a thread of its own: a lane grows to as many threads as it ever had tasks at once. How many that may be is
    the dispatcher's business, which counts slots; a link that never waits simply gets more threads.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._completions: SimpleQueue[Completion | None] = SimpleQueue()
        self._submitted_s: dict[Any, float] = {}  # in flight, by tag, oldest first

    @property
    def in_flight(self) -> list[Any]:
        """Tags of the tasks whose completion has not been collected, in the order of submission."""
        return list(self._submitted_s)

    @property
    def oldest(self) -> tuple[Any, float] | None:
        """Tag and submission (`perf_counter` seconds) of the task that has been in flight longest; None if none is."""
        return next(iter(self._submitted_s.items()), None)

    def prepare(self, lane: Hashable, name: str, count: int) -> None:
        """Has `count` threads ready on `lane`, so that starting them falls outside of any clock."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(name, self._completions)
        self._lanes[lane].grow(count)

    def submit(self, task: Task) -> None:
        """Hands a task to its lane, which must have been prepared."""
        lane = self._lanes[task.lane]
        lane.busy += 1
        lane.grow(lane.busy)
        lane.inbox.put(task)
        self._submitted_s[task.tag] = perf_counter()

    def collect(self, until_s: float | None = None) -> list[Completion]:
        """Blocks until a task has ended, `wake` is called, or `perf_counter` reads `until_s`; returns all that have ended by now."""
        wait_s = None if until_s is None else min(max(until_s - perf_counter(), 0.0), threading.TIMEOUT_MAX)
        try:
            ended = [self._completions.get(timeout=wait_s)]
        except Empty:
            return []
        while not self._completions.empty():  # nobody else takes from it: not empty means that get returns at once
            ended.append(self._completions.get())
        completions = [completion for completion in ended if completion is not None]
        for completion in completions:
            self._lanes[completion.lane].busy -= 1
            del self._submitted_s[completion.tag]
        return completions

    def wake(self) -> None:
        """Makes `collect` return; for any thread, at any time."""
        self._completions.put(None)

    def close(self, grace_s: float) -> list[Any]:
        """Joins every thread, after the task that it has in hand; may be used again.

        Threads that have not returned after `grace_s` are left to themselves: they know nothing but queues that nobody else uses any
        more, and end with their task, if it ever does. Uncollected completions are dropped.

        Returns:
          The tags of the tasks that such threads have in hand.
        """
        until_s = perf_counter() + grace_s
        try:
            for lane in self._lanes.values():
                lane.inbox.put(None)
            for thread in self._threads():
                thread.join(max(until_s - perf_counter(), 0.0))
            if not self._threads():
                return []
            self.collect(until_s=0.0)
            return self.in_flight
        finally:
            self._reset()

    def _threads(self) -> list[threading.Thread]:
        return [thread for lane in self._lanes.values() for thread in lane.threads if thread.is_alive()]


def _serve(inbox: SimpleQueue[Task | None], completions: SimpleQueue[Completion | None]) -> None:
    """A thread's life. Whatever a task raises becomes its completion: a thread that died would leave the engine waiting."""
    while (task := inbox.get()) is not None:
        error = None
        begun_s = perf_counter()
        try:
            task.call()
        except BaseException as raised:
            error = raised
            _drop_locals(error)
        completions.put(Completion(task.lane, task.tag, begun_s, perf_counter(), error))
        del task, error  # an idle thread must hold no tensors of the run that it last served
    inbox.put(None)  # for the lane's other threads


def _drop_locals(error: BaseException | None) -> None:
    """Whoever keeps an error must not keep, in its frames, the tensors that were worked on."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
