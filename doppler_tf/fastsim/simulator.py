"""Simulates many assignments of one graph at once, on all cores."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from doppler_tf.errors import AssignmentError, ConfigError, field_error
from doppler_tf.fastsim import free_links, queued_links
from doppler_tf.fastsim.prepared import Prepared, may_run_short
from doppler_tf.fastsim.queues import edge_records
from doppler_tf.graph.costs import CostModel, Noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.any_order import always_fits
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment, check_devices, runnable
from doppler_tf.schedule.dispatch import queue_keys
from doppler_tf.schedule.ranks import b_levels, least_levels

# The cores that this process may use, which may be fewer than the machine has.
_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_POOL = ThreadPoolExecutor(_THREADS, "fastsim")
# Below this many vertices and edges, passing rows to threads takes longer than simulating them.
_SERIAL_SIZE = 2_000
# Entries moved in sorted queues, per vertex and edge, before queues become heaps, which are slower at first.
_PATIENCE = 32
# Arguments for batches, whose simulations are never abandoned and record no waiting.
_COMPLETE = np.inf, np.empty(0), np.empty(0, np.int32), np.empty(0)


class FastSimulator:
    """Makespans of assignments of one graph, equal to `Simulator`'s to the last bit."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, dispatch: str = "fifo", noise: Noise | None = None,
                 patience: int | None = None):
        """Args:
          dispatch: `fifo`, `b_level` or `order`; noise: factors on the modelled times.
          patience: entries moved in sorted queues, by vertex and edge, before queues become heaps; None: 32. It changes no makespan.
            Where memory may run short, queues stay sorted arrays.
        """
        if dispatch not in DISPATCH_RULES:
            raise field_error(ConfigError, "dispatch", "", "rule", f"one of {', '.join(DISPATCH_RULES)}", dispatch)
        self._graph, self._costs, self._dispatch, self._noisy = graph, costs, dispatch, False
        out, into, topology = graph.successors, graph.predecessors, costs.topology
        rank = -b_levels(graph, costs).value_s if dispatch == "b_level" else np.zeros(graph.num_vertices)
        incoming = np.bincount(graph.targets[graph.work_edges], minlength=graph.num_vertices).astype(np.int32)
        incoming[graph.is_input] = -1
        item_bytes = np.concatenate([costs.output_bytes, costs.tensor_bytes])
        self._size = graph.num_vertices + graph.num_edges
        self._prepared = Prepared(
            priority=rank[None], fifo=dispatch == "fifo", patience=self._size * (_PATIENCE if patience is None else patience),
            ptr=out.ptr.astype(np.int32), edges=edge_records(graph, out, costs), maker=graph.tensor_producer, incoming=incoming,
            exec_s=np.ascontiguousarray(costs.exec_s),
            latency_s=np.where(topology.linked, topology.latency_s, 0.0), bandwidth=topology.bandwidth_bytes_per_s,
            partial=not topology.linked.all(),
            factor=np.ones((1, 1)), slots=costs.slots,
            link_slots=-1 if topology.link_slots is None else topology.link_slots, link_lane=topology.lanes,
            num_link_lanes=int(topology.lanes.max()) + 1, shared=topology.shares_cards,
            shares=np.empty((0, 0, 0)) if topology.shares is None else topology.shares,
            limited=not always_fits(graph, costs),
            in_ptr=into.ptr.astype(np.int32), in_tensor=graph.edge_tensor[into.edge], item_bytes=item_bytes,
            memory_bytes=costs.memory_bytes, results=graph.results,
            topological=np.empty(0, np.int32), least_tail=np.empty(0))
        if noise is not None:
            self._take(noise)

    def _take(self, noise: Noise) -> None:
        exec_s = np.ascontiguousarray(self._costs.exec_s * noise.vertex[:, None])
        self._noisy, self._prepared = True, self._prepared._replace(exec_s=exec_s, factor=noise.transfer)

    def under(self, noise: Noise) -> FastSimulator:
        """The same simulator with other factors on the modelled times."""
        other = copy.copy(self)
        other._take(noise)
        return other

    def makespans(self, devices: np.ndarray, orders: np.ndarray | None = None) -> np.ndarray:
        """Simulates a batch.

        Args:
          devices: int [B, N] device by vertex; values of inputs are ignored.
          orders: int [B, M], the work vertices in the order of choice; dispatch rule `order` needs them, other rules ignore them.

        Returns:
          float64 [B] seconds; infinity at a deadlock, on a device that cannot run a vertex and over a link that does not exist.

        Raises:
          AssignmentError: a device does not exist, or orders are missing for rule `order`.
        """
        if np.ndim(devices) != 2:
            raise AssignmentError(f"{self._graph.name}: device: expected shape [assignments, {self._graph.num_vertices}], got "
                                  f"{list(np.shape(devices))}")
        check_devices(self._graph, self._costs, np.asarray(devices))
        devices = np.ascontiguousarray(devices, np.int32)
        return self._run_all(devices, self._ordered(len(devices), orders))

    def _run_all(self, devices: np.ndarray, prepared: Prepared) -> np.ndarray:
        return np.where(runnable(self._graph, self._costs, devices), self._simulate_all(devices, prepared), np.inf)

    def _simulate_all(self, devices: np.ndarray, prepared: Prepared) -> np.ndarray:
        if len(devices) * self._size < _SERIAL_SIZE:
            return _run(devices, prepared)
        rows = np.array_split(np.arange(len(devices)), min(_THREADS, max(len(devices), 1)))
        return np.concatenate(list(_POOL.map(lambda r: _run(devices[r], _of_rows(prepared, r)), rows)))

    def makespans_of(self, assignments: Sequence[Assignment]) -> np.ndarray:
        """float64 [B]: seconds of assignments; under the rule `order` each by its own priority or order. Otherwise as `makespans`."""
        if any(a.after is not None or a.offload is not None for a in assignments):
            raise AssignmentError(f"{self._graph.name}: after, offload: expected assignments without, got one with a plan; use `simulate`")
        devices = np.stack([a.device for a in assignments])
        if self._dispatch != "order":
            return self.makespans(devices)
        check_devices(self._graph, self._costs, devices)
        keys = np.stack([queue_keys(self._graph, self._costs, a, "order") for a in assignments])
        return self._run_all(np.ascontiguousarray(devices, np.int32), self._prepared._replace(priority=keys))

    def starts_s(self, assignment: Assignment) -> np.ndarray | None:
        """float64 [N]: when each vertex starts (inputs: 0); None where the makespan is infinite. Rules and errors as in `makespans_of`."""
        devices = np.ascontiguousarray(assignment.device[None], np.int32)
        check_devices(self._graph, self._costs, devices)
        if not runnable(self._graph, self._costs, assignment.device):
            return None
        prepared = self._prepared
        if self._dispatch == "order":
            prepared = prepared._replace(priority=queue_keys(self._graph, self._costs, assignment, "order")[None])
        waited_for = np.empty(len(prepared.incoming) + len(prepared.maker) * len(prepared.slots) + 1, np.int32)
        begun_s = np.zeros(len(prepared.incoming))
        limited = prepared.limited and bool(may_run_short(devices, prepared)[0])
        makespan_s = _simulate(devices, prepared, limited, (np.inf, np.empty(0), waited_for, begun_s))
        return begun_s if np.isfinite(makespan_s[0]) else None

    def prepared(self, priority: np.ndarray | None = None) -> Prepared:
        """The argument of `prepared.makespan` and `prepared.makespan_bound` in compiled loops.

        Args: priority: float64 [N], for dispatch rule `order`; later changes to it take effect. Raises ConfigError if there is noise,
        because the bounds do not hold with it.
        """
        if self._noisy:
            raise ConfigError(f"{self._graph.name}: noise: expected none if simulations may be abandoned, got factors; leave it out")
        prepared = self._prepared if priority is None else self._prepared._replace(priority=priority[None])
        return prepared._replace(topological=self._graph.topological_order.astype(np.int32),
                                 least_tail=least_levels(self._graph, self._costs))

    def _ordered(self, batch: int, orders: np.ndarray | None) -> Prepared:
        """Prepared arrays with the assignments' own queue keys, if the dispatch rule is `order`."""
        if self._dispatch != "order":
            return self._prepared
        if orders is None:
            raise AssignmentError(f"{self._graph.name}: order: expected orders for dispatch rule 'order', got none")
        work = self._graph.work_vertices
        orders = np.asarray(orders)
        if orders.shape != (batch, work.size) or orders.dtype.kind not in "iu" or (np.sort(orders, axis=1) != work).any():
            raise AssignmentError(f"{self._graph.name}: order: expected for each of {batch} assignments all {work.size} vertices that are "
                                  f"not inputs, once each, got {orders.dtype} of shape {list(orders.shape)}")
        priority = np.zeros((batch, self._graph.num_vertices))
        np.put_along_axis(priority, np.asarray(orders, np.int64), np.arange(np.shape(orders)[1], dtype=np.float64)[None], axis=1)
        return self._prepared._replace(priority=priority)


def _of_rows(prepared: Prepared, rows: np.ndarray) -> Prepared:
    return prepared if len(prepared.priority) == 1 else prepared._replace(priority=prepared.priority[rows])


def _run(devices: np.ndarray, prepared: Prepared) -> np.ndarray:
    """Simulates a batch. Rows that cannot run short of memory are simulated without limits, which is faster."""
    if not prepared.limited:
        return _simulate(devices, prepared, limited=False)
    short = may_run_short(devices, prepared)
    if short.all() or not short.any():
        return _simulate(devices, prepared, limited=bool(short.any()))
    makespan_s = np.empty(len(devices))
    for limited, rows in ((True, short), (False, ~short)):
        makespan_s[rows] = _simulate(devices[rows], _of_rows(prepared, rows), limited)
    return makespan_s


def _simulate(devices: np.ndarray, prepared: Prepared, limited: bool, recording: tuple = _COMPLETE) -> np.ndarray:
    if limited or prepared.link_slots >= 0 or len(prepared.shares):
        return queued_links.simulate(devices, prepared, limited, *recording)
    return free_links.simulate(devices, prepared, *recording)
