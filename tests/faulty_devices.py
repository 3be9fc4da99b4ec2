"""Emulated devices that fail at will, and what every failure must leave behind."""

import itertools
import threading
import time
from weakref import WeakSet

import numpy as np
import pytest

from doppler_tf.errors import CancelledError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import plan_transfers
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedBackend, Engine
from runtime.emulation import EmulatedSession

SOON_S = 20.0  # only what hangs takes as long; a machine that others share may stop a process for seconds


class Tensor:
    """Stands for one: what counts is whether anybody still holds it."""


class FaultyBackend(EmulatedBackend):
    """Emulated devices that hold tensors, and on which `fault(device)` happens before the piece of work number `at`.

    Attributes:
      dead: devices that are gone; `lost(device)` happens at all that is asked of them.
      opening, fetching: what happens before inputs are placed, and before outputs are fetched.
      tensors: those that somebody holds.
    """

    def __init__(self):
        super().__init__(time_scale=2e-5)
        self.heal()
        self.released = threading.Event()
        self.tensors, self.lock = WeakSet(), threading.Lock()

    def heal(self):
        self.at, self.fault, self.lost, self.dead, self.calls = None, None, None, set(), itertools.count()
        self.opening = self.fetching = lambda: None

    def open(self, graph, costs, assignment, transfers):
        self.opening()
        session = super().open(graph, costs, assignment, transfers)
        return FaultySession(self, graph, session._vertex_wait_s, session._transfer_wait_s)

    def work(self, device):
        if next(self.calls) == self.at:
            self.fault(device)
        if device in self.dead:
            self.lost(device)

    def hang(self, device):
        self.released.wait()


class FaultySession(EmulatedSession):
    def __init__(self, backend, graph, vertex_wait_s, transfer_wait_s):
        super().__init__(np.array(vertex_wait_s), np.array(transfer_wait_s))
        self.backend, self.graph, self.held, self.over = backend, graph, {}, False

    def run_vertex(self, vertex, device):
        operands = [self.held[p, device] for p in self.graph.sources[self.graph.targets == vertex].tolist()]
        self.backend.work(device)
        super().run_vertex(vertex, device)
        self.store(vertex, device)
        del operands

    def run_transfer(self, transfer, tensor, source, destination):
        copied = self.held[tensor, source]
        self.backend.work(destination)
        super().run_transfer(transfer, tensor, source, destination)
        self.store(tensor, destination)
        del copied

    def store(self, vertex, device):
        tensor = Tensor()
        with self.backend.lock:
            self.backend.tensors.add(tensor)
            if not self.over:
                self.held[vertex, device] = tensor

    def free(self, tensor, device):
        if device in self.backend.dead and self.backend.lost != self.backend.hang:
            self.backend.lost(device)
        with self.backend.lock:
            del self.held[tensor, device]

    def cancel(self):
        super().cancel()
        with self.backend.lock:
            self.over = True
            self.held.clear()

    @property
    def kept(self):
        return {v: d for v, d in self.held}

    def fetch(self, tensor):
        self.backend.fetching()
        return np.zeros(1)


class Case:
    """One engine on faulty devices, and a run of it for each seed."""

    def __init__(self, graph, place, timeout_s=None, restart_on_loss=False):
        self.graph, self.costs, self.place = graph, build_costs(graph, cpu(3)), place
        self.backend = FaultyBackend()
        self.engine = Engine(self.backend, Dispatcher, timeout_s, restart_on_loss)
        self.labels = [repr(graph.vertex_label(v)) for v in range(graph.num_vertices)]

    def draw(self, seed):
        """A random assignment, and a random piece of work for the fault to happen at."""
        self.backend.heal()
        self.assignment = self.place(self.graph, self.costs, seed)
        pieces = self.graph.num_vertices + len(plan_transfers(self.graph, self.costs, self.assignment.device).producer)
        self.backend.at = int(np.random.default_rng(seed).integers(pieces))

    def run(self):
        return self.engine.execute(self.graph, self.costs, self.assignment)

    def usual_s(self):
        """Seconds that a whole run takes."""
        self.backend.heal()
        begun_s, spent_s = time.perf_counter(), []
        for _ in range(5):
            self.run()
            spent_s.append(time.perf_counter() - begun_s)
        return min(np.diff(spent_s))

    def outcome(self):
        """What the run raised; None if it came to its end."""
        try:
            self.run()
        except CancelledError as error:
            return error
        return None

    def fails(self, error):
        """The run fails in time, names a vertex and a device, and leaves neither outputs nor tensors."""
        begun_s = time.perf_counter()
        with pytest.raises(error) as caught:
            self.run()
        assert time.perf_counter() - begun_s < SOON_S
        message = str(caught.value)
        assert any(f"vertex {label}" in message for label in self.labels)
        assert "'CPU:" in message
        assert "\n" not in message
        assert self.engine.outputs == {}
        return message

    def recovers(self):
        """The engine runs the same assignment to its end."""
        self.backend.heal()
        trace = self.run()
        assert len(self.engine.outputs) > 0
        self.check(self.assignment, trace)

    def check(self, assignment, trace):
        """The trace is as good as if nothing had ever failed."""
        assert validate_trace(self.graph, self.costs, assignment, trace).valid
        assert validate_trace(self.graph, self.costs, assignment, trace.log).work_conserving
