"""The simulator's rules compiled (Numba): makespans of many assignments at once, no trace."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from doppler_tf.assignment import DISPATCH_RULES, Assignment, check_devices
from doppler_tf.costs import CostModel, Noise
from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError, field_error
from doppler_tf.graph import DataflowGraph
from doppler_tf.ranks import b_levels
from doppler_tf.simulator import Simulator

_SERIAL_BATCH = 16


class FastSimulator:
    """Makespans of assignments of one graph, equal to `Simulator`'s to the last bit.

    The compiled part knows no memory limits: assignments that could reach one are handed to `Simulator`.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, dispatch: str = "fifo", noise: Noise | None = None):
        """Args: dispatch: `fifo`, `b_level` or `order`; noise: factors on the modelled times."""
        if dispatch not in DISPATCH_RULES:
            raise field_error(ConfigError, "dispatch", "", "rule", f"one of {', '.join(DISPATCH_RULES)}", dispatch)
        self._graph, self._costs, self._dispatch, self._noise = graph, costs, dispatch, noise
        self._rank = -b_levels(graph, costs).value_s if dispatch == "b_level" else None
        out, topology = graph.successors, costs.topology
        exec_s = costs.exec_s if noise is None else costs.exec_s * noise.vertex[:, None]
        factor = np.ones((1, 1)) if noise is None else noise.transfer
        incoming = np.bincount(graph.targets[graph.work_edges], minlength=graph.num_vertices).astype(np.int32)
        self._arrays = (out.ptr, out.vertex, costs.explicit_transfer_s[out.edge], costs.edge_bytes[out.edge], incoming,
                        graph.is_input, np.ascontiguousarray(exec_s), topology.latency_s, topology.bandwidth_bytes_per_s,
                        factor, costs.slots, -1 if topology.link_slots is None else topology.link_slots)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)

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
        risky = self._may_run_out(devices)
        chunks = np.array_split(np.flatnonzero(~risky), 1 if len(devices) < _SERIAL_BATCH else os.cpu_count() or 1)

        def run(rows: np.ndarray) -> None:
            makespan_s[rows] = _simulate_batch(devices[rows], priority if len(priority) == 1 else priority[rows],
                                               self._dispatch == "fifo", *self._arrays)

        list(map(run, chunks)) if len(chunks) == 1 else list(self._pool.map(run, chunks))
        for b in np.flatnonzero(risky).tolist():
            makespan_s[b] = self._limited(devices[b], None if orders is None else orders[b])
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

    def _may_run_out(self, devices: np.ndarray) -> np.ndarray:
        """bool [B]: whether keeping every tensor for ever would break some limit; if not, no limit can bind."""
        risky = np.zeros(len(devices), bool)
        if not self._costs.limited_memory:
            return risky
        graph, count = self._graph, self._costs.num_devices
        size = self._costs.output_bytes
        for b, device in enumerate(devices):
            work = graph.work_vertices
            pairs = np.concatenate([work.astype(np.int64) * count + device[work],
                                    graph.sources.astype(np.int64) * count + device[graph.targets]])
            pairs = np.unique(pairs)
            held = np.bincount(pairs % count, size[pairs // count], count)
            risky[b] = (held > self._costs.memory_bytes).any()
        return risky

    def _limited(self, device: np.ndarray, order: np.ndarray | None) -> float:
        assigned = np.where(self._graph.is_input, -1, device).astype(np.int32)
        try:
            simulator = Simulator(self._dispatch, self._noise)
            return simulator.execute(self._graph, self._costs, Assignment(assigned, order)).makespan_s
        except DeadlockError:
            return np.inf


@numba.njit(cache=True, nogil=True)
def _before(keys, ids, i, j):
    return keys[i] < keys[j] or (keys[i] == keys[j] and ids[i] < ids[j])


@numba.njit(cache=True, nogil=True)
def _swap(keys, ids, i, j):
    keys[i], keys[j] = keys[j], keys[i]
    ids[i], ids[j] = ids[j], ids[i]


@numba.njit(cache=True, nogil=True)
def _push(keys, ids, base, size, key, item):
    """Adds to the binary heap in [base, base + size), ordered by (key, id)."""
    i = size
    keys[base + i], ids[base + i] = key, item
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(keys, ids, base + i, base + parent):
            return
        _swap(keys, ids, base + i, base + parent)
        i = parent


@numba.njit(cache=True, nogil=True)
def _pop(keys, ids, base, size):
    """Removes the smallest entry of the heap in [base, base + size) and returns its id."""
    top = ids[base]
    last = size - 1
    keys[base], ids[base] = keys[base + last], ids[base + last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            return top
        if child + 1 < last and _before(keys, ids, base + child + 1, base + child):
            child += 1
        if not _before(keys, ids, base + child, base + i):
            return top
        _swap(keys, ids, base + child, base + i)
        i = child


@numba.njit(cache=True, nogil=True)
def _simulate_batch(devices, priority, fifo, ptr, vertex, explicit_s, edge_bytes, incoming, is_input, exec_s, latency_s,
                    bandwidth, factor, slots, link_slots):
    batch, count = devices.shape
    num_devices = len(slots)
    makespan = np.zeros(batch)
    missing = np.empty(count, np.int32)
    queue_base, queue_size = np.empty(num_devices, np.int64), np.empty(num_devices, np.int64)
    link_base = np.empty(num_devices * num_devices, np.int64)
    link_size = np.empty(num_devices * num_devices, np.int64)
    free, link_free = np.empty(num_devices, np.int64), np.empty(num_devices * num_devices, np.int64)
    queue_keys, queue_ids = np.empty(count), np.empty(count, np.int64)
    # An edge causes at most one transfer, so edges bound both the links' queues and the events in flight.
    room = len(vertex) + 1
    link_keys, link_ids = np.empty(room), np.empty(room, np.int64)
    event_keys, event_ids = np.empty(count + room), np.empty(count + room, np.int64)
    dirty_links = np.empty(num_devices * num_devices, np.int64)
    is_dirty = np.zeros(num_devices * num_devices, np.bool_)
    cost_to, seen = np.zeros(num_devices), np.full(num_devices, -1, np.int64)
    noisy = factor.shape[0] > 1
    for b in range(batch):
        device, rank = devices[b], priority[b if len(priority) > 1 else 0]
        queue_size[:], link_size[:], link_free[:] = 0, 0, link_slots
        free[:] = slots
        seen[:] = -1
        for v in range(count):
            if is_input[v]:
                continue
            missing[v] = incoming[v]
            queue_size[device[v]] += 1
            if link_slots < 0:
                continue
            for i in range(ptr[v], ptr[v + 1]):
                d = device[vertex[i]]
                if d != device[v] and seen[d] != v:
                    seen[d] = v
                    link_size[device[v] * num_devices + d] += 1
        base = 0
        for d in range(num_devices):
            queue_base[d], base = base, base + queue_size[d]
            queue_size[d] = 0
        base = 0
        for k in range(num_devices * num_devices):
            link_base[k], base = base, base + link_size[k]
            link_size[k] = 0
        now, events = 0.0, 0
        for v in range(count):
            if not is_input[v] and missing[v] == 0:
                d = device[v]
                _push(queue_keys, queue_ids, queue_base[d], queue_size[d], now if fifo else rank[v], v)
                queue_size[d] += 1
        seen[:] = -1
        while True:
            num_dirty, sent = 0, 0
            # 1. All that ends at this instant.
            while events and event_keys[0] == now:
                item = _pop(event_keys, event_ids, 0, events)
                events -= 1
                if item < count:
                    v = item
                    home = device[v]
                    free[home] += 1
                    for i in range(ptr[v], ptr[v + 1]):
                        w = vertex[i]
                        d = device[w]
                        if d == home:
                            missing[w] -= 1
                            if missing[w] == 0:
                                _push(queue_keys, queue_ids, queue_base[d], queue_size[d], now if fifo else rank[w], w)
                                queue_size[d] += 1
                            continue
                        cost = explicit_s[i]
                        if np.isnan(cost):
                            cost = latency_s[home, d] + edge_bytes[i] / bandwidth[home, d]
                        if seen[d] != v:
                            seen[d], cost_to[d] = v, cost
                        elif cost > cost_to[d]:
                            cost_to[d] = cost
                    for d in range(num_devices):
                        if seen[d] != v:
                            continue
                        code = count + v * num_devices + d
                        if link_slots < 0:
                            # Never waits, but starts only after all completions of this instant: its end may be this instant too.
                            link_keys[sent] = now + (cost_to[d] * factor[v, d] if noisy else cost_to[d])
                            link_ids[sent] = code
                            sent += 1
                        else:
                            k = home * num_devices + d
                            _push(link_keys, link_ids, link_base[k], link_size[k], now if fifo else rank[v], code)
                            link_size[k] += 1
                            if not is_dirty[k]:
                                is_dirty[k] = True
                                dirty_links[num_dirty] = k
                                num_dirty += 1
                else:
                    p, d = (item - count) // num_devices, (item - count) % num_devices
                    for i in range(ptr[p], ptr[p + 1]):
                        w = vertex[i]
                        if device[w] == d:
                            missing[w] -= 1
                            if missing[w] == 0:
                                _push(queue_keys, queue_ids, queue_base[d], queue_size[d], now if fifo else rank[w], w)
                                queue_size[d] += 1
                    if link_slots >= 0:
                        k = device[p] * num_devices + d
                        link_free[k] += 1
                        if not is_dirty[k]:
                            is_dirty[k] = True
                            dirty_links[num_dirty] = k
                            num_dirty += 1
            # 2. All that can start.
            for d in range(num_devices):
                while free[d] and queue_size[d]:
                    v = _pop(queue_keys, queue_ids, queue_base[d], queue_size[d])
                    queue_size[d] -= 1
                    free[d] -= 1
                    _push(event_keys, event_ids, 0, events, now + exec_s[v, d], v)
                    events += 1
            for j in range(sent):
                _push(event_keys, event_ids, 0, events, link_keys[j], link_ids[j])
                events += 1
            for j in range(num_dirty):
                k = dirty_links[j]
                is_dirty[k] = False
                source, d = k // num_devices, k % num_devices
                while link_free[k] and link_size[k]:
                    code = _pop(link_keys, link_ids, link_base[k], link_size[k])
                    link_size[k] -= 1
                    link_free[k] -= 1
                    p = (code - count) // num_devices
                    cost = -1.0
                    for i in range(ptr[p], ptr[p + 1]):
                        if device[vertex[i]] == d:
                            if np.isnan(explicit_s[i]):
                                cost = max(cost, latency_s[source, d] + edge_bytes[i] / bandwidth[source, d])
                            else:
                                cost = max(cost, explicit_s[i])
                    _push(event_keys, event_ids, 0, events, now + (cost * factor[p, d] if noisy else cost), code)
                    events += 1
            if not events:
                break
            now = event_keys[0]
        makespan[b] = now
    return makespan
