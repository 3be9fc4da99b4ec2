"""Worker threads by lane (a device or a link). Each lane has one queue of tasks; a thread reports the end of each task to its sender."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Hashable, Sequence
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, NamedTuple


class Task(NamedTuple):
    """Work for a lane. `tag` (hashable) identifies it. The thread that did it calls `ended`."""

    lane: Hashable
    tag: Any
    call: Callable[[], None]
    ended: Callable[[Completion], None]


class Completion(NamedTuple):
    """The end of a task: when its thread began and ended it (`perf_counter` seconds), and the error that it raised, if any."""

    lane: Hashable
    tag: Any
    begun_s: float
    ended_s: float
    error: BaseException | None


class _Inbox:
    """A queue of tasks (None ends the threads), and the threads that serve it."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []


class _Lane:
    """A device or a link, and the inbox for its tasks. `busy` counts its tasks that have not ended."""

    def __init__(self, name: str):
        self.name, self.busy, self.inbox = name, 0, _Inbox()

    def grow(self, count: int) -> None:
        threads = self.inbox.threads
        while len(threads) < count:
            # Daemons: the interpreter must end even if the caller forgets close() or a task hangs.
            thread = _Thread(target=_serve, args=(self.inbox.queue,), daemon=True, name=f"{self.name}#{len(threads)}")
            thread.inbox = self.inbox
            threads.append(thread)
            try:
                thread.start()
            except KeyboardInterrupt:  # the thread may be starting, and a thread that has not started cannot be joined
                until_s = perf_counter() + 0.1
                while not thread.is_alive() and perf_counter() < until_s:
                    sleep(1e-3)
                raise


class _Thread(threading.Thread):
    """A thread of a lane; `inbox` is what it serves."""

    inbox: _Inbox


class Workers:
    """Lanes of threads, started on demand, kept from run to run, joined by `close`. Not for two threads at once.

    Every task finds a thread of its own: a lane grows to as many threads as it ever had tasks at once. How many that may be is
    the dispatcher's business, which counts slots; a link that never waits simply gets more threads.

    A thread that hands out tasks, none of them for its own lane, takes the lane of one of them over, if that is idle, and leaves its own
    to the other thread. So what follows a task on another device begins without waiting for a thread to wake.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}

    def prepare(self, lane: Hashable, name: str, count: int) -> None:
        """Starts `count` threads on `lane` before the clock starts."""
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(name)
        self._lanes[lane].grow(count)

    def submit(self, *tasks: Task) -> None:
        """Hands tasks to their lanes, which must have been prepared."""
        self._take_over([self._lanes[task.lane] for task in tasks])
        for task in tasks:
            lane = self._lanes[task.lane]
            lane.busy += 1
            lane.grow(lane.busy)
            lane.inbox.queue.put(task)

    def _take_over(self, wanted: Sequence[_Lane]) -> None:
        """Gives the calling thread the first of these lanes that is idle, unless there is work for its own."""
        mine = getattr(threading.current_thread(), "inbox", None)
        own = next((lane for lane in self._lanes.values() if lane.inbox is mine), None)
        if own is None or own in wanted or not _may_move(own):
            return
        other = next((lane for lane in wanted if _may_move(lane)), None)
        if other is not None:
            own.inbox, other.inbox = other.inbox, own.inbox

    def perform(self, task: Task) -> Completion:
        """Does a task of a lane on the calling thread, without calling `ended`."""
        self._lanes[task.lane].busy += 1
        return _perform(task)

    def release(self, lane: Hashable) -> None:
        """Notes that a task of `lane` has ended, so that its thread is free or about to be."""
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
        inboxes = [lane.inbox for lane in lanes.values()]
        for inbox in inboxes:
            inbox.queue.put(None)
        threads = [thread for inbox in inboxes for thread in inbox.threads]
        for thread in threads:
            if thread.is_alive():  # a thread that never started cannot be joined
                thread.join(max(until_s - perf_counter(), 0.0))
        return not any(thread.is_alive() for thread in threads)


def _may_move(lane: _Lane) -> bool:
    """Whether a lane has nothing to do, and a single thread."""
    return lane.busy == 0 and len(lane.inbox.threads) == 1


def _serve(inbox: SimpleQueue[Task | None]) -> None:
    """Does the tasks of an inbox until None comes. This is what a worker thread runs."""
    while (task := inbox.get()) is not None:
        task.ended(_perform(task))
        del task  # an idle thread must not hold tensors of the last run
    inbox.put(None)  # for the lane's other threads


def _perform(task: Task) -> Completion:
    """Does a task. An error becomes part of the completion: if it ended the thread, the engine would wait for ever."""
    error, begun_s = None, perf_counter()
    try:
        task.call()
    except BaseException as raised:
        error = raised
        _drop_locals(error)
    return Completion(task.lane, task.tag, begun_s, perf_counter(), error)


def _drop_locals(error: BaseException | None) -> None:
    """Clears the frames of an error, so that code that keeps the error does not keep tensors."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
