"""The work-conserving state machine: events in, instructions out. No clock, no thread, no tensor.

The simulator feeds it with a virtual clock, the runtime with the wall clock; both therefore follow the same rules of time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from doppler_tf.errors import AssignmentError, ConfigError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment, Transfers, check_devices, check_runnable, plan_transfers
from doppler_tf.schedule.memory import MORE_MEMORY, may_run_short, never_fits, size_text
from doppler_tf.schedule.ranks import b_levels
from doppler_tf.schedule.trace import Trace
from doppler_tf.schedule.waiting import Entry, Queue


class VertexEnded(NamedTuple):
    """Event: a vertex's output is resident on its device."""

    vertex: int


class TransferEnded(NamedTuple):
    """Event: a copy is resident at its destination; `transfer` is the index in the plan."""

    transfer: int


class StartVertex(NamedTuple):
    """Instruction: run a vertex."""

    vertex: int
    device: int


class StartTransfer(NamedTuple):
    """Instruction: copy a tensor to another device."""

    transfer: int
    tensor: int
    source: int
    destination: int


class Free(NamedTuple):
    """Instruction: a tensor has had its last use on a device and may be dropped there."""

    tensor: int
    device: int


Event = VertexEnded | TransferEnded
# Starts and ends of vertices, then of transfers, in seconds.
Times = tuple[list[float], list[float], list[float], list[float]]
Instruction = StartVertex | StartTransfer | Free


