"""The simulator's rules compiled (Numba): makespans of many assignments at once, no trace."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from doppler_tf.assignment import DISPATCH_RULES, check_devices
from doppler_tf.costs import CostModel, Noise
from doppler_tf.errors import AssignmentError, ConfigError, field_error
from doppler_tf.graph import DataflowGraph
from doppler_tf.ranks import b_levels

_SERIAL_BATCH = 16
_THREADS = os.cpu_count() or 1
_POOL = ThreadPoolExecutor(_THREADS, "fastsim")


class FastSimulator:
    """Makespans of assignments of one graph, equal to `Simulator`'s to the last bit."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, dispatch: str = "fifo", noise: Noise | None = None):
        """Args: dispatch: `fifo`, `b_level` or `order`; noise: factors on the modelled times."""
        if dispatch not in DISPATCH_RULES:
            raise field_error(ConfigError, "dispatch", "", "rule", f"one of {', '.join(DISPATCH_RULES)}", dispatch)
        self._graph, self._costs, self._dispatch = graph, costs, dispatch
        self._rank = -b_levels(graph, costs).value_s if dispatch == "b_level" else None
        out, into, topology = graph.successors, graph.predecessors, costs.topology
        exec_s = costs.exec_s if noise is None else costs.exec_s * noise.vertex[:, None]
        factor = np.ones((1, 1)) if noise is None else noise.transfer
        # A device holds each tensor once at most: where all of them fit, no limit can ever bind.
        self._limited = bool((costs.output_bytes.sum() > costs.memory_bytes).any())
        incoming = np.bincount(graph.targets[graph.work_edges], minlength=graph.num_vertices).astype(np.int32)
        self._arrays = (out.ptr, out.vertex, costs.explicit_transfer_s[out.edge], costs.edge_bytes[out.edge], into.ptr, into.vertex,
                        incoming, graph.is_input, np.ascontiguousarray(exec_s), topology.latency_s, topology.bandwidth_bytes_per_s,
                        factor, costs.slots, -1 if topology.link_slots is None else topology.link_slots, costs.output_bytes,
                        costs.memory_bytes)

    def makespans(self, devices: np.ndarray, orders: np.ndarray | None = None) -> np.ndarray:
        """Simulates a batch.

        Args:
          devices: int [B, N] device by vertex, anything for inputs.
          orders: int [B, M], the work vertices as chosen; needed by dispatch rule `order`, else ignored.

        Returns:
          float64 [B] seconds; infinity where memory runs out for good.

        Raises:
          AssignmentError: a device that does not exist, or no orders for rule `order`.
        """
        check_devices(self._graph, self._costs, np.asarray(devices))
        devices = np.ascontiguousarray(devices, np.int32)
        priority = self._priorities(len(devices), orders)
        makespan_s = np.empty(len(devices))
        chunks = np.array_split(np.arange(len(devices)), 1 if len(devices) < _SERIAL_BATCH else _THREADS)

        def run(rows: np.ndarray) -> None:
            makespan_s[rows] = _simulate_batch(devices[rows], priority if len(priority) == 1 else priority[rows],
                                               self._dispatch == "fifo", self._limited, *self._arrays)

        list(map(run, chunks)) if len(chunks) == 1 else list(_POOL.map(run, chunks))
        return makespan_s

    def _priorities(self, batch: int, orders: np.ndarray | None) -> np.ndarray:
        if self._rank is not None:
            return self._rank[None]
        if self._dispatch == "fifo":
            return np.zeros((1, self._graph.num_vertices))
        if orders is None:
            raise AssignmentError(f"{self._graph.name}: order: expected orders for dispatch rule 'order', got none")
        priority = np.zeros((batch, self._graph.num_vertices))
        np.put_along_axis(priority, np.asarray(orders, np.int64), np.arange(np.shape(orders)[1], dtype=np.float64)[None], axis=1)
        return priority


@numba.njit(cache=True, nogil=True)
def _enqueue(keys, ids, head, tail, key, item):
    """Inserts into the sorted queue [head, tail), from its end: under `fifo` keys come in order and only ties move."""
    i = tail
    while i > head and (keys[i - 1] > key or (keys[i - 1] == key and ids[i - 1] > item)):
        keys[i], ids[i] = keys[i - 1], ids[i - 1]
        i -= 1
    keys[i], ids[i] = key, item


