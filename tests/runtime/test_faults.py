"""Each kind of fault, at random points of many runs: it ends soon, says who and where, leaves nothing, and the next run is whole."""

import re
import signal
import threading
import time

import numpy as np
import pytest

from doppler_tf.errors import CancelledError, ConfigError, DeviceLostError, ExecutionError, StalledError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from runtime import EmulatedExecutor
from tests.faulty_devices import SOON_S, Case

often = pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.thorough)])


@pytest.fixture
def case(random_graph, place):
    made = Case(random_graph(10, seed=4), place)
    yield made
    made.engine.close()


@pytest.fixture(autouse=True)
def watchdog():
    """A run that hangs becomes a failure."""
    def bark(signum, frame):
        raise TimeoutError("a run hangs")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def gone(device):
    raise DeviceLostError("no answer", device)


def settles(condition):
    """Whether `condition()` comes true soon."""
    until_s = time.perf_counter() + 10
    while not condition() and time.perf_counter() < until_s:
        time.sleep(0.005)
    return condition()


@often
def test_a_piece_of_work_that_raises(case, runs):
    def broken(device):
        raise ValueError("it broke")

    threads = threading.active_count()
    for seed in range(runs):
        case.draw(seed)
        case.backend.fault = broken
        assert case.fails(ExecutionError).endswith(": ValueError: it broke")
        assert threading.active_count() == threads
        assert len(case.backend.tensors) == 0
        case.recovers()
        case.engine.close()


@often
def test_a_device_that_dies_and_raises(case, runs):
    threads = threading.active_count()
    for seed in range(runs):
        case.draw(seed)
        case.backend.fault, case.backend.lost = case.backend.dead.add, gone
        message = case.fails(DeviceLostError)
        (device,) = case.backend.dead
        assert f"'CPU:{device}'" in message
        assert message.endswith(": DeviceLostError: no answer; place the graph on the devices that are left")
        assert threading.active_count() == threads
        assert len(case.backend.tensors) == 0
        case.recovers()
        case.engine.close()


