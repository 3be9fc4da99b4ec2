"""The scheduling problem as a constraint program. It admits every schedule that the rules of time admit, so its bounds hold for all."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np

from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.memory import needed_bytes
from doppler_tf.schedule.trace import Trace

# Ticks of the horizon. A duration is rounded down by less than one tick. More ticks make bounds tighter and the solver slower.
_HORIZON_TICKS = 2**24


class Model:
    """Variables: the device of each unit, the start of each vertex, and the departure and arrival of each tensor's copy on each device.

    A device runs `slots` vertices at once and a link `link_slots` transfers, in any order. A copy takes as long as the costliest edge that
    needs it. The model ignores what transfers take from devices. It ignores memory over time, too; it only demands that a vertex with its
    inputs and its output fits on its device. Times are multiples of `unit_s`, a power of two, and durations are rounded down. Rounding down
    all times of a real schedule gives a solution of the model, so the model's optimum is never later than the real one.
    """

    def __init__(self, problem: Problem, latest_s: float, earliest_s: float):
        """Args: latest_s: a makespan that is reachable; earliest_s: a lower bound."""
        from ortools.sat.python import cp_model

        graph, costs, self.units = problem.graph, problem.costs, problem.units
        self._graph, self._costs = graph, costs
        durations = np.concatenate([costs.exec_s[graph.work_vertices].ravel(), costs.explicit_transfer_s[graph.work_edges]])
        integral = np.isnan(costs.explicit_transfer_s[graph.work_edges]).sum() == 0 and np.array_equal(durations, np.round(durations))
        self.unit_s = 1.0
        if latest_s > (_HORIZON_TICKS if integral else 0.0):
            self.unit_s = 2.0 ** math.floor(math.log2(latest_s / _HORIZON_TICKS))
        self.model = cp_model.CpModel()
        horizon = int(latest_s / self.unit_s) + 1
        self._time = lambda name: self.model.new_int_var(0, horizon, name)
        self.makespan = self.model.new_int_var(min(int(earliest_s * (1 - 1e-9) / self.unit_s), horizon), horizon, "makespan")
        self.on = [[self.model.new_bool_var(f"on{u},{d}") for d in range(costs.num_devices)] for u in range(self.units.num_units)]
        self.start = {v: self._time(f"start{v}") for v in graph.work_vertices.tolist()}
        self.departure, self.arrival, self.edges_of = {}, {}, {}
        self._devices()
        self._transfers()
        self.model.minimize(self.makespan)

    def _ticks(self, seconds: float) -> int:
        return int(seconds / self.unit_s)

    def _on(self, v: int, d: int):
        return self.on[self.units.unit_of[v]][d]

    def _devices(self) -> None:
        model, costs, devices = self.model, self._costs, range(self._costs.num_devices)
        feasible = self._feasible()
        for u, allowed in enumerate(feasible):
            model.add_exactly_one(self.on[u])
            for d in devices:
                if not allowed[d]:
                    model.add(self.on[u][d] == 0)
        if feasible.all() and self._interchangeable():
            # Breaks the symmetry: devices are numbered in the order in which units first use them.
            for u, d in itertools.product(range(min(len(devices), self.units.num_units)), devices):
                if d > u:
                    model.add(self.on[u][d] == 0)
        self.end = {}
        lanes: list[list] = [[] for _ in devices]
        for v, start in self.start.items():
            ticks = [self._ticks(costs.exec_s[v, d]) for d in devices]
            if len(set(ticks)) == 1:
                self.end[v] = start + ticks[0]
            else:
                self.end[v] = start + sum(self._on(v, d) * ticks[d] for d in devices)
            for d in devices:
                lanes[d].append(model.new_optional_fixed_size_interval_var(start, ticks[d], self._on(v, d), f"run{v},{d}"))
            model.add(self.end[v] <= self.makespan)
        for d, lane in enumerate(lanes):
            slots = int(costs.slots[d])
            if slots == 1:
                model.add_no_overlap(lane)
            elif slots < len(lane):
                model.add_cumulative(lane, [1] * len(lane), slots)
            load = sum(self._on(v, d) * self._ticks(costs.exec_s[v, d]) for v in self.start)
            model.add(load <= self.makespan * slots)

    def _feasible(self) -> np.ndarray:
        """bool [U, D]: whether pins permit the device and every vertex fits on it with its inputs and its output."""
        graph, costs, units = self._graph, self._costs, self.units
        most = np.zeros(units.num_units)
        np.maximum.at(most, units.unit_of[graph.work_vertices], needed_bytes(graph, costs)[graph.work_vertices])
        feasible = units.allowed & (most[:, None] <= costs.memory_bytes)
        return np.where(feasible.any(axis=1, keepdims=True), feasible, units.allowed)

    def _interchangeable(self) -> bool:
        """Whether all devices and all links are equal and share nothing."""
        costs, topology = self._costs, self._costs.topology
        if topology.shares_cards:
            return False
        other = ~np.eye(costs.num_devices, dtype=bool)
        if not topology.linked.all():
            return False
        alike = (topology.latency_s[other], topology.bandwidth_bytes_per_s[other], costs.slots, costs.memory_bytes)
        return bool((costs.exec_s == costs.exec_s[:, :1]).all()) and all(len(np.unique(values)) <= 1 for values in alike)

    def _transfers(self) -> None:
        graph, costs, model = self._graph, self._costs, self.model
        devices, link_slots = range(costs.num_devices), costs.topology.link_slots
        lanes, queues = costs.topology.lanes.tolist(), defaultdict(list)
        for e in graph.work_edges.tolist():
            self.edges_of.setdefault(int(graph.edge_tensor[e]), []).append(e)
            model.add(self.start[int(graph.targets[e])] >= self.end[int(graph.sources[e])])
        for (t, edges), d in itertools.product(self.edges_of.items(), devices if costs.num_devices > 1 else ()):
            u = int(graph.tensor_producer[t])
            departure = self.departure[t, d] = self._time(f"departure{t},{d}") if link_slots else None
            arrival = self.arrival[t, d] = self._time(f"arrival{t},{d}")
            model.add(arrival >= self.end[u])
            if link_slots:
                model.add(departure >= self.end[u])
            begin = departure if link_slots else self.end[u]
            copied = model.new_bool_var(f"copied{t},{d}")
            links = costs.topology.links[:, d]
            ticks = {s: [self._ticks(float(costs.transfer_s(e, s, d))) for e in edges] for s in devices if links[s]}
            alike = len({tuple(row) for row in ticks.values()}) == 1
            for s, e in itertools.product((s for s in devices if s != d and not links[s]), edges):
                model.add_bool_or(self._on(u, s).negated(), self._on(int(graph.targets[e]), d).negated())
            for at, e in enumerate(edges):
                v = int(graph.targets[e])
                needed_here, made_elsewhere = self._on(v, d), self._on(u, d).negated()
                model.add(self.start[v] >= arrival).only_enforce_if(needed_here)
                model.add_bool_or(copied, needed_here.negated(), self._on(u, d))
                if alike:
                    model.add(arrival >= begin + next(iter(ticks.values()))[at]).only_enforce_if(needed_here, made_elsewhere)
                else:
                    for s, row in ticks.items():
                        model.add(arrival >= begin + row[at]).only_enforce_if(needed_here, self._on(u, s))
            for s, row in ticks.items() if link_slots else ():
                present = model.new_bool_var(f"sends{t},{s},{d}")
                model.add_bool_or(present, copied.negated(), self._on(u, s).negated())
                queues[lanes[s][d]].append(self._interval(t, s, d, row, present))
        for queue in queues.values():
            if link_slots == 1:
                model.add_no_overlap(queue)
            elif link_slots and link_slots < len(queue):
                model.add_cumulative(queue, [1] * len(queue), link_slots)

    def _interval(self, t: int, s: int, d: int, ticks: list[int], present):
        """The interval in which the copy of tensor t occupies the link from s to d."""
        departure, name = self.departure[t, d], f"send{t},{s},{d}"
        if len(set(ticks)) == 1:
            return self.model.new_optional_fixed_size_interval_var(departure, ticks[0], present, name)
        size = self.model.new_int_var(min(ticks), max(ticks), f"size{t},{s},{d}")
        end = self._time(f"end{t},{s},{d}")
        self.model.add(end <= self.arrival[t, d]).only_enforce_if(present)
        u = int(self._graph.tensor_producer[t])
        for at, e in enumerate(self.edges_of[t]):
            self.model.add(size >= ticks[at]).only_enforce_if(present, self._on(int(self._graph.targets[e]), d), self._on(u, s))
        return self.model.new_optional_interval_var(departure, size, end, present, name)

    def hint(self, device: np.ndarray, trace: Trace) -> None:
        """Starts the solver from a simulated assignment. Args: device: int32 [N]; trace: of its simulation."""
        work = self._graph.work_vertices
        unit_device = np.zeros(self.units.num_units, np.int64)
        unit_device[self.units.unit_of[work]] = device[work]
        renamed: dict[int, int] = {}
        if self._interchangeable():
            for d in unit_device.tolist():
                renamed.setdefault(d, len(renamed))
        for d, row in zip(unit_device.tolist(), self.on, strict=True):
            for other, literal in enumerate(row):
                self.model.add_hint(literal, int(other == renamed.get(d, d)))
        for v, start_s in zip(trace.vertex.tolist(), trace.start_s.tolist(), strict=True):
            self.model.add_hint(self.start[v], self._ticks(start_s))
