"""Calls that may hang: what they return or raise, what ends the wait, and that no thread stays."""

import threading
import time

import pytest

from doppler_tf.errors import StalledError
from runtime.clusters.watch import watched
from tests.faulty_devices import Case


def nothing():
    pass


def let_go(over: threading.Event) -> None:
    """Ends what an abandoned thread waits for, and waits for the thread."""
    over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("watched"):
            thread.join()


def test_what_a_call_returns_or_raises():
    before = threading.active_count()
    assert watched(lambda: 3, nothing, 0.01) == 3
    with pytest.raises(KeyError, match="gone"):
        watched(lambda: {}["gone"], nothing, 0.01)
    assert threading.active_count() == before


def test_without_limits_the_caller_does_it():
    assert watched(threading.current_thread, nothing, None) is threading.current_thread()


def test_what_the_check_raises_ends_the_wait():
    over, asked = threading.Event(), []

    def check():
        asked.append(time.perf_counter())
        if len(asked) == 3:
            over.set()  # as the end of a connection ends the call
            raise ConnectionError("lost")

    before = threading.active_count()
    with pytest.raises(ConnectionError, match="lost"):
        watched(over.wait, check, 0.02)
    assert asked[-1] - asked[0] > 0.03
    assert threading.active_count() == before


def test_a_call_that_takes_too_long():
    over, begun_s = threading.Event(), time.perf_counter()
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        watched(over.wait, nothing, None, 0.1)
    assert time.perf_counter() - begun_s < 20
    let_go(over)


def test_outputs_that_are_not_fetched_in_time_are_named(random_graph, place):
    case, over = Case(random_graph(4, seed=0), place, timeout_s=0.5), threading.Event()
    case.draw(0)
    case.backend.heal()
    with case.engine:
        case.run()
        case.backend.fetching = over.wait
        with pytest.raises(StalledError, match=r"toy: the output of vertex '.*' on device 'CPU:\d' has not been fetched"):
            _ = case.engine.outputs
        let_go(over)
