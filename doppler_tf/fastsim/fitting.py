"""The first entry of a lane that fits, compiled: one tournament tree a lane, whose leaves are sorted by bytes.

A lane's leaves are all the tensors that may ever wait in it, smallest first; a node holds the first of those that wait below it, by
(key, index), or -1. What fits is then a prefix of the leaves, whose first entry is found in logarithmic time, in whatever order entries
come, wait and leave.
"""

from __future__ import annotations

import numba
import numpy as np

from doppler_tf.fastsim.compiled import compiled


@compiled
def may_run_short(devices, ptr, edges, incoming, output_bytes, memory_bytes):
    """bool [B]: whether all tensors that are ever on some device need more bytes than it has, which else no limit can bind."""
    batch, count = devices.shape
    num_devices = len(memory_bytes)
    held, seen, short = np.empty(num_devices), np.empty(num_devices, np.int64), np.zeros(batch, np.bool_)
    for b in range(batch):
        held[:], seen[:] = 0.0, -1
        for v in range(count):
            if incoming[v] >= 0:
                seen[devices[b, v]] = v
                held[devices[b, v]] += output_bytes[v]
            for i in range(ptr[v], ptr[v + 1]):
                d = devices[b, edges[i].vertex]
                if seen[d] != v:
                    seen[d] = v
                    held[d] += output_bytes[v]
        short[b] = (held > memory_bytes).any()
    return short


@numba.njit(nogil=True)
def _first(vertices, a, b):
    """The first of two that wait, -1 being none."""
    if a < 0 or b < 0:
        return max(a, b)
    if vertices[a].key == vertices[b].key:
        return min(a, b)
    return a if vertices[a].key < vertices[b].key else b


@numba.njit(nogil=True)
def wait_fitting(vertices, tree, lane, leaf, v):
    """Lets v wait at its leaf."""
    base, i = 2 * lane.base, lane.tail - lane.base + leaf
    while i > 0 and _first(vertices, tree[base + i], v) == v:
        tree[base + i] = v
        i >>= 1


@numba.njit(nogil=True)
def leave_fitting(vertices, tree, lane, leaf, v):
    """Takes v away from its leaf."""
    base, i = 2 * lane.base, lane.tail - lane.base + leaf
    tree[base + i] = -1
    i >>= 1
    while i > 0 and tree[base + i] == v:
        tree[base + i] = _first(vertices, tree[base + 2 * i], tree[base + 2 * i + 1])
        i >>= 1


@numba.njit(nogil=True)
def first_fitting(vertices, tree, members, lane, output_bytes, left):
    """The first that waits in a lane and has at most `left` bytes, -1 if there is none."""
    base, count = 2 * lane.base, lane.tail - lane.base
    if count == 0:
        return -1
    if tree[base + 1] < 0 or output_bytes[tree[base + 1]] <= left:
        return tree[base + 1]
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if output_bytes[members[lane.base + middle]] <= left:
            low = middle + 1
        else:
            high = middle
    begin, end, found = count, count + low, -1
    while begin < end:
        if begin & 1:
            found = _first(vertices, found, tree[base + begin])
            begin += 1
        if end & 1:
            end -= 1
            found = _first(vertices, found, tree[base + end])
        begin >>= 1
        end >>= 1
    return found


@numba.njit(nogil=True)
def plant(vertices, lanes, queue, tree, leaves, members, by_bytes, edges):
    """Gives every tensor its leaf in each lane in which it may wait, and moves what waits from the sorted queues to the trees.

    Args:
      lanes: LANE [D + D * D], devices, then links (source * D + destination); from now on [base, tail) are a lane's leaves.
      tree: int32 [2 * places], leaves: int32 [N, D] (of vertex v on its own device, of its copy to another), members: int32 [places].
      by_bytes: int32 [N], the vertices by output bytes.
    """
    num_devices = leaves.shape[1]
    tree[:], leaves[:] = -1, -1
    end = lanes.tail.copy()
    lanes.tail[:] = lanes.base
    for v in by_bytes:
        home = vertices[v].device
        if home < 0:
            continue
        _plant_one(lanes[home], members, leaves, v, home)
        for i in range(vertices[v].first, vertices[v].last):
            d = vertices[edges[i].vertex].device
            if leaves[v, d] < 0:
                _plant_one(lanes[num_devices + home * num_devices + d], members, leaves, v, d)
    for k in range(len(lanes)):
        d = k if k < num_devices else (k - num_devices) % num_devices
        for i in range(lanes[k].head, end[k]):
            v = queue[i].item
            wait_fitting(vertices, tree, lanes[k], leaves[v, d], v)


@numba.njit(nogil=True)
def _plant_one(lane, members, leaves, v, d):
    leaves[v, d] = lane.tail - lane.base
    members[lane.tail] = v
    lane.tail += 1
