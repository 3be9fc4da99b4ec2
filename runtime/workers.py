"""Worker threads by lane (a device or a link): tasks in through one queue a lane; whoever has done one says so to who gave it."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, NamedTuple


class Task(NamedTuple):
    """Work for a lane; `tag` (hashable) says what it is when it has ended, which `ended` hears on the thread that did it."""

    lane: Hashable
    tag: Any
    call: Callable[[], None]
    ended: Callable[[Completion], None]


class Completion(NamedTuple):
    """A task's end: when the thread that did it began and ended (`perf_counter` seconds), and what it raised, if anything."""

    lane: Hashable
    tag: Any
    begun_s: float
    ended_s: float
    error: BaseException | None


class _Lane:
    """One inbox and the threads that serve it; `busy` counts the tasks that are not over."""

    def __init__(self, name: str, core: int | None):
        self.name, self.core = name, core
        self.inbox: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.busy = 0

    def grow(self, count: int) -> None:
        while len(self.threads) < count:
            # Daemons: neither a caller who forgets close() nor a task that hangs may keep the interpreter from ending.
            thread = threading.Thread(target=_serve, args=(self.inbox, self.core), daemon=True, name=f"{self.name}#{len(self.threads)}")
            self.threads.append(thread)
            try:
                thread.start()
            except KeyboardInterrupt:  # it may be on its way, and nobody can join one that has not got there
                until_s = perf_counter() + 0.1
                while not thread.is_alive() and perf_counter() < until_s:
                    sleep(1e-3)
                raise


class _Guest(_Lane):
    """A lane whose tasks the threads of another lane do, in the order in which they come."""

    def __init__(self, host: _Lane):
        super().__init__(host.name, host.core)
        self.inbox = host.inbox

    def grow(self, count: int) -> None:
        """Its host has the threads."""


class Workers:
    """Lanes of threads, started on demand, kept from run to run, joined by `close`. Not for two threads at once.

    Every task finds a thread of its own: a lane grows to as many threads as it ever had tasks at once. How many that may be is
    the dispatcher's business, which counts slots; a link that never waits simply gets more threads. A guest lane has no threads: its
    tasks wait for those of its host.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}

    def prepare(self, lane: Hashable, name: str, count: int, core: int | None = None) -> None:
        """Has `count` threads ready on `lane`, so that starting them falls outside of any clock; `core`: where they stay, if anywhere."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(name, core)
        self._lanes[lane].grow(count)

    def lodge(self, lane: Hashable, host: Hashable) -> None:
        """Makes `lane` a guest of `host`, which must have been prepared."""
        if lane not in self._lanes:
            self._lanes[lane] = _Guest(self._lanes[host])

    def submit(self, task: Task) -> None:
        """Hands a task to its lane, which must have been prepared."""
        lane = self._lanes[task.lane]
        lane.busy += 1
        lane.grow(lane.busy)
        lane.inbox.put(task)

    def perform(self, task: Task) -> Completion:
        """Does a task on the calling thread, in the name of its lane; `ended` is not told."""
        self._lanes[task.lane].busy += 1
        return _perform(task)

    def release(self, lane: Hashable) -> None:
        """A task of `lane` is over: its thread is, or is about to be, free."""
        self._lanes[lane].busy -= 1

    def close(self, grace_s: float) -> bool:
        """Joins every thread, after the task that it has in hand; may be used again.

        Threads that have not returned after `grace_s` are left to themselves: they know nothing but a queue that nobody else uses any
        more, and end with their task, if it ever does.

        Returns:
          Whether all have been joined.
        """
        until_s = perf_counter() + grace_s
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.inbox.put(None)
        threads = [thread for lane in lanes.values() for thread in lane.threads]
        for thread in threads:
            if thread.is_alive():  # one that never started cannot be joined
                thread.join(max(until_s - perf_counter(), 0.0))
        return not any(thread.is_alive() for thread in threads)


def _serve(inbox: SimpleQueue[Task | None], core: int | None) -> None:
    """A thread's life."""
    if core is not None:
        with suppress(OSError):  # a core that has gone meanwhile; any other does
            os.sched_setaffinity(0, {core})  # of this thread alone
    while (task := inbox.get()) is not None:
        task.ended(completion := _perform(task))
        del task, completion  # an idle thread must hold no tensors of the run that it last served
    inbox.put(None)  # for the lane's other threads


def _perform(task: Task) -> Completion:
    """Does a task, here and now. Whatever it raises becomes its completion: a thread that died would leave the engine waiting."""
    error, begun_s = None, perf_counter()
    try:
        task.call()
    except BaseException as raised:
        error = raised
        _drop_locals(error)
    return Completion(task.lane, task.tag, begun_s, perf_counter(), error)


def _drop_locals(error: BaseException | None) -> None:
    """Whoever keeps an error must not keep, in its frames, the tensors that were worked on."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
