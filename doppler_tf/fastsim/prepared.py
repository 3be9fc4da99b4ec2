"""A graph and its costs as arrays for compiled code, and the functions that compiled loops call for one assignment at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim import free_links, queued_links
from doppler_tf.fastsim.compiled import compiled, inner
from doppler_tf.fastsim.queues import edge_cost

_simulate_free, _simulate_queued = free_links.simulate, queued_links.simulate


class Prepared(NamedTuple):
    """The inputs of a simulation except the assignment.

    Attributes:
      priority: float64 [1 or B, N], queue keys unless `fifo`.
      patience: queues start as sorted arrays. After this many entries were moved in one simulation, they become heaps, unless memory
        may run short.
      ptr: int32 [N + 1], edges: EDGE [E], by producer, then by tensor; maker: int32 [T], the producer of each tensor.
      incoming: int32 [N], edges from work vertices, -1 for inputs.
      exec_s: float64 [N, D]; latency_s, bandwidth: float64 [D, D], 0 where there is no link; partial: whether a link is missing; factor:
        float64 [N, D] on transfers, or [1, 1]; slots: int32 [D].
      link_slots: -1 if links never wait; link_lane: int32 [D, D], the lane of each link, counted from 0; num_link_lanes: how many of these
        there are; shared: whether links share lanes; shares: float64 [2, D, D], what transfers take from sources and destinations, or
        [0, 0, 0]: nothing.
      limited: whether memory can run short in some assignment.
      in_ptr: int32 [N + 1], in_tensor: int32 [E], by consumer.
      item_bytes: float64 [N + T], of all outputs of each vertex, then of each tensor.
      memory_bytes: float64 [D]; results: int32, the tensors that stay.
      topological: int32 [N], vertices; least_tail: float64 [N], a lower bound of `tail` over all assignments. Both are empty for batches,
        which need no bounds.
    """

    priority: np.ndarray
    fifo: bool
    patience: int
    ptr: np.ndarray
    edges: np.ndarray
    maker: np.ndarray
    incoming: np.ndarray
    exec_s: np.ndarray
    latency_s: np.ndarray
    bandwidth: np.ndarray
    partial: bool
    factor: np.ndarray
    slots: np.ndarray
    link_slots: int
    link_lane: np.ndarray
    num_link_lanes: int
    shared: bool
    shares: np.ndarray
    limited: bool
    in_ptr: np.ndarray
    in_tensor: np.ndarray
    item_bytes: np.ndarray
    memory_bytes: np.ndarray
    results: np.ndarray
    topological: np.ndarray
    least_tail: np.ndarray


@inner(_nrt=True)
def held_bytes(device, p):
    """float64 [D]: the bytes of all tensors that are ever on each device. Args: device: int32 [N]; p: Prepared."""
    ptr, edges, incoming, item_bytes, count = p.ptr, p.edges, p.incoming, p.item_bytes, len(device)
    held, seen = np.zeros(len(p.slots)), np.full(len(p.slots), -1)
    for v in range(count):
        home = device[v] if incoming[v] >= 0 else -1
        if home >= 0:
            held[home] += item_bytes[v]
        for i in range(ptr[v], ptr[v + 1]):
            d, tensor = device[edges[i].vertex], edges[i].tensor
            if d != home and seen[d] != tensor:
                seen[d] = tensor
                held[d] += item_bytes[count + tensor]
    return held


@inner
def missing_links(device, p):
    """How many edges cross between devices without a link. Args: device: int32 [N]; p: Prepared."""
    count = 0
    if p.partial:
        for v in range(len(device)):
            if p.incoming[v] >= 0:
                for i in range(p.ptr[v], p.ptr[v + 1]):
                    count += p.bandwidth[device[v], device[p.edges[i].vertex]] == 0.0
    return count


@compiled
def may_run_short(devices, p):
    """bool [B]: whether the tensors that are ever on some device exceed its memory together. If not, no limit can bind."""
    short = np.zeros(len(devices), np.bool_)
    for b in range(len(devices)):
        short[b] = (held_bytes(devices[b], p) > p.memory_bytes).any()
    return short


@compiled  # walks call it from Python, too
def makespan_bound(devices, p, limit_s, tail):
    """A lower bound of the makespan of `devices` (int32 [1, N]) without simulation: the longest path, or the work of a device.

    Args:
      p: Prepared.
      limit_s: the computation stops when the bound exceeds this.
      tail: float64 [N], filled with the least seconds from a vertex's start to the end of everything that depends on it, unless it stops.
    """
    load = np.zeros(len(p.slots))
    bound_s = 0.0
    for j in range(len(p.topological) - 1, -1, -1):
        v = p.topological[j]
        if p.incoming[v] < 0:
            continue
        home, after_s = devices[0, v], 0.0
        for i in range(p.ptr[v], p.ptr[v + 1]):
            w = p.edges[i].vertex
            d, rest_s = devices[0, w], tail[w]
            if d != home:
                rest_s += edge_cost(p.edges[i].cost, home, d, p.latency_s, p.bandwidth)
            after_s = max(after_s, rest_s)
        tail[v] = p.exec_s[v, home] + after_s
        load[home] += p.exec_s[v, home] / p.slots[home]
        bound_s = max(bound_s, tail[v], load[home])
        if bound_s > limit_s:
            break
    return bound_s


@inner(inline="always")  # otherwise Numba would also compile its long code separately
def makespan(devices, p, limit_s, tail, waited_for, begun_s):
    """The makespan of `devices` (int32 [1, N]); infinity at a deadlock and without a link; if it must exceed `limit_s`, a bound above it.

    Args: p: Prepared; tail: float64 [N]; waited_for: int32 [N + T * D + 1] or [0], begun_s: float64 [N] or [0], see
    `queued_links.simulate`.
    """
    if missing_links(devices[0], p):
        return np.inf
    limited = p.limited and may_run_short(devices, p)[0]
    if limited or p.link_slots >= 0 or len(p.shares):
        return _simulate_queued(devices, p, limited, limit_s, tail, waited_for, begun_s)[0]
    return _simulate_free(devices, p, limit_s, tail, waited_for, begun_s)[0]