class Dispatcher:
    """Decides what starts when, in the runs of one assignment, one after the other.

    Call `begin(now_s)`, then `advance(now_s, events)` with everything that ended at that instant, until `done`. Times must not
    decrease. At one instant all completions are applied, then all that can start is started: devices by index, then links. Between
    devices that share their memory a transfer ends at the instant at which it could start, and no event tells of its end.

    What follows from the assignment alone is worked out once. `begin` starts another run and forgets the one before.

    Attributes:
      limited: whether the memory of a device may run out.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, rule: str | None = None):
        """Args: rule: `fifo`, `b_level` or `order`; None: the assignment's own. Raises: ConfigError, AssignmentError (see `queue_keys`)."""
        check_devices(graph, costs, assignment.device)
        check_runnable(graph, costs, assignment.device, graph.name)
        self.rule = assignment.dispatch if rule is None else rule
        self.transfers = plan_transfers(graph, costs, assignment.device)
        self._graph, self._costs = graph, costs
        keys = queue_keys(graph, costs, assignment, self.rule)
        self._priority = None if keys is None else keys.tolist()
        self._transfer_key = None if keys is None else _most_urgent(graph, keys, self.transfers).tolist()
        count, devices = graph.num_vertices, costs.num_devices
        self._device: list[int] = assignment.device.tolist()
        plan = self.transfers
        self._sent, self._source = plan.tensor.tolist(), plan.source.tolist()
        self._destination = plan.destination.tolist()
        lanes = costs.topology.lanes
        link = lanes[plan.source, plan.destination]
        self._link: list[int] = link.tolist()
        self._transfers_of = _grouped(plan.producer, np.arange(len(plan.producer)), count)
        self._index_consumers(assignment.device)
        link_slots, self._num_links = costs.topology.link_slots, int(lanes.max()) + 1
        self._slots: list[int] = costs.slots.tolist()
        self._slots_of_link = len(self._sent) + 1 if link_slots is None else link_slots
        self._limited = may_run_short(graph, costs, assignment.device).tolist()
        self.limited = any(self._limited)
        self._vertex_bytes: list[float] = costs.output_bytes.tolist()
        self._links_to = [np.unique(lanes[np.arange(devices) != d, d]).tolist() if self._limited[d] else [] for d in range(devices)]
        self._held_by = self._index_after(assignment.after)
        self._first = [v for v in graph.work_vertices.tolist() if not self._inputs_of[v]]
        self._forget()

    def _forget(self) -> None:
        """Sets everything to where it is before a run."""
        graph, costs = self._graph, self._costs
        count, transfers = graph.num_vertices, len(self._sent)
        self._inputs_missing, self._entry_uses = self._inputs_of.copy(), self._uses_of.copy()
        self._waits_missing = self._waits_of.copy()
        self._device_slots, self._link_slots = self._slots.copy(), [self._slots_of_link] * self._num_links
        self._device_queue = [Queue() for _ in self._slots]
        self._link_queue = [Queue() for _ in range(self._num_links)]
        self._memory_left: list[float] = (costs.memory_bytes - self._inputs_bytes).tolist()
        self._dirty_devices: set[int] = set()
        self._dirty_links: set[int] = set()
        self.remaining = len(graph.work_vertices)
        self.vertex_start_s, self.vertex_end_s = [0.0] * count, [0.0] * count
        self.transfer_start_s, self.transfer_end_s = [0.0] * transfers, [0.0] * transfers

    def _index_after(self, after: np.ndarray | None) -> dict[int, list[int]]:
        """What waits for the end of an event without taking anything from it: events by event. Counts it as one more input."""
        held: dict[int, list[int]] = {}
        self._waits_of = [1] * len(self._sent)  # of a transfer: for its producer, and for events
        for first, then in () if after is None else after.tolist():
            held.setdefault(first, []).append(then)
            if then < self._graph.num_vertices:
                self._inputs_of[then] += 1
            else:
                self._waits_of[then - self._graph.num_vertices] += 1
        return held

    def _index_consumers(self, device: np.ndarray) -> None:
        """Residencies: entry t < T is tensor t at home, T + i the copy by transfer i, then one a pair (input tensor, device)."""
        graph, plan = self._graph, self.transfers
        count, tensors, copies = graph.num_vertices, graph.num_tensors, len(plan.tensor)
        from_input = graph.is_input[graph.sources]
        pairs = graph.edge_tensor.astype(np.int64) * self._costs.num_devices + device[graph.targets]
        input_keys, input_of = np.unique(pairs[from_input], return_inverse=True)
        entry = np.where(plan.of_edge >= 0, tensors + plan.of_edge, graph.edge_tensor).astype(np.int64)
        entry[from_input] = tensors + copies + input_of
        entries = tensors + copies + len(input_keys)
        uses = np.bincount(entry, minlength=entries)
        uses += np.bincount(plan.tensor, minlength=entries)
        uses[graph.results] += 1  # never ends
        input_tensor = (input_keys // self._costs.num_devices).astype(np.int32)
        input_device = (input_keys % self._costs.num_devices).astype(np.int32)
        tensor = np.concatenate([np.arange(tensors), plan.tensor, input_tensor])
        self._entry_tensor: list[int] = tensor.tolist()
        self._entry_device: list[int] = np.concatenate([device[graph.tensor_producer], plan.destination, input_device]).tolist()
        self._entry_bytes: list[float] = self._costs.tensor_bytes[tensor].tolist()
        self._uses_of: list[int] = uses.tolist()
        self._used_by = _grouped(graph.targets, entry, count)
        waiting = ~from_input
        self._waiting_for = _grouped(entry[waiting], graph.targets[waiting], tensors + copies)
        self._inputs_of: list[int] = np.bincount(graph.targets[waiting], minlength=count).tolist()
        self._inputs_bytes = np.bincount(input_device, self._costs.tensor_bytes[input_tensor], self._costs.num_devices)
        self._first_tensor: list[int] = graph.tensor_ptr.tolist()

    @property
    def done(self) -> bool:
        """Whether every vertex has ended."""
        return self.remaining == 0

    def begin(self, now_s: float = 0.0, instant: Collection[tuple[int, int]] = ()) -> list[Instruction]:
        """Begins a run: queues every vertex that needs no other vertex and starts what can start.

        Args: instant: (source, destination) of devices that share their memory, of which none has a limit that can bind.
        """
        self._instant = instant
        self._forget()
        for v in self._first:
            self._enqueue_vertex(v, now_s)
        return self._start(now_s)

    def advance(self, now_s: float, events: Iterable[Event]) -> list[Instruction]:
        """Applies what ended at `now_s`, then starts what can start; returns the instructions in the order in which to carry them out."""
        instructions, events = list[Instruction](), tuple(events)
        for event in events:  # before tensors arrive at this very instant, so that no device holds more than at its end
            if isinstance(event, VertexEnded):
                for entry in self._used_by[event.vertex]:
                    self._release(entry, instructions)
        for event in events:
            if isinstance(event, VertexEnded):
                self._vertex_ended(event.vertex, now_s, instructions)
            else:
                self._transfer_ended(event.transfer, now_s, instructions)
        instructions += self._start(now_s)
        return instructions

    def _vertex_ended(self, v: int, now_s: float, instructions: list) -> None:
        d = self._device[v]
        self.vertex_end_s[v] = now_s
        self.remaining -= 1
        self._device_slots[d] += 1
        self._dirty_devices.add(d)
        for t in self._transfers_of[v]:
            self._transfer_waits_less(t, now_s, instructions)
        for tensor in range(self._first_tensor[v], self._first_tensor[v + 1]):
            self._resident(tensor, now_s)
        if v in self._held_by:
            self._let_go(v, now_s, instructions)

    def _transfer_ended(self, t: int, now_s: float, instructions: list) -> None:
        link = self._link[t]
        self._link_slots[link] += 1
        self._dirty_links.add(link)
        self._arrived(t, now_s, instructions)

    def _arrived(self, t: int, now_s: float, instructions: list) -> None:
        self.transfer_end_s[t] = now_s
        self._resident(self._first_tensor[-1] + t, now_s)
        self._release(self._sent[t], instructions)
        if self._held_by:
            self._let_go(self._graph.num_vertices + t, now_s, instructions)

    def _let_go(self, event: int, now_s: float, instructions: list) -> None:
        for then in self._held_by.get(event, ()):
            if then < self._graph.num_vertices:
                self._vertex_waits_less(then, now_s)
            else:
                self._transfer_waits_less(then - self._graph.num_vertices, now_s, instructions)

    def _resident(self, entry: int, now_s: float) -> None:
        for v in self._waiting_for[entry]:
            self._vertex_waits_less(v, now_s)

    def _vertex_waits_less(self, v: int, now_s: float) -> None:
        self._inputs_missing[v] -= 1
        if self._inputs_missing[v] == 0:
            self._enqueue_vertex(v, now_s)

    def _transfer_waits_less(self, t: int, now_s: float, instructions: list) -> None:
        self._waits_missing[t] -= 1
        if self._waits_missing[t]:
            return
        if (self._source[t], self._destination[t]) in self._instant:
            self.transfer_start_s[t] = now_s
            instructions.append(StartTransfer(t, self._sent[t], self._source[t], self._destination[t]))
            self._arrived(t, now_s, instructions)
            return
        link = self._link[t]
        self._link_queue[link].add((now_s if self._transfer_key is None else self._transfer_key[t], self._sent[t], t))
        self._dirty_links.add(link)

    def _enqueue_vertex(self, v: int, now_s: float) -> None:
        d = self._device[v]
        self._device_queue[d].add((now_s if self._priority is None else self._priority[v], v))
        self._dirty_devices.add(d)

    def _release(self, entry: int, instructions: list) -> None:
        """Ends one use of a tensor. After the last use its memory is free, and the queues that wait for that memory are asked again."""
        self._entry_uses[entry] -= 1
        if self._entry_uses[entry]:
            return
        d = self._entry_device[entry]
        instructions.append(Free(self._entry_tensor[entry], d))
        if self._limited[d]:
            self._memory_left[d] += self._entry_bytes[entry]
            self._dirty_devices.add(d)
            self._dirty_links.update(self._links_to[d])

    def _start(self, now_s: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for d in sorted(self._dirty_devices):
            queue = self._device_queue[d]
            while self._device_slots[d] and (entry := queue.take(self._vertex_fits if self._limited[d] else None)) is not None:
                v = entry[1]
                self._device_slots[d] -= 1
                self._memory_left[d] -= self._vertex_bytes[v]
                self.vertex_start_s[v] = now_s
                instructions.append(StartVertex(v, d))
        for link in sorted(self._dirty_links):
            queue = self._link_queue[link]
            while self._link_slots[link] and (entry := queue.take(self._copy_fits if self.limited else None)) is not None:
                _, tensor, t = entry
                d = self._destination[t]
                self._link_slots[link] -= 1
                self._memory_left[d] -= self._entry_bytes[tensor]
                self.transfer_start_s[t] = now_s
                instructions.append(StartTransfer(t, tensor, self._source[t], d))
        self._dirty_devices.clear()
        self._dirty_links.clear()
        return instructions

    def _vertex_fits(self, entry: Entry) -> bool:
        return self._vertex_bytes[entry[1]] <= self._memory_left[self._device[entry[1]]]

    def _copy_fits(self, entry: Entry) -> bool:
        d = self._destination[entry[2]]
        return not self._limited[d] or self._entry_bytes[entry[1]] <= self._memory_left[d]

    def stuck(self) -> str:
        """The text of a deadlock message: which vertex waits, where, how much is resident and how much is needed."""
        graph, costs = self._graph, self._costs
        proof = never_fits(graph, costs)
        if proof is not None:
            return f"{graph.name}: out of memory with any assignment: {proof}; {MORE_MEMORY}"
        sent = [entry for queue in self._link_queue if (entry := queue.first()) is not None]
        for d, left in enumerate(self._memory_left):
            waiting = [(entry[1], self._vertex_bytes[entry[1]]) for entry in (self._device_queue[d].first(),) if entry is not None]
            waiting += [(int(graph.tensor_producer[entry[1]]), self._entry_bytes[entry[1]]) for entry in sent
                        if self._destination[entry[2]] == d]
            if waiting:
                (v, needed), used = waiting[0], costs.memory_bytes[d] - left
                return (f"{graph.name}: out of memory on device {costs.topology.device_names[d]!r}: vertex "
                        f"{graph.vertex_label(v)!r} needs {size_text(needed)}, {size_text(used)} of "
                        f"{size_text(costs.memory_bytes[d])} are resident and nothing that runs will free any; another assignment or "
                        f"order may fit: `place` with a longer budget (`budget_s`) looks for one")
        return f"{graph.name}: {self.remaining} vertices wait and none is queued"

    @property
    def times(self) -> Times:
        """Of the run so far; a later run does not change them."""
        return self.vertex_start_s, self.vertex_end_s, self.transfer_start_s, self.transfer_end_s

    def trace(self, device_kind: str = "virtual", times: Times | None = None) -> Trace:
        """A run as the dispatcher saw it. Args: times: of an earlier run; None: of this one."""
        work, plan = self._graph.work_vertices, self.transfers
        start_s, end_s, transfer_start_s, transfer_end_s = map(np.array, self.times if times is None else times)
        return Trace(work, np.array(self._device, np.int32)[work], start_s[work], end_s[work], plan.producer, plan.source,
                     plan.destination, transfer_start_s, transfer_end_s, self.rule, device_kind,
                     output=plan.tensor - self._graph.tensor_ptr[plan.producer], graph=self._graph, costs=self._costs)


def queue_keys(graph: DataflowGraph, costs: CostModel, assignment: Assignment, rule: str) -> np.ndarray | None:
    """float64 [N]: the queue keys of vertices, smallest first; None: by time.

    Raises:
      ConfigError: there is no such rule.
      AssignmentError: the rule is `order`, and the assignment has neither a priority nor an order.
    """
    if rule not in DISPATCH_RULES:
        raise field_error(ConfigError, "dispatch", "", "rule", f"one of {', '.join(DISPATCH_RULES)}", rule)
    if rule == "fifo":
        return None
    if rule == "b_level":
        return -b_levels(graph, costs).value_s
    if assignment.priority is not None:
        return assignment.priority
    if assignment.order is None:
        raise AssignmentError(f"{graph.name}: priority: expected a priority or an order for dispatch rule 'order', got neither; give the "
                              f"assignment a `priority` (a number for each vertex, smallest first), or use 'fifo' or 'b_level'")
    position = np.zeros(graph.num_vertices)
    position[assignment.order] = np.arange(assignment.order.size)
    return position


def _most_urgent(graph: DataflowGraph, keys: np.ndarray, plan: Transfers) -> np.ndarray:
    """float64: the queue key of each transfer, the smallest among the consumers at its destination."""
    crossing = np.flatnonzero(plan.of_edge >= 0)
    key = np.full(len(plan.tensor), np.inf)
    np.minimum.at(key, plan.of_edge[crossing], keys[graph.targets[crossing]])
    return key


def _grouped(keys: np.ndarray, values: np.ndarray, count: int) -> list[list[int]]:
    """Values by key, in order."""
    order = np.argsort(keys, kind="stable")
    ends = np.cumsum(np.bincount(keys, minlength=count)).tolist()
    ordered = values[order].tolist()
    return [ordered[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
