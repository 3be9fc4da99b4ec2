"""Traces: which vertex and transfer ran where and when; memory over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.showing import ShowsItself

DEVICE_KINDS = ("virtual", "emulated", "tf")


@dataclass(frozen=True, eq=False, repr=False)
class Trace(ShowsItself):
    """The record of one run; times in seconds from the first dispatch.

    Attributes:
      vertex, device: int32 [M]; start_s, end_s: float64 [M], one row an execution.
      producer, source, destination: int32 [T]; transfer_start_s, transfer_end_s: float64 [T], one row a transfer.
      output: int32 [T], which output of its producer a transfer carries; 0 unless given.
      dispatch: the rule that ordered the queues (`fifo`, `b_level`, `order`, or `levels` for the synchronous engine).
      device_kind: `virtual` (simulated clock), `emulated` (wall clock, modelled times) or `tf` (real kernels).
      log: the same run as the dispatcher saw it (when it gave an instruction, when it heard of the end), where a wall clock
        makes the two differ.
      peak_bytes: float64 [D], from a real run: the most bytes ever reserved on each device, in the graph's sizes, counted while it
        ran. `peak_bytes(graph, costs, assignment, trace.log)` predicts them.
      peak_tensor_bytes: float64 [D], from a run of real kernels: the most bytes of tensors ever held on each device, in the tensors'
        own sizes, fetched outputs and kept inputs included; a kernel's scratch memory is not. Where no limit can bind, what logical
        CPUs share at an instant is counted before what goes at that instant, so that it may exceed `peak_bytes`.
      lost: the devices that were lost before this run, which is the whole graph's on the others.
      assignment: where devices were lost, what ran instead of the assignment asked for; None otherwise.
      graph, costs: of what ran; needed to show it.
    """

    vertex: np.ndarray
    device: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    producer: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    transfer_start_s: np.ndarray
    transfer_end_s: np.ndarray
    dispatch: str = "fifo"
    device_kind: str = "virtual"
    log: Trace | None = None
    peak_bytes: np.ndarray | None = None
    peak_tensor_bytes: np.ndarray | None = None
    lost: tuple[int, ...] = ()
    assignment: Assignment | None = None
    output: np.ndarray | None = None
    graph: DataflowGraph | None = None
    costs: CostModel | None = None

    def __post_init__(self):
        if self.output is None:
            object.__setattr__(self, "output", np.zeros(len(self.producer), np.int32))

    def tensor(self, graph: DataflowGraph) -> np.ndarray:
        """int64 [T]: the tensor of `graph` that each transfer carries."""
        return graph.tensor_ptr[self.producer].astype(np.int64) + self.output

    @property
    def in_plan_order(self) -> np.ndarray:
        """int64 [T]: the rows of the transfers in the order of `plan_transfers`."""
        return np.lexsort((self.destination, self.output, self.producer))

    @property
    def makespan_s(self) -> float:
        """From the first dispatch to the end of the last event."""
        return float(max(self.end_s.max(initial=0.0), self.transfer_end_s.max(initial=0.0)))


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """Bytes in use on one device: `used_bytes[i]` from `time_s[i]` on."""

    time_s: np.ndarray
    used_bytes: np.ndarray


def memory_profiles(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[MemoryProfile]:
    """Memory in use by device, from a complete trace, by the rules of memory.

    An output is reserved when its vertex starts, a copy when its transfer starts, inputs at time 0 where they are used; all are freed after
    the last use there (a consumer or an outgoing transfer). Results and outputs that nothing uses stay. A load hands its tensor on: its
    output takes the place of its input when it ends.
    """
    count, device = costs.num_devices, assignment.device.astype(np.int64)
    start, end = np.zeros(graph.num_vertices), np.zeros(graph.num_vertices)
    start[trace.vertex], end[trace.vertex] = trace.start_s, trace.end_s
    sent, maker = trace.tensor(graph), graph.tensor_producer
    made = np.flatnonzero(~graph.is_input[maker])
    used = graph.edge_tensor.astype(np.int64) * count + device[graph.targets]
    from_input = used[graph.is_input[graph.sources]]
    # A tensor on a device has the key tensor * D + device.
    keys, inverse = np.unique(np.concatenate([made * count + device[maker[made]], sent * count + trace.destination, from_input]),
                              return_inverse=True)
    begun, last_use = np.zeros(len(keys)), np.full(len(keys), -np.inf)
    reserved = start if costs.topology.host_device is None else np.where(device == costs.topology.host_device, end, start)
    begun[inverse] = np.concatenate([reserved[maker[made]], trace.transfer_start_s, np.zeros(len(from_input))])
    uses = np.concatenate([used, sent * count + trace.source])
    at = np.minimum(np.searchsorted(keys, uses), len(keys) - 1)
    held = keys[at] == uses
    np.maximum.at(last_use, at[held], np.concatenate([end[graph.targets], trace.transfer_end_s])[held])
    last_use[np.isin(keys, graph.results * count + device[maker[graph.results]])] = -np.inf
    size, on = costs.tensor_bytes[keys // count], keys % count
    freed = last_use >= 0
    return [_profile(np.concatenate([begun[on == d], last_use[freed & (on == d)]]),
                     np.concatenate([size[on == d], -size[freed & (on == d)]])) for d in range(count)]


def peak_bytes(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> np.ndarray:
    """float64 [D]: the most bytes in use on each device, by the rules of memory, from a complete trace."""
    return np.array([profile.used_bytes.max() for profile in memory_profiles(graph, costs, assignment, trace)])


def arrivals(graph: DataflowGraph, trace: Trace) -> dict[tuple[int, int], float]:
    """When the copy of a tensor was on a device, by (tensor, device)."""
    copies = zip(trace.tensor(graph).tolist(), trace.destination.tolist(), strict=True)
    return dict(zip(copies, trace.transfer_end_s.tolist(), strict=True))


def sums_over_time(time_s: np.ndarray, change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The instants at which something changes, and the sum of all changes up to each of them."""
    instants, inverse = np.unique(time_s, return_inverse=True)
    return instants, np.cumsum(np.bincount(inverse, change))


