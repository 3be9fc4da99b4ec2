"""Lanes and their threads: order, who takes over, and what closing joins."""

import threading
import time
from itertools import pairwise

import pytest

from runtime.workers import Task, Workers

DEVICE, OTHER = (1, 1), (2, 1)


@pytest.fixture
def workers():
    made = Workers()
    yield made
    assert made.close(grace_s=5)


class Journal:
    """Tasks that say when and where they run; `wait` returns the tags of all in the order in which they ended."""

    def __init__(self, workers):
        self.workers, self.began, self.ended, self.threads, self.given = workers, [], [], [], 0
        self.all_ended = threading.Semaphore(0)

    def submit(self, lane, tag, call=lambda: None):
        def begin():
            self.began.append(tag)
            self.threads.append(threading.current_thread())
            call()

        def end(completion):
            self.ended.append(completion)
            self.all_ended.release()

        self.given += 1
        self.workers.submit(Task(lane, tag, begin, end))

    def wait(self):
        for _ in range(self.given):
            assert self.all_ended.acquire(timeout=30)
        return [completion.tag for completion in self.ended]


@pytest.fixture
def journal(workers):
    return Journal(workers)


def test_a_lane_of_one_thread_does_its_tasks_one_at_a_time_as_they_come(workers, journal):
    workers.prepare(DEVICE, "CPU:1", 1)
    released, tags = threading.Event(), list(range(30))
    began = threading.Event()
    journal.submit(DEVICE, "first", lambda: (began.set(), released.wait()))
    assert began.wait(30)
    for tag in tags:  # they come while it runs
        workers._lanes[DEVICE].busy = 0  # so that no thread is added
        journal.submit(DEVICE, tag, lambda: time.sleep(1e-4))
    released.set()
    assert journal.wait() == ["first", *tags]
    assert {thread.name for thread in journal.threads} == {"CPU:1#0"}
    in_turn = sorted(journal.ended, key=lambda completion: completion.begun_s)
    assert all(one.ended_s <= next_one.begun_s for one, next_one in pairwise(in_turn))


def test_a_lane_grows_as_tasks_come(workers, journal):
    workers.prepare(OTHER, "CPU:2->CPU:1", 1)
    both = threading.Barrier(2, timeout=30)
    for tag in "ab":
        journal.submit(OTHER, tag, both.wait)
    journal.wait()
    assert {thread.name for thread in journal.threads} == {"CPU:2->CPU:1#0", "CPU:2->CPU:1#1"}


def test_what_a_task_raises_is_its_completions_and_the_thread_lives_on(workers, journal):
    workers.prepare(DEVICE, "CPU:1", 1)
    for tag, call in (("bad", lambda: 1 // 0), ("good", lambda: None)):
        journal.submit(DEVICE, tag, call)
        journal.wait()
        journal.given = 0
        workers.release(DEVICE)
    assert {thread.name for thread in journal.threads} == {"CPU:1#0"}
    assert [type(completion.error) for completion in journal.ended] == [ZeroDivisionError, type(None)]


def test_closing_joins_all_threads_and_all_may_be_used_again(workers, journal):
    for _ in range(2):
        before = threading.active_count()
        workers.prepare(DEVICE, "CPU:1", 2)
        workers.prepare(OTHER, "CPU:2->CPU:1", 0)
        journal.submit(OTHER, "copy", lambda: time.sleep(0.02))
        assert workers.close(grace_s=5)
        assert threading.active_count() == before
        assert [completion.tag for completion in journal.ended] == journal.began
    assert journal.wait() == ["copy", "copy"]
    assert not any(thread.is_alive() for thread in journal.threads)


def test_a_thread_that_hands_out_work_for_an_idle_lane_alone_does_it_itself(workers, journal):
    for lane, name in ((DEVICE, "CPU:1"), (OTHER, "CPU:2")):
        workers.prepare(lane, name, 1)

    def hand_on(*lanes):
        workers.release(DEVICE)  # as the coordinator does before it hands out what follows
        for lane in lanes:
            journal.submit(lane, f"then {lane}")

    for lanes in ((OTHER,), (OTHER, DEVICE)):
        handed, done = threading.Event(), threading.Event()
        workers.submit(Task(DEVICE, "first", lambda: journal.threads.append(threading.current_thread()),
                            lambda _, lanes=lanes, handed=handed: (hand_on(*lanes), handed.set())))
        assert handed.wait(30)
        journal.wait()
        journal.given = 0
        for lane in lanes:
            workers.release(lane)
        done.set()
    first, then, again, *both = journal.threads
    assert then is first  # it took over the idle lane
    assert again is not first  # which left its own to the other thread
    assert set(both) <= {first, again}
    assert {thread.name for thread in journal.threads} == {"CPU:1#0", "CPU:2#0"}
