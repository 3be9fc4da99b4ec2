"""Is a trace possible (valid), and did nothing idle beside work that could start (work conserving)?"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np

from doppler_tf.graph.costs import CostModel, graph_with_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.schedule.assignment import Assignment, Transfers, as_assignment, plan_transfers
from doppler_tf.schedule.memory import size_text
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.trace import MemoryProfile, Trace, by_key, by_link, memory_profiles, sums_over_time
from doppler_tf.schedule.trace_tasks import trace_tasks


@dataclass(frozen=True)
class Violation:
    """One broken rule: its kind and a sentence that names who, where and when."""

    kind: str
    message: str


@dataclass(frozen=True)
class TraceReport:
    """The findings of `validate_trace`: `violations` of validity, `idle` violations of work conservation."""

    violations: tuple[Violation, ...]
    idle: tuple[Violation, ...]

    @property
    def valid(self) -> bool:
        """Dependencies, booking, residency and once-only hold."""
        return not self.violations

    @property
    def work_conserving(self) -> bool:
        """The trace is valid and no device idles beside a ready vertex, no link beside a queued transfer."""
        return self.valid and not self.idle


def validate_trace(graph: GraphLike, topology: TopologyLike | CostModel, assignment: Assignment, trace: Trace,
                   tolerance_s: float = 0.0) -> TraceReport:
    """Checks a trace against the rules of time.

    Args:
      graph, topology: as in `build_costs`; or ready-made costs.
      tolerance_s: 0 for virtual clocks and the dispatcher's own log (exact); for wall-clock times how much overlap, lateness or
        idling beside waiting work is forgiven, each time.

    Returns:
      A TraceReport. Work conservation is judged only when every vertex and transfer stands in the trace exactly once.
    """
    graph, costs = graph_with_costs(graph, topology)
    graph, costs, assignment = offloaded(graph, costs, as_assignment(graph, costs, assignment))
    plan = plan_transfers(graph, costs, assignment.device)
    violations = _once_only(graph, costs, assignment, plan, trace)
    if violations:
        return TraceReport(tuple(violations), ())
    run = _Run(graph, costs, assignment, plan, trace, tolerance_s)
    violations = [*run.dependencies(), *run.bookings(), *run.memory()]
    return TraceReport(tuple(violations), () if violations else tuple(run.idle()))


def _once_only(graph: DataflowGraph, costs: CostModel, assignment: Assignment, plan: Transfers, trace: Trace) -> list[Violation]:
    """Every vertex once, where it belongs; every transfer once, where it is needed; no negative or undefined times."""
    found = []
    ran = Counter(trace.vertex.tolist())
    work = set(graph.work_vertices.tolist())
    for v in sorted(work - set(ran)):
        found.append(Violation("missing vertex", f"vertex {graph.vertex_label(v)} never ran"))
    for v, times in ran.items():
        if v not in work:
            found.append(Violation("unknown vertex", f"vertex index {v} is not to be run in {graph.name}"))
        elif times > 1:
            found.append(Violation("repeated vertex", f"vertex {graph.vertex_label(v)} ran {times} times"))
    for v, d in zip(trace.vertex.tolist(), trace.device.tolist(), strict=True):
        if v in work and d != assignment.device[v]:
            found.append(Violation("wrong device", f"vertex {graph.vertex_label(v)} ran on device {d}, assigned to {assignment.device[v]}"))
    names = (*costs.topology.device_names, "none")
    needed = set(zip(plan.producer.tolist(), (plan.tensor - graph.tensor_ptr[plan.producer]).tolist(), plan.source.tolist(),
                     plan.destination.tolist(), strict=True))
    sent = Counter(zip(trace.producer.tolist(), trace.output.tolist(), trace.source.tolist(), trace.destination.tolist(), strict=True))
    for (p, output, source, destination), times in sent.items():
        what = f"{_output(output)} of vertex {p} from device {source} to {destination}"
        if (p, output, source, destination) not in needed:
            found.append(Violation("needless transfer", f"{what}: nothing there uses it, or it was not there to send"))
        elif times > 1:
            found.append(Violation("repeated transfer", f"{what}: sent {times} times"))
    for p, output, _, destination in sorted(needed - set(sent)):
        found.append(Violation("missing transfer", f"{_output(output)} of vertex {graph.vertex_label(p)} never reached "
                                                   f"{names[destination]}"))
    begin = np.concatenate([trace.start_s, trace.transfer_start_s])
    end = np.concatenate([trace.end_s, trace.transfer_end_s])
    for i in np.flatnonzero(~((begin >= 0) & (end >= begin) & np.isfinite(end))).tolist():
        found.append(Violation("bad time", f"event {i}: expected 0 <= start <= end, got {begin[i]} to {end[i]}"))
    return found


class _Run:
    """A complete trace in the plan's order, and the checks on its times."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, plan: Transfers, trace: Trace,
                 tolerance_s: float):
        self.graph, self.costs, self.assignment, self.plan, self.trace = graph, costs, assignment, plan, trace
        self.tolerance_s, count, tasks = tolerance_s, graph.num_vertices, trace_tasks(graph, plan, assignment, trace)
        self.start, self.transfer_start = tasks.start_s[:count], tasks.start_s[count:]
        self.end, self.transfer_end, self.edge_resident = tasks.end_s[:count], tasks.end_s[count:], tasks.resident_s
        self.after = np.empty((0, 2), np.int64) if assignment.after is None else assignment.after
        self.after_end, self.after_start = tasks.end_s[self.after[:, 0]], tasks.start_s[self.after[:, 1]]
        waits = np.concatenate([np.zeros(count), self.end[plan.producer]])
        np.maximum.at(waits, graph.targets, tasks.resident_s)
        np.maximum.at(waits, self.after[:, 1], self.after_end)
        self.ready, self.queued = waits[:count], waits[count:]
        self.devices = _lanes(assignment.device, graph.work_vertices)
        self.lanes = _lanes(costs.topology.lanes[plan.source, plan.destination], np.arange(len(plan.source)))

    def dependencies(self) -> list[Violation]:
        """No vertex before its inputs, no transfer before its producer has ended."""
        graph, plan = self.graph, self.plan
        found = []
        for e in np.flatnonzero(self.start[graph.targets] < self.edge_resident - self.tolerance_s).tolist():
            v, p = int(graph.targets[e]), int(graph.sources[e])
            found.append(Violation("dependency", f"vertex {graph.vertex_label(v)} started at {self.start[v]:.9g} s, before its input from "
                                                 f"{graph.vertex_label(p)} was resident at {self.edge_resident[e]:.9g} s"))
        for t in np.flatnonzero(self.transfer_start < self.end[plan.producer] - self.tolerance_s).tolist():
            p = int(plan.producer[t])
            found.append(Violation("transfer before producer", f"output of vertex {graph.vertex_label(p)} was sent at "
                                   f"{self.transfer_start[t]:.9g} s, before its end at {self.end[p]:.9g} s"))
        for i in np.flatnonzero(self.after_start < self.after_end - self.tolerance_s).tolist():
            first, then = (self._event_name(int(event)) for event in self.after[i])
            found.append(Violation("after", f"{then} started at {self.after_start[i]:.9g} s, before the end of {first}, after which it was "
                                            f"to start, at {self.after_end[i]:.9g} s"))
        return found

    def bookings(self) -> list[Violation]:
        """No device or link carries more at once than it has slots."""
        found = []
        for d, members in self.devices.items():
            for v, at in _overbooked(self.start[members], self.end[members], int(self.costs.slots[d]), self.tolerance_s):
                found.append(Violation("double booking of a device", f"device {self._name(d)} was full when vertex "
                                       f"{self.graph.vertex_label(int(members[v]))} started at {at:.9g} s"))
        slots = self.costs.topology.link_slots
        for members in self.lanes.values() if slots is not None else ():
            for t, at in _overbooked(self.transfer_start[members], self.transfer_end[members], slots, self.tolerance_s):
                p = int(self.plan.producer[members[t]])
                found.append(Violation("double booking of a link", f"{self._link_name(members[t])} was full "
                                       f"when the output of vertex {self.graph.vertex_label(p)} was sent at {at:.9g} s"))
        return found

    def memory(self) -> list[Violation]:
        """No device holds more bytes than it has; skipped on wall-clock times, where frees are seen late."""
        if not self.costs.limited_memory or self.tolerance_s > 0:
            return []
        found = []
        for d, profile in enumerate(self._profiles()):
            over = np.flatnonzero(profile.used_bytes > self.costs.memory_bytes[d])
            if over.size:
                found.append(Violation("memory", f"device {self._name(d)} holds {size_text(profile.used_bytes[over[0]])} at "
                                       f"{profile.time_s[over[0]]:.9g} s, it has {self.costs.memory_bytes[d]:.6g}"))
        return found

    def idle(self) -> list[Violation]:
        """No free slot of a device beside a ready vertex, no free slot of a link beside a queued transfer."""
        found = []
        profiles = self._profiles() if self.costs.limited_memory else None
        for d, members in self.devices.items():
            gaps = _gaps(self.start[members], self.end[members], int(self.costs.slots[d]))
            idled = self._idled(gaps, self.ready[members], self.start[members], self.costs.output_bytes[members], d, profiles)
            for i in np.flatnonzero(idled > self.tolerance_s).tolist():
                v = int(members[i])
                found.append(Violation("idle device", f"device {self._name(d)} idled {idled[i]:.9g} s beside vertex "
                                       f"{self.graph.vertex_label(v)}, ready from {self.ready[v]:.9g} s, started at {self.start[v]:.9g} s"))
        free = {lane: _gaps(self.transfer_start[members], self.transfer_end[members], self.costs.topology.link_slots)
                for lane, members in self.lanes.items()}
        for (source, destination), members in by_link(self.plan.source, self.plan.destination).items():
            producer, begun = self.plan.producer[members], self.transfer_start[members]
            queued, gaps = self.queued[members], free[int(self.costs.topology.lanes[source, destination])]
            idled = self._idled(gaps, queued, begun, self.costs.tensor_bytes[self.plan.tensor[members]], destination, profiles)
            for i in np.flatnonzero(idled > self.tolerance_s).tolist():
                found.append(Violation("idle link", f"{self._link_name(members[i])} idled {idled[i]:.9g} s "
                                       f"beside the output of vertex {self.graph.vertex_label(int(producer[i]))}, queued from "
                                       f"{queued[i]:.9g} s, sent at {begun[i]:.9g} s"))
        return found

    def _idled(self, gaps: tuple[np.ndarray, np.ndarray], ready: np.ndarray, start: np.ndarray, size: np.ndarray, d: int,
               profiles: list[MemoryProfile] | None) -> np.ndarray:
        """float64 [n]: longest stretch within [ready, start] in which a lane had a free slot and `size` bytes fitted on device d; 0 where
        it is within the tolerance."""
        begin, end, room = _stretches(gaps, profiles[d], self.costs.memory_bytes[d]) if profiles else (*gaps, np.full(len(gaps[0]), np.inf))
        first, last = np.searchsorted(end, ready, side="right"), np.searchsorted(begin, start, side="left")
        # In a good trace few waits remain to be checked one by one: those with a stretch that is long enough and has enough memory.
        worth = (_range_max(end - begin, first, last) > self.tolerance_s) & (_range_max(room, first, last) >= size)
        idled = np.zeros(len(ready))
        for i in np.flatnonzero(worth).tolist():
            during = slice(first[i], last[i])
            stretch = np.minimum(end[during], start[i]) - np.maximum(begin[during], ready[i])
            idled[i] = stretch[room[during] >= size[i]].max(initial=0.0)
        return idled

    def _profiles(self) -> list[MemoryProfile]:
        return memory_profiles(self.graph, self.costs, self.assignment, self.trace)

    def _link_name(self, transfer: int) -> str:
        source, destination = self.plan.source[transfer], self.plan.destination[transfer]
        lanes = self.costs.topology.lanes
        shared = np.count_nonzero(lanes == lanes[source, destination]) > 1
        return f"{'the network card of ' if shared else ''}link {self._name(source)} -> {self._name(destination)}"

    def _event_name(self, event: int) -> str:
        t = event - self.graph.num_vertices
        if t < 0:
            return f"vertex {self.graph.vertex_label(event)}"
        return f"the transfer of vertex {self.graph.vertex_label(int(self.plan.producer[t]))} to {self._name(self.plan.destination[t])}"

    def _name(self, d: int) -> str:
        return self.costs.topology.device_names[d]


