"""Worker threads by lane (a device or a link): tasks in through one queue a lane, completions out through one queue for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple


class Task(NamedTuple):
    """Work for a lane; `tag` says what it is when it comes back."""

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

    def __init__(self, name: str, completions: SimpleQueue[Completion]):
        self.name, self.completions = name, completions
        self.inbox: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.busy = 0

    def grow(self, count: int) -> None:
        while len(self.threads) < count:
            # Daemons: a caller who forgets close() must not keep the interpreter from ending.
            thread = threading.Thread(target=_serve, args=(self.inbox, self.completions), daemon=True,
                                      name=f"{self.name}#{len(self.threads)}")
            thread.start()
            self.threads.append(thread)


class Workers:
    """Lanes of threads, started on demand, kept from run to run, joined by `close`. All methods are for one calling thread.

    Every task finds a thread of its own: a lane grows to as many threads as it ever had tasks at once. How many that may be is
    the dispatcher's business, which counts slots; a link that never waits simply gets more threads.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self.in_flight = 0

    def prepare(self, lane: Hashable, name: str, count: int) -> None:
        """Has `count` threads ready on `lane`, so that starting them falls outside of any clock."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(name, self._completions)
        self._lanes[lane].grow(count)

    def submit(self, task: Task) -> None:
        """Hands a task to its lane, which must have been prepared."""
        lane = self._lanes[task.lane]
        lane.busy += 1
        self.in_flight += 1
        lane.grow(lane.busy)
        lane.inbox.put(task)

    def collect(self) -> list[Completion]:
        """Blocks until a task has ended; returns all that have ended by now."""
        ended = [self._completions.get()]
        while not self._completions.empty():  # nobody else takes from it: not empty means that get returns at once
            ended.append(self._completions.get())
        for completion in ended:
            self._lanes[completion.lane].busy -= 1
        self.in_flight -= len(ended)
        return ended

    def close(self) -> None:
        """Joins every thread, after the tasks that they have in hand; uncollected completions are dropped. May be used again."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            for _ in lane.threads:
                lane.inbox.put(None)
        for lane in lanes.values():
            for thread in lane.threads:
                thread.join()
        self._completions, self.in_flight = SimpleQueue(), 0


def _serve(inbox: SimpleQueue[Task | None], completions: SimpleQueue[Completion]) -> None:
    """A thread's life. Whatever a task raises becomes its completion: a thread that died would leave the engine waiting."""
    while (task := inbox.get()) is not None:
        error = None
        begun_s = perf_counter()
        try:
            task.call()
        except BaseException as raised:
            error = raised
        completions.put(Completion(task.lane, task.tag, begun_s, perf_counter(), error))
        del task, error  # an idle thread must hold no tensors of the run that it last served
