"""Emulated devices: the engine's threads and queues are real, and every vertex and transfer takes as long as the cost model says."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from types import MappingProxyType

import numpy as np

from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.costs import CostModel, Noise, build_costs, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment, Transfers, plan_transfers
from doppler_tf.schedule.dispatch import Dispatcher
from runtime.engine import Engine

# A sleeping thread wakes 80 to 130 us late on Linux (timer slack and scheduling, measured); the last stretch is spun instead.
SPIN_S = 150e-6


class EmulatedBackend:
    """A Backend that waits.

    The wall clock takes time_scale times the modelled seconds, traces are divided by it: they read in modelled seconds and compare with
    the simulator's, plus the engine's own overhead (some 0.1 ms of wall clock between an end and what it lets start) / time_scale.

    Attributes:
      noise: the factors of the run opened last, None where there is none; a Simulator given them simulates that very run.
    """

    device_kind = "emulated"
    warmup = False

    def __init__(self, time_scale: float = 1.0, noise_sigma: float = 0.0, seed: int = 0, truth: Topology | None = None):
        """Takes the properties of the devices.

        Args:
          noise_sigma: shape of the log-normal factors, drawn anew for each run from `seed`.
          truth: what takes its time, where it is another topology (of as many devices) than the one planned with; queues, slots and
            memory stay those of the caller's costs.

        Raises:
          ConfigError: a figure out of range.
        """
        if not 0 < time_scale < float("inf"):
            raise field_error(ConfigError, "emulated devices", "", "time_scale", "a number > 0", time_scale)
        if not 0 <= noise_sigma < float("inf"):
            raise field_error(ConfigError, "emulated devices", "", "noise_sigma", "a number >= 0", noise_sigma)
        self.time_scale, self._noise_sigma, self._truth = time_scale, noise_sigma, truth
        self._seeds = np.random.default_rng(seed)
        self.noise: Noise | None = None

    def open(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, transfers: Transfers) -> EmulatedSession:
        """Draws this run's noise and fixes all durations. Raises ConfigError: the true topology has another number of devices."""
        work, transfer_s, topology = graph.work_vertices, transfers.cost_s, self._truth or costs.topology
        if self._truth is not None:
            if self._truth.num_devices != costs.num_devices:
                raise field_error(ConfigError, "emulated devices", "", "truth", f"a topology of {costs.num_devices} devices, as "
                                  f"{costs.topology.name} has", f"{self._truth.name} with {self._truth.num_devices}")
            costs = build_costs(graph, self._truth)
            transfer_s = plan_transfers(graph, costs, assignment.device).cost_s
        exec_s = np.zeros(graph.num_vertices)
        exec_s[work] = costs.exec_s[work, assignment.device[work]]
        if self._noise_sigma > 0:
            self.noise = draw_noise(graph.num_vertices, costs.num_devices, self._noise_sigma, int(self._seeds.integers(2**63)))
            exec_s = exec_s * self.noise.vertex
            transfer_s = transfer_s * self.noise.transfer[transfers.producer, transfers.destination]
        return EmulatedSession(exec_s * self.time_scale, transfer_s * self.time_scale, topology.shares)


class EmulatedSession:
    """A Session whose work is to wait for given wall-clock seconds: [N] by vertex, [T] by transfer. Shares: see `Topology.shares`."""

    check_s, caller_may_run = None, False
    kept: Mapping[int, int] = MappingProxyType({})  # nothing is computed

    def __init__(self, vertex_wait_s: np.ndarray, transfer_wait_s: np.ndarray, shares: np.ndarray | None = None):
        self._vertex_wait_s, self._transfer_wait_s, self._shares = vertex_wait_s.tolist(), transfer_wait_s.tolist(), shares
        self._owed_s: dict[int, float] = defaultdict(float)
        self._owing = threading.Lock()
        self._cancelled = threading.Event()

    def run_vertex(self, vertex: int, device: int) -> None:
        """Waits for the vertex's exec seconds, and then for what transfers have taken from the device."""
        self._wait(self._vertex_wait_s[vertex])
        while seconds := self._owed(device):
            self._wait(seconds)

    def run_transfer(self, transfer: int, tensor: int, source: int, destination: int) -> None:
        """Waits for the transfer's seconds, of which the devices at its ends owe a share."""
        if self._shares is not None:
            with self._owing:
                for share, device in zip(self._shares[:, source, destination].tolist(), (source, destination), strict=True):
                    self._owed_s[device] += share * self._transfer_wait_s[transfer]
        self._wait(self._transfer_wait_s[transfer])

    def is_instant(self, source: int, destination: int) -> bool:
        """False: each takes its seconds."""
        return False

    def free(self, tensor: int, device: int) -> None:
        """Does nothing: there are no tensors."""

    def check(self, devices: Sequence[int]) -> None:
        """Does nothing: emulated devices are never lost."""

    def cancel(self) -> None:
        """Ends every wait."""
        self._cancelled.set()

    def fetch(self, tensor: int) -> np.ndarray:
        """Raises KeyError: there are no tensors."""
        return self.kept[tensor]

    def peak_tensor_bytes(self) -> None:
        """None: there are no tensors."""

    def _owed(self, device: int) -> float:
        """What transfers have taken from a device since this was last asked."""
        with self._owing:
            return self._owed_s.pop(device, 0.0)

    def _wait(self, seconds: float) -> None:
        """Sleeps most of the time, then yields until the instant has come; never shorter than asked, unless cancelled."""
        until_s = perf_counter() + seconds
        if seconds > SPIN_S and self._cancelled.wait(seconds - SPIN_S):
            return
        while perf_counter() < until_s:
            time.sleep(0)  # releases the interpreter's lock


class EmulatedExecutor(Engine):
    """The asynchronous engine on emulated devices: any topology, any graph with costs, anywhere."""

    def __init__(self, time_scale: float = 1.0, noise_sigma: float = 0.0, seed: int = 0, dispatch: str | None = None,
                 timeout_s: float | None = None, truth: Topology | None = None):
        """Args: as EmulatedBackend's; dispatch: `fifo`, `b_level` or `order`; None: the assignment's own;
          timeout_s: as Engine's, in wall-clock seconds."""
        self._devices = EmulatedBackend(time_scale, noise_sigma, seed, truth)
        super().__init__(self._devices, partial(Dispatcher, rule=dispatch), timeout_s)

    @property
    def noise(self) -> Noise | None:
        """The factors of the last run, None without noise."""
        return self._devices.noise
