"""Compiled search for the first entry of a lane that fits into the free memory, with one tournament tree per lane.

A lane's leaves are all tensors that may ever wait in it, sorted by bytes. A node holds the first waiting tensor below it, by (key, index),
or -1. The tensors that fit are a prefix of the leaves, whose first waiting tensor is found in logarithmic time. Tensors may enter and leave
in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np


class Trees(NamedTuple):
    """The trees of all lanes; `places` is the number of leaves of all lanes together.

    Attributes:
      nodes: int32 [2 * places]; members: int32 [places], the tensor at each leaf.
      leaves: int32 [N, D], the leaf of vertex v in the lane of its own device, and of its copy in the lane of the link to another.
    """

    nodes: np.ndarray
    members: np.ndarray
    leaves: np.ndarray


@numba.njit(nogil=True)
def _first(vertices, a, b):
    """The first of two waiting tensors; -1 stands for none."""
    if a < 0 or b < 0:
        return max(a, b)
    if vertices[a].key == vertices[b].key:
        return min(a, b)
    return a if vertices[a].key < vertices[b].key else b


@numba.njit(nogil=True)
def wait_in_tree(trees, vertices, lane, v, d):
    """Adds v at its leaf, where it waits to start on device d or to be sent to it."""
    nodes, base, i = trees.nodes, 2 * lane.base, lane.tail - lane.base + trees.leaves[v, d]
    while i > 0 and _first(vertices, nodes[base + i], v) == v:
        nodes[base + i] = v
        i >>= 1


@numba.njit(nogil=True)
def leave_tree(trees, vertices, lane, v, d):
    """Removes v from its leaf."""
    nodes, base, i = trees.nodes, 2 * lane.base, lane.tail - lane.base + trees.leaves[v, d]
    nodes[base + i] = -1
    i >>= 1
    while i > 0 and nodes[base + i] == v:
        nodes[base + i] = _first(vertices, nodes[base + 2 * i], nodes[base + 2 * i + 1])
        i >>= 1


@numba.njit(nogil=True)
def first_in_tree(trees, vertices, lane, output_bytes, left):
    """The first waiting tensor of a lane with at most `left` bytes; -1 if there is none."""
    nodes, base, count = trees.nodes, 2 * lane.base, lane.tail - lane.base
    if count == 0:
        return -1
    if nodes[base + 1] < 0 or output_bytes[nodes[base + 1]] <= left:
        return nodes[base + 1]
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if output_bytes[trees.members[lane.base + middle]] <= left:
            low = middle + 1
        else:
            high = middle
    begin, end, found = count, count + low, -1
    while begin < end:
        if begin & 1:
            found = _first(vertices, found, nodes[base + begin])
            begin += 1
        if end & 1:
            end -= 1
            found = _first(vertices, found, nodes[base + end])
        begin >>= 1
        end >>= 1
    return found


@numba.njit(nogil=True)
def plant(trees, vertices, lanes, queue, by_bytes, edges):
    """Gives every tensor a leaf in each lane in which it may wait, and moves waiting tensors from the sorted queues into the trees.

    Args:
      lanes: LANE [D + D * D], devices, then links (source * D + destination). Afterwards [base, tail) are a lane's leaves.
      by_bytes, edges: as in `Prepared`.
    """
    leaves = trees.leaves
    num_devices = leaves.shape[1]
    trees.nodes[:], leaves[:] = -1, -1
    end = lanes.tail.copy()
    lanes.tail[:] = lanes.base
    for v in by_bytes:
        home = vertices[v].device
        if home < 0:
            continue
        _plant_one(trees, lanes[home], v, home)
        for i in range(vertices[v].first, vertices[v].last):
            d = vertices[edges[i].vertex].device
            if leaves[v, d] < 0:
                _plant_one(trees, lanes[num_devices + home * num_devices + d], v, d)
    for k in range(len(lanes)):
        d = k if k < num_devices else (k - num_devices) % num_devices
        for i in range(lanes[k].head, end[k]):
            v = queue[i].item
            wait_in_tree(trees, vertices, lanes[k], v, d)


@numba.njit(nogil=True)
def _plant_one(trees, lane, v, d):
    trees.leaves[v, d] = lane.tail - lane.base
    trees.members[lane.tail] = v
    lane.tail += 1