def by_key(keys: np.ndarray) -> dict[int, np.ndarray]:
    """Positions by key; keys and positions in order."""
    order = np.argsort(keys, kind="stable")
    return {int(keys[members[0]]): members for members in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if members.size}


def by_link(source: np.ndarray, destination: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Positions by (source, destination) of every link that occurs; links and positions in order."""
    devices = int(destination.max(initial=0)) + 1
    return {divmod(key, devices): members for key, members in by_key(source.astype(np.int64) * devices + destination).items()}


def beside_transfers(trace: Trace) -> Iterator[tuple[int, int, int, np.ndarray, np.ndarray]]:
    """How long executions ran beside the transfers of each used link.

    Yields:
      The link's source and destination; 0 for the executions at its source, 1 for those at its destination; their rows; float64, the
      seconds of each during which transfers of the link went on. Two transfers at once count twice.
    """
    for (source, destination), members in by_link(trace.source, trace.destination).items():
        begin, end = (np.sort(times[members]) for times in (trace.transfer_start_s, trace.transfer_end_s))
        for side, device in enumerate((source, destination)):
            rows = np.flatnonzero(trace.device == device)
            start_s, end_s = trace.start_s[rows], trace.end_s[rows]
            yield source, destination, side, rows, sum(sign * (_since(times, end_s) - _since(times, start_s))
                                                       for times, sign in ((begin, 1), (end, -1)))


def woken(trace: Trace) -> tuple[np.ndarray, dict[int, float]]:
    """What messages between devices that share tensors take: a transfer ends when it starts, but the thread of a device that waited for it
    sleeps and must be woken.

    Returns:
      float64 [M], the seconds from the instruction to the start of each execution that such a message woke, else 0; and the same by
      transfer.
    """
    log, waited_s, messages = trace.log or trace, np.zeros(trace.vertex.size), dict[int, float]()
    instant = np.flatnonzero(log.transfer_start_s == log.transfer_end_s)
    arrived = dict(zip(zip(log.destination[instant].tolist(), log.transfer_end_s[instant].tolist(), strict=True), instant.tolist(),
                       strict=True))
    for d in set(log.device.tolist()):
        rows = np.flatnonzero(log.device == d)
        rows = rows[np.argsort(log.start_s[rows], kind="stable")]
        idle = np.append(True, log.start_s[rows[1:]] > np.maximum.accumulate(log.end_s[rows])[:-1])
        for row in rows[idle].tolist():
            t = arrived.get((d, float(log.start_s[row])))
            if t is not None:
                messages[t] = waited_s[row] = float(trace.start_s[row] - log.start_s[row])
    return waited_s, messages


def _since(times: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """float64 [n]: the seconds from each of the sorted times before `at_s` to it, together."""
    before = np.searchsorted(times, at_s)
    return before * at_s - np.append(0.0, np.cumsum(times))[before]


def _profile(time_s: np.ndarray, change_bytes: np.ndarray) -> MemoryProfile:
    """Net change at each instant, summed up: at one instant what ends is freed before what starts is reserved."""
    if not time_s.size:
        return MemoryProfile(np.zeros(1), np.zeros(1))
    return MemoryProfile(*sums_over_time(time_s, change_bytes))