@numba.njit(cache=True, nogil=True)
def _take(keys, ids, head, at):
    """Removes the entry at `at` by moving those before it up; the queue then begins at head + 1."""
    item = ids[at]
    for i in range(at, head, -1):
        keys[i], ids[i] = keys[i - 1], ids[i - 1]
    return item


@numba.njit(cache=True, nogil=True)
def _push(times, items, size, time, item):
    """Adds an event to the binary heap of what runs; the order among equal times does not matter."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time:
            break
        times[i], items[i] = times[parent], items[parent]
        i = parent
    times[i], items[i] = time, item


@numba.njit(cache=True, nogil=True)
def _pop(times, items, size):
    """Removes the earliest event and returns its item."""
    top = items[0]
    last = size - 1
    time, item = times[last], items[last]
    i, child = 0, 1
    while child < last:
        if child + 1 < last and times[child + 1] < times[child]:
            child += 1
        if time <= times[child]:
            break
        times[i], items[i] = times[child], items[child]
        i, child = child, 2 * child + 1
    times[i], items[i] = time, item
    return top


@numba.njit(cache=True, nogil=True)
def _simulate_batch(devices, priority, fifo, limited, ptr, consumer, explicit_s, edge_bytes, in_ptr, producer, incoming, is_input,
                    exec_s, latency_s, bandwidth, factor, slots, link_slots, output_bytes, memory_bytes):
    batch, count = devices.shape
    num_devices = len(slots)
    num_links = num_devices * num_devices
    makespan = np.zeros(batch)
    missing = np.empty(count, np.int32)
    head, tail = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    link_head, link_tail = np.empty(num_links, np.int64), np.empty(num_links, np.int64)
    free, link_free = np.empty(num_devices, np.int64), np.empty(num_links, np.int64)
    queue_keys, queue_ids = np.empty(count), np.empty(count, np.int64)
    # An edge causes at most one transfer, so edges bound both the links' queues and the transfers in flight.
    room = len(consumer) + 1
    link_keys, link_ids = np.empty(room), np.empty(room, np.int64)
    times, items = np.empty(count + room), np.empty(count + room, np.int64)
    ready, instant, coming = np.empty(count), np.empty(count, np.int64), np.empty(count, np.int64)
    cost_to, seen = np.zeros(num_devices), np.empty(num_devices, np.int64)
    memory_left, uses = memory_bytes.copy(), np.zeros((count if limited else 1, num_devices), np.int32)
    noisy, queued_links = factor.shape[0] > 1, limited or link_slots >= 0
    for b in range(batch):
        device, rank = devices[b], priority[b if len(priority) > 1 else 0]
        # Regions of the queues: as many places as vertices on a device, as transfers on a link.
        tail[:], link_tail[:], seen[:] = 0, 0, -1
        if limited:
            memory_left[:], uses[:] = memory_bytes, 0
        for v in range(count):
            home = device[v]
            if is_input[v]:
                if limited:
                    for i in range(ptr[v], ptr[v + 1]):
                        d = device[consumer[i]]
                        if uses[v, d] == 0:
                            memory_left[d] -= output_bytes[v]
                        uses[v, d] += 1
                continue
            missing[v] = incoming[v]
            tail[home] += 1
            if queued_links:
                for i in range(ptr[v], ptr[v + 1]):
                    d = device[consumer[i]]
                    if limited:
                        uses[v, d] += 1
                    if d != home and seen[d] != v:
                        seen[d] = v
                        link_tail[home * num_devices + d] += 1
                        if limited:
                            uses[v, home] += 1
        base = 0
        for d in range(num_devices):
            base, tail[d], head[d] = base + tail[d], base, base
            free[d] = slots[d]
        base = 0
        for k in range(num_links if queued_links else 0):
            base, link_tail[k], link_head[k] = base + link_tail[k], base, base
            link_free[k] = link_slots if link_slots >= 0 else room
        if not queued_links:
            ready[:], instant[:] = 0.0, -1
        now, running, left, turn = 0.0, 0, 0, 0
        for v in range(count):
            if not is_input[v]:
                left += 1
                if missing[v] == 0:
                    _enqueue(queue_keys, queue_ids, head[device[v]], tail[device[v]], now if fifo else rank[v], v)
                    tail[device[v]] += 1
        seen[:] = -1
        while True:
            later = 0
            turn += 1
            # 1. All that ends at this instant.
            while running and times[0] == now:
                item = _pop(times, items, running)
                running -= 1
                if item < count:
                    v = item
                    home = device[v]
                    free[home] += 1
                    left -= 1
                    for i in range(ptr[v], ptr[v + 1]):
                        d = device[consumer[i]]
                        if d != home:
                            cost = explicit_s[i]
                            if np.isnan(cost):
                                cost = latency_s[home, d] + edge_bytes[i] / bandwidth[home, d]
                            if seen[d] != v:
                                seen[d], cost_to[d] = v, cost
                                if queued_links:
                                    k = home * num_devices + d
                                    _enqueue(link_keys, link_ids, link_head[k], link_tail[k], now if fifo else rank[v], v)
                                    link_tail[k] += 1
                            elif cost > cost_to[d]:
                                cost_to[d] = cost
                    for i in range(ptr[v], ptr[v + 1]):
                        w = consumer[i]
                        d = device[w]
                        if d != home:
                            if queued_links:
                                continue
                            # Links never wait: the arrival is known, and the last one makes w ready. What is sent and arrives at this
                            # very instant comes only after what starts now.
                            arrival = now + (cost_to[d] * factor[v, d] if noisy else cost_to[d])
                            ready[w] = max(ready[w], arrival)
                            if arrival == now:
                                instant[w] = turn
                        missing[w] -= 1
                        if missing[w] > 0:
                            continue
                        if queued_links or (ready[w] <= now and instant[w] != turn):
                            _enqueue(queue_keys, queue_ids, head[d], tail[d], now if fifo else rank[w], w)
                            tail[d] += 1
                        else:
                            coming[later] = w
                            later += 1
                    if limited:
                        for i in range(in_ptr[v], in_ptr[v + 1]):
                            u = producer[i]
                            uses[u, home] -= 1
                            if uses[u, home] == 0:
                                memory_left[home] += output_bytes[u]
                elif not queued_links:
                    w = item - count
                    d = device[w]
                    _enqueue(queue_keys, queue_ids, head[d], tail[d], now if fifo else rank[w], w)
                    tail[d] += 1
                else:
                    p, d = (item - count) // num_devices, (item - count) % num_devices
                    for i in range(ptr[p], ptr[p + 1]):
                        w = consumer[i]
                        if device[w] == d:
                            missing[w] -= 1
                            if missing[w] == 0:
                                _enqueue(queue_keys, queue_ids, head[d], tail[d], now if fifo else rank[w], w)
                                tail[d] += 1
                    link_free[device[p] * num_devices + d] += 1
                    if limited:
                        uses[p, device[p]] -= 1
                        if uses[p, device[p]] == 0:
                            memory_left[device[p]] += output_bytes[p]
            # 2. All that can start: devices, then links.
            for d in range(num_devices):
                at = head[d]
                while free[d] and at < tail[d]:
                    if limited and output_bytes[queue_ids[at]] > memory_left[d]:
                        at += 1
                        continue
                    v = _take(queue_keys, queue_ids, head[d], at)
                    head[d] += 1
                    at += 1
                    free[d] -= 1
                    memory_left[d] -= output_bytes[v]
                    _push(times, items, running, now + exec_s[v, d], v)
                    running += 1
            for j in range(later):
                _push(times, items, running, max(ready[coming[j]], now), count + coming[j])
                running += 1
            for k in range(num_links if queued_links else 0):
                at = link_head[k]
                while link_free[k] and at < link_tail[k]:
                    source, d = k // num_devices, k % num_devices
                    p = link_ids[at]
                    if limited and output_bytes[p] > memory_left[d]:
                        at += 1
                        continue
                    _take(link_keys, link_ids, link_head[k], at)
                    link_head[k] += 1
                    at += 1
                    link_free[k] -= 1
                    memory_left[d] -= output_bytes[p]
                    longest = -1.0
                    for i in range(ptr[p], ptr[p + 1]):
                        if device[consumer[i]] == d:
                            cost = explicit_s[i]
                            if np.isnan(cost):
                                cost = latency_s[source, d] + edge_bytes[i] / bandwidth[source, d]
                            longest = max(longest, cost)
                    _push(times, items, running, now + (longest * factor[p, d] if noisy else longest), count + p * num_devices + d)
                    running += 1
            if not running:
                break
            now = times[0]
        makespan[b] = now if left == 0 else np.inf
    return makespan