@often
@pytest.mark.parametrize("whole_device", [False, True], ids=["a worker", "a device"])
def test_what_hangs_is_given_up_and_its_late_end_disturbs_nobody(random_graph, place, whole_device, runs):
    timeout_s, engines, errors, traces = 0.5, 10, [], []

    def run_some(first):
        case = Case(random_graph(10, seed=4), place, timeout_s)
        backend = case.backend
        for seed in range(first, runs, engines):
            case.draw(seed)
            backend.released, backend.lost = threading.Event(), backend.hang
            backend.fault = backend.dead.add if whole_device else backend.hang
            message = case.fails(StalledError)
            assert " has not ended " in message
            assert f"expected an end within timeout_s = {timeout_s:g} s" in message
            assert f"threads that did not return within {timeout_s:g} s are abandoned: " in message
            late = backend.released
            if seed % 2:
                late.set()
                assert settles(lambda: len(backend.tensors) == 0)
            late.set()  # else while the next run is under way
            backend.heal()
            traces.append((case, case.assignment, case.run()))
        case.engine.close()

    def guarded(first):
        try:
            run_some(first)
        except BaseException as error:
            errors.append(error)

    before = threading.active_count()
    threads = [threading.Thread(target=guarded, args=(first,), daemon=True) for first in range(engines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(traces) == runs
    for case, assignment, trace in traces:  # here, because many busy threads would keep each other waiting past the limit
        case.check(assignment, trace)
    assert settles(lambda: threading.active_count() == before)


@often
def test_cancelling_at_a_piece_of_work(case, runs):
    threads, cancelled = threading.active_count(), 0
    for seed in range(runs):
        case.draw(seed)
        case.backend.fault = lambda device: case.engine.cancel()
        begun_s = time.perf_counter()
        error = case.outcome()
        if error is not None:
            cancelled += 1
            assert re.fullmatch("toy: cancelled while (transfer of )?vertex '[0-9]+' was in progress (on|from) device 'CPU:.*", str(error))
            assert case.engine.outputs == {}
            assert threading.active_count() == threads
            assert len(case.backend.tensors) == 0
        assert time.perf_counter() - begun_s < SOON_S
        case.recovers()
        case.engine.close()
    assert cancelled > runs / 2  # the last piece of a run may end before anybody hears of it


@often
def test_cancelling_at_any_time(case, runs):
    case.draw(0)
    usual_s, cancelled = case.usual_s(), 0
    for seed in range(runs):
        case.draw(seed)
        case.backend.at = None
        timer = threading.Timer(np.random.default_rng(seed).uniform(0, 1.5 * usual_s), case.engine.cancel)
        timer.start()
        if case.outcome() is not None:
            cancelled += 1
            assert case.engine.outputs == {}
        timer.join()
        case.recovers()
    assert cancelled > 0


def test_cancelling_without_a_run_does_nothing(case):
    for _ in range(3):
        case.engine.cancel()
        case.draw(0)
        case.recovers()
        case.engine.cancel()
        case.recovers()


def interrupt_me(case, timer, outcomes):
    """Runs and waits for a signal that comes during the run or after it; `outcomes` gets None if the run was whole by then."""
    if timer:
        timer.start()
    case.run()
    outcomes.append(None)
    time.sleep(10)


@often
def test_ctrl_c_at_any_time(case, ctrl_c, runs):
    case.draw(0)
    usual_s, interrupted = case.usual_s(), 0
    case.engine.close()
    threads = threading.active_count()
    for seed in range(runs):
        case.draw(seed)
        delay_s = np.random.default_rng(seed).uniform(0, 1.5 * usual_s)
        timer = threading.Timer(delay_s, ctrl_c) if seed % 2 else None
        case.backend.fault = None if timer else lambda device: ctrl_c()
        if timer:
            case.backend.at = None
        outcomes = []
        with pytest.raises(KeyboardInterrupt):
            interrupt_me(case, timer, outcomes)
        if outcomes != [None] and case.engine.outputs == {}:  # else it came when the run was whole
            interrupted += 1
            assert len(case.backend.tensors) == 0
        if timer:
            timer.join()
        case.engine.close()
        assert threading.active_count() == threads
        case.recovers()
        case.engine.close()
    assert interrupted > runs / 4


def test_a_time_limit_is_for_each_piece_of_work_and_not_for_the_run(make_graph, place):
    graph = make_graph({v: (0.2, [v - 1] if v else []) for v in range(8)})
    costs = build_costs(graph, cpu(2))
    with EmulatedExecutor(timeout_s=1.2) as executor:
        assert executor.execute(graph, costs, place(graph, costs, 0)).makespan_s > 1.2


def test_one_that_hangs_is_noticed_while_others_go_on(make_graph):
    graph = make_graph({**{v: (0.01, [v - 1] if v else []) for v in range(100)}, 100: (60.0, [])})
    costs = build_costs(graph, cpu(2))
    begun_s = time.perf_counter()
    with EmulatedExecutor(timeout_s=0.2) as executor, pytest.raises(StalledError) as caught:
        executor.execute(graph, costs, assignment_from_devices(graph, costs, [0] * 100 + [1]))
    assert time.perf_counter() - begun_s < SOON_S
    assert str(caught.value) == ("toy: vertex '100' has not ended on device 'CPU:1': expected an end within timeout_s = 0.2 s, 1 more in "
                                 "progress; give it more time if it may take longer")  # an emulated wait can be ended: nobody is abandoned


@pytest.mark.parametrize("how", ["failure", "cancel", "ctrl_c"])
def test_a_run_ends_though_something_in_it_hangs(make_graph, ctrl_c, how):
    graph = make_graph({0: (0.0, []), 1: (0.0, [])})
    case = Case(graph, lambda graph, costs, seed: assignment_from_devices(graph, costs, [0, 1]))
    case.draw(0)
    case.backend.at, case.backend.dead = None, {0, 1} if how == "failure" else {0}
    case.backend.lost = lambda device: gone(device) if device else case.backend.hang(device)
    if how != "failure":
        threading.Timer(0.1, ctrl_c if how == "ctrl_c" else case.engine.cancel).start()
    begun_s = time.perf_counter()
    with pytest.raises((DeviceLostError, CancelledError, KeyboardInterrupt)) as caught:
        case.run()
    assert time.perf_counter() - begun_s < SOON_S
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "threads that did not return within 0.5 s are abandoned: vertex '0' still runs on device 'CPU:0'" in told
    case.backend.released.set()
    assert settles(lambda: len(case.backend.tensors) == 0)
    case.recovers()
    case.engine.close()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_time_limit_is_refused(timeout_s):
    with pytest.raises(ConfigError, match="executor: timeout_s: expected a number > 0, or None for no limit, got"):
        EmulatedExecutor(timeout_s=timeout_s)


def test_the_longest_time_limit_is_no_trouble(make_graph, place):
    graph = make_graph({0: (0.0, [])})
    costs = build_costs(graph, cpu(1))
    with EmulatedExecutor(timeout_s=1e300) as executor:
        executor.execute(graph, costs, place(graph, costs, 0))
