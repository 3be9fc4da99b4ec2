"""The critical chain of a run: from its last end back to its start, what each start waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, plan_transfers
from doppler_tf.schedule.trace import MemoryProfile, Trace, by_key, memory_profiles, sums_over_time
from doppler_tf.schedule.trace_tasks import trace_tasks

# A start may have waited for an input computed on the same device, an input's transfer, a slot of the device or link, or memory. At the
# start of the run it waited for nothing.
WAITED_FOR = ("input", "transfer", "device", "link", "memory", "nothing")


@dataclass(frozen=True)
class ChainElement:
    """One execution or transfer of the chain.

    Attributes:
      vertex: the vertex that ran, or whose output was sent.
      source, destination: devices; equal for an execution.
      start_s, end_s: as in the trace.
      waited_for: one of WAITED_FOR. The previous element is the execution or transfer whose end this one waited for.
      waiting_s: from that end (or from 0) to the start. It is 0 under the virtual clock, otherwise overhead or a barrier.
    """

    vertex: int
    source: int
    destination: int
    start_s: float
    end_s: float
    waited_for: str
    waiting_s: float

    @property
    def is_transfer(self) -> bool:
        """Whether it is a transfer over a link."""
        return self.source != self.destination

    @property
    def seconds(self) -> float:
        """Its duration, without the waiting before it."""
        return self.end_s - self.start_s


def critical_chain(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[ChainElement]:
    """The chain from the start of the run to its last end. Durations and waiting times sum to the makespan.

    Each start is traced to the latest end that it needed: of an input, of the task that held the slot, or of one that held memory.

    Args:
      trace: holds every vertex and transfer once.
    """
    walk, elements = _Walk(graph, costs, assignment, trace), []
    tasks, work = walk.tasks, graph.work_vertices
    task: int | None = int(work[np.argmax(tasks.end_s[work])])
    while task is not None:
        before, waited_for = walk.cause(task)
        since = 0.0 if before is None else float(tasks.end_s[before])
        start = float(tasks.start_s[task])
        elements.append(ChainElement(int(tasks.vertex[task]), int(tasks.source[task]), int(tasks.destination[task]), start,
                                     float(tasks.end_s[task]), waited_for, start - since))
        task = before
    return elements[::-1]


class _Lane:
    """A device or link, with the times at which it was full (`slots` tasks ran) and at which its tasks ended."""

    def __init__(self, tasks: np.ndarray, start: np.ndarray, end: np.ndarray, slots: int | None):
        self.tasks = tasks[np.argsort(end[tasks], kind="stable")]
        self.ends = end[self.tasks]
        times = np.concatenate([[0.0], start[tasks], end[tasks]])
        change = np.concatenate([[0], np.ones(len(tasks)), -np.ones(len(tasks))])
        self._instants, running = sums_over_time(times, change)
        full = running >= (np.inf if slots is None else slots)
        last_full = np.maximum.accumulate(np.where(full, np.arange(len(full)), -1))
        self._free_since = np.append(self._instants, np.inf)[last_full + 1]

    def free_since(self, at_s: float) -> float:
        """The end of the last interval before `at_s` in which all slots were occupied; 0 if there was none."""
        i = int(np.searchsorted(self._instants, at_s)) - 1
        return 0.0 if i < 0 else min(float(self._free_since[i]), at_s)

    def ended_at(self, at_s: float) -> list[int]:
        """The tasks that ended at exactly this instant."""
        return self.tasks[np.searchsorted(self.ends, at_s):np.searchsorted(self.ends, at_s, side="right")].tolist()


class _Walk:
    """Steps back from a task to the task whose end it waited for.

    On a wall clock an end may be later than the start, within the tolerance; such an end is no cause. A task that held a slot or memory
    started before its own end. So every step goes back in time, or stays at one instant and goes up the graph, and the walk ends.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace):
        self.graph, self.costs, self.assignment, self.trace = graph, costs, assignment, trace
        self.tasks = trace_tasks(graph, plan_transfers(graph, costs, assignment.device), assignment, trace)
        link = costs.num_devices + costs.topology.lanes[self.tasks.source, self.tasks.destination]
        self.lane = np.where(np.arange(len(link)) < graph.num_vertices, self.tasks.source, link)
        numbers = np.concatenate([graph.work_vertices, np.arange(graph.num_vertices, len(self.lane))])
        self._tasks_of = {lane: numbers[rows] for lane, rows in by_key(self.lane[numbers]).items()}
        self._lanes: dict[int, _Lane] = {}

    def cause(self, task: int) -> tuple[int | None, str]:
        """The task whose end let this one start (None at the start of the run), and what this one waited for."""
        start = float(self.tasks.start_s[task])
        before, since, waited_for = self._input(task, start)
        for first in self._held_by.get(task, ()):
            if since < self.tasks.end_s[first] <= start:
                before, since, waited_for = first, float(self.tasks.end_s[first]), "memory"
        lane = self._lane(int(self.lane[task]))
        free_s = lane.free_since(start)
        holder = self._first(lane.ended_at(free_s), free_s) if free_s > since else None
        if holder is not None:
            before, since, waited_for = holder, free_s, "device" if task < self.graph.num_vertices else "link"
        if since < start and self.costs.limited_memory:
            fits_s = self._fits_since(task, since, start)
            freed = int(self.tasks.destination[task])
            holder = self._first(self._ended_anywhere.ended_at(fits_s), fits_s, freed) if fits_s > since else None
            if holder is not None:
                before, since, waited_for = holder, fits_s, "memory"
        return (before, waited_for) if since > 0 else (None, "nothing")

    def _input(self, task: int, start: float) -> tuple[int | None, float, str]:
        """The last input to arrive: its task, the time when it was resident, and whether it was computed here or transferred."""
        tasks, count = self.tasks, self.graph.num_vertices
        if task >= count:
            producer = int(tasks.vertex[task])
            ended = float(tasks.end_s[producer])
            return (producer, ended, "input") if ended <= start else (None, 0.0, "nothing")
        into = self.graph.predecessors
        edges = into.edge[into.ptr[task]:into.ptr[task + 1]]
        edges = edges[tasks.resident_s[edges] <= start]
        if not len(edges):
            return None, 0.0, "nothing"
        last = edges[np.argmax(tasks.resident_s[edges])]
        transfer = int(tasks.plan.of_edge[last])
        came = float(tasks.resident_s[last])
        return (int(self.graph.sources[last]), came, "input") if transfer < 0 else (count + transfer, came, "transfer")

    def _lane(self, lane: int) -> _Lane:
        if lane not in self._lanes:
            slots = int(self.costs.slots[lane]) if lane < self.costs.num_devices else self.costs.topology.link_slots
            self._lanes[lane] = _Lane(self._tasks_of[lane], self.tasks.start_s, self.tasks.end_s, slots)
        return self._lanes[lane]

    def _first(self, tasks: list[int], at_s: float, freed: int | None = None) -> int | None:
        """The first of the tasks that ran before `at_s`. With `freed`, tasks that freed memory on that device come first.

        Tasks of zero length are skipped, because they started only when something else ended at that instant.
        """
        running = [task for task in tasks if self.tasks.start_s[task] < at_s]
        if freed is not None:
            running.sort(key=lambda task: not (self._frees[task] and self.tasks.source[task] == freed))
        return running[0] if running else None

    def _fits_since(self, task: int, since: float, start: float) -> float:
        """The end of the last interval in (since, start) in which the task's output did not fit; 0 if there was none."""
        d = int(self.tasks.destination[task])
        count = self.graph.num_vertices
        needed = self.costs.output_bytes[task] if task < count else self.costs.tensor_bytes[self.tasks.plan.tensor[task - count]]
        profile, size = self._profiles[d], needed
        earliest = max(int(np.searchsorted(profile.time_s, since, side="right")) - 1, 0)
        last = int(np.searchsorted(profile.time_s, start))
        first, width = last, 1
        while first > earliest:  # in growing steps, because the interval is mostly near the end of a long wait
            begin, width = max(first - width, earliest), 2 * width
            short = np.flatnonzero(self.costs.memory_bytes[d] - profile.used_bytes[begin:first] < size)
            if short.size:
                after = begin + int(short[-1]) + 1
                return min(float(profile.time_s[after]), start) if after < len(profile.time_s) else start
            first = begin
        return 0.0

    @cached_property
    def _held_by(self) -> dict[int, list[int]]:
        """By task those after whose ends it was to start."""
        held: dict[int, list[int]] = {}
        for first, then in () if self.assignment.after is None else self.assignment.after.tolist():
            held.setdefault(then, []).append(first)
        return held

    @cached_property
    def _profiles(self) -> list[MemoryProfile]:
        return memory_profiles(self.graph, self.costs, self.assignment, self.trace)

    @cached_property
    def _ended_anywhere(self) -> _Lane:
        return _Lane(np.concatenate(list(self._tasks_of.values())), self.tasks.start_s, self.tasks.end_s, None)

    @cached_property
    def _frees(self) -> np.ndarray:
        """bool [N + T]: whether the task's end was the last use of a tensor on its device."""
        graph, tasks, devices = self.graph, self.tasks, self.costs.num_devices
        transfers = np.arange(graph.num_vertices, len(self.lane))
        user = np.concatenate([graph.targets, transfers])
        tensor = np.concatenate([graph.edge_tensor, tasks.plan.tensor]).astype(np.int64) * devices + tasks.source[user]
        last = np.zeros(graph.num_tensors * devices)
        np.maximum.at(last, tensor, tasks.end_s[user])
        frees = np.zeros(len(self.lane), bool)
        frees[user[tasks.end_s[user] == last[tensor]]] = True
        return frees
