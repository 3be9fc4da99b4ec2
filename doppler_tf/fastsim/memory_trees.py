"""Compiled search for the first entry of a lane that fits into the free memory, with one tournament tree per lane.

An item is a vertex v < N, which waits for a device, or tensor t as N + t, which waits for a link. A lane's leaves are all items that may
ever wait in it, sorted by bytes. A node holds the first waiting item below it, by (key, index), or -1. The items that fit are a prefix of
the leaves, whose first waiting item is found in logarithmic time. Items may enter and leave in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.compiled import copy_to, inner
from doppler_tf.fastsim.queues import SHIFT


class Trees(NamedTuple):
    """The trees of all lanes; `places` is the number of leaves of all lanes together.

    Attributes:
      nodes: int32 [2 * places]; members: int32 [places], the item at each leaf.
      leaves: int32 [N + T, D], the leaf of a vertex in the lane of its own device, of a tensor in the lane of the link to another.
      keys: float64 [T, D], the queue key of a tensor that waits for the link to a device.
    """

    nodes: np.ndarray
    members: np.ndarray
    leaves: np.ndarray
    keys: np.ndarray


@inner
def _key(trees, vertices, item, d):
    return vertices[item].key if item < len(vertices) else trees.keys[item - len(vertices), d]


@inner
def _first(trees, vertices, a, b, d):
    """The first of two items that wait to start on device d or to be sent to it; -1 stands for none."""
    if a < 0 or b < 0:
        return max(a, b)
    first, second = _key(trees, vertices, a, d), _key(trees, vertices, b, d)
    if first == second:
        return min(a, b)
    return a if first < second else b


@inner
def wait_in_tree(trees, vertices, lane, item, d):
    """Adds an item at its leaf, where it waits to start on device d or to be sent to it."""
    nodes, base, i = trees.nodes, 2 * lane.base, lane.tail - lane.base + trees.leaves[item, d]
    while i > 0 and _first(trees, vertices, nodes[base + i], item, d) == item:
        nodes[base + i] = item
        i >>= 1


@inner
def leave_tree(trees, vertices, lane, item, d):
    """Removes an item from its leaf."""
    nodes, base, i = trees.nodes, 2 * lane.base, lane.tail - lane.base + trees.leaves[item, d]
    nodes[base + i] = -1
    i >>= 1
    while i > 0 and nodes[base + i] == item:
        nodes[base + i] = _first(trees, vertices, nodes[base + 2 * i], nodes[base + 2 * i + 1], d)
        i >>= 1


@inner
def first_in_tree(trees, vertices, lane, item_bytes, left, d):
    """The first waiting item of a lane that leads to device d with at most `left` bytes; -1 if there is none."""
    nodes, base, count = trees.nodes, 2 * lane.base, lane.tail - lane.base
    if count == 0:
        return -1
    if nodes[base + 1] < 0 or item_bytes[nodes[base + 1]] <= left:
        return nodes[base + 1]
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if item_bytes[trees.members[lane.base + middle]] <= left:
            low = middle + 1
        else:
            high = middle
    begin, end, found = count, count + low, -1
    while begin < end:
        if begin & 1:
            found = _first(trees, vertices, found, nodes[base + begin], d)
            begin += 1
        if end & 1:
            end -= 1
            found = _first(trees, vertices, found, nodes[base + end], d)
        begin >>= 1
        end >>= 1
    return found


@inner
def plant(trees, vertices, lanes, queue, by_bytes, edges, maker):
    """Gives every item a leaf in each lane in which it may wait, and moves waiting items from the sorted queues into the trees.

    Args:
      lanes: LANE [D + D * D], devices, then links (source * D + destination), of which none share a lane. Afterwards [base, tail) are a
        lane's leaves.
      by_bytes, edges, maker: as in `Prepared`.
    """
    leaves = trees.leaves
    num_devices = leaves.shape[1]
    trees.nodes[:], leaves[:] = -1, -1
    end = lanes.tail.copy()
    copy_to(lanes.tail, lanes.base)
    for item in by_bytes:
        v = item if item < len(vertices) else maker[item - len(vertices)]
        home = vertices[v].device
        if home < 0:
            continue
        if item == v:
            _plant_one(trees, lanes[home], v, home)
            continue
        for i in range(vertices[v].first, vertices[v].last):
            d = vertices[edges[i].vertex].device
            if d != home and edges[i].tensor == item - len(vertices) and leaves[item, d] < 0:
                _plant_one(trees, lanes[num_devices + home * num_devices + d], item, d)
    for k in range(len(lanes)):
        d = k if k < num_devices else (k - num_devices) % num_devices
        for i in range(lanes[k].head, end[k]):
            wait_in_tree(trees, vertices, lanes[k], queue[i].item >> SHIFT, d)


@inner
def _plant_one(trees, lane, item, d):
    trees.leaves[item, d] = lane.tail - lane.base
    trees.members[lane.tail] = item
    lane.tail += 1
