"""Whoever holds the turn when a run ends badly dispatches nothing more, and what it still does reaches no later run."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from doppler_tf.errors import StalledError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedBackend, Engine
from runtime.emulation import EmulatedSession

VERTICES = 40


class Instant(EmulatedBackend):
    """Devices whose transfers are done by the holder of the turn: `transfer()` is what one does; `ran` are the vertices that began."""

    def __init__(self, transfer):
        super().__init__()
        self.transfer, self.ran = transfer, []

    def open(self, graph, costs, assignment, transfers):
        return InstantSession(self, np.zeros(graph.num_vertices), transfers.cost_s)


class InstantSession(EmulatedSession):
    def __init__(self, backend, vertex_wait_s, transfer_wait_s):
        super().__init__(vertex_wait_s, transfer_wait_s)
        self.backend, self.transfer, self.ran = backend, backend.transfer, backend.ran

    def run_vertex(self, vertex, device):
        self.ran.append(vertex)

    def is_instant(self, source, destination):
        return True

    def run_transfer(self, transfer, producer, source, destination):
        self.transfer()


@pytest.fixture
def case(make_graph):
    """A chain that changes device at every vertex: (graph, costs, assignment)."""
    graph = make_graph({v: (0.0, [v - 1] if v else []) for v in range(VERTICES)})
    costs = build_costs(graph, cpu(2))
    return graph, costs, assignment_from_devices(graph, costs, [v % 2 for v in range(VERTICES)])


def test_a_second_ctrl_c_while_the_first_is_seen_to_leaves_nothing_behind(case):
    strikes, threads = iter([0, 0, 1, 0]), threading.active_count()

    def strike_twice_while_the_turn_is_held():
        if next(strikes, 0):
            for wait_s in (0.02, 0.1):  # the second finds the caller waiting for the turn
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(wait_s)

    backend = Instant(strike_twice_while_the_turn_is_held)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Engine(backend, Dispatcher).execute(*case)
    finally:
        signal.signal(signal.SIGINT, before)
    ran = len(backend.ran)
    assert 0 < ran < VERTICES
    time.sleep(0.2)
    assert len(backend.ran) == ran
    assert threading.active_count() == threads


def test_what_hangs_in_a_turn_dispatches_nothing_when_it_comes_back_in_a_later_run(case):
    released = threading.Event()
    backend = Instant(released.wait)
    with Engine(backend, Dispatcher, timeout_s=0.2) as engine:
        with pytest.raises(StalledError, match="are abandoned: transfer of vertex '0' still runs from device 'CPU:0' to 'CPU:1'"):
            engine.execute(*case)
        first, backend.ran = backend.ran, []
        backend.transfer = lambda: (released.set(), time.sleep(0.002))
        trace = engine.execute(*case)
    assert first == [0]
    assert sorted(backend.ran) == list(range(VERTICES))
    assert validate_trace(*case, trace.log).work_conserving