def _output(output: int) -> str:
    return f"output {output}" if output else "output"


def _lanes(lane: np.ndarray, members: np.ndarray) -> dict[int, np.ndarray]:
    return {k: members[rows] for k, rows in by_key(lane[members]).items()}


def _overbooked(start: np.ndarray, end: np.ndarray, slots: int, tolerance_s: float) -> list[tuple[int, float]]:
    """Members (position, time) that started while `slots` others ran on for longer than the tolerance."""
    found, running = [], []
    for i in np.lexsort((end, start)).tolist():
        while running and running[0] <= start[i] + tolerance_s:
            heapq.heappop(running)
        if len(running) >= slots:
            found.append((i, float(start[i])))
        heapq.heappush(running, end[i])
    return found


def _gaps(start: np.ndarray, end: np.ndarray, slots: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends of the stretches in which fewer than `slots` members run (None: always)."""
    if slots is None:
        return np.array([0.0]), np.array([np.inf])
    change = np.concatenate([[0], np.ones(len(start)), -np.ones(len(end))])
    instants, running = sums_over_time(np.concatenate([[0.0], start, end]), change)
    free = running < slots
    return instants[free], np.append(instants[1:], np.inf)[free]


def _stretches(gaps: tuple[np.ndarray, np.ndarray], profile: MemoryProfile, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gaps cut where the memory in use changes: begins, ends and bytes left."""
    times = np.unique(np.concatenate([[0.0], *gaps, profile.time_s]))
    begin, end = times[:-1], times[1:]
    gap = np.searchsorted(gaps[0], begin, side="right") - 1
    free = (gap >= 0) & (begin < np.append(gaps[1], -np.inf)[gap])
    used = np.append(profile.used_bytes, 0.0)[np.searchsorted(profile.time_s, begin, side="right") - 1]
    return begin[free], end[free], (limit - used)[free]


def _range_max(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """float64 [n]: the largest of `values[first:last]`, -infinity where that is empty; by maxima over all ranges of 2^k values."""
    largest = np.full(len(first), -np.inf)
    step, length = 1, last - first
    while len(values):
        mine = np.flatnonzero((length >= step) & (length < 2 * step))
        largest[mine] = np.maximum(values[first[mine]], values[last[mine] - step])
        values = np.maximum(values[:-step], values[step:])
        step *= 2
    return largest
