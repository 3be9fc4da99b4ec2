"""Compiled queues, which are sorted arrays and become heaps when they are long, and their records."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import inner
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import CSR, DataflowGraph

# Fields that are read together share a cache line, because cache misses dominate the simulation of large graphs.
ENTRY = np.dtype([("key", np.float64), ("item", np.int64)], align=True)
EDGE = np.dtype([("cost", np.float64), ("vertex", np.int32), ("tensor", np.int32)], align=True)
VERTEX = np.dtype([("key", np.float64), ("exec_s", np.float64), ("first", np.int32), ("last", np.int32), ("missing", np.int32),
                   ("device", np.int32)], align=True)
# `queue[head:tail]` holds the waiting entries of a lane (a device, or links that share a queue); `base` is the first place of its region.
LANE = np.dtype([("base", np.int64), ("head", np.int64), ("tail", np.int64), ("free", np.int64), ("touched", np.bool_),
                 ("blocked", np.bool_)], align=True)

# The item of an entry is a vertex v < N, or a tensor t as N + t, times 2^SHIFT, plus the device where it starts or to which it is sent.
SHIFT = 20
DEVICE = (1 << SHIFT) - 1


def edge_records(graph: DataflowGraph, adjacency: CSR, costs: CostModel) -> np.ndarray:
    """EDGE [E] in the order of `adjacency`: the neighbour, the tensor, and the explicit cost or, without one, minus the bytes."""
    explicit_s, edge_bytes = costs.explicit_transfer_s[adjacency.edge], costs.edge_bytes[adjacency.edge]
    edges = np.empty(len(adjacency.edge), EDGE)
    edges["cost"], edges["vertex"] = np.where(np.isnan(explicit_s), -edge_bytes, np.abs(explicit_s)), adjacency.vertex
    edges["tensor"] = graph.edge_tensor[adjacency.edge]
    return edges


@inner(forceinline=True)
def insert(queue, head, tail, key, item):
    """Inserts into the sorted `queue[head:tail]`, searching from its end (under `fifo` keys come in order); returns the entries moved."""
    i = tail
    while i > head and (queue[i - 1].key > key or (queue[i - 1].key == key and queue[i - 1].item > item)):
        queue[i].key, queue[i].item = queue[i - 1].key, queue[i - 1].item
        i -= 1
    queue[i].key, queue[i].item = key, item
    return tail - i


@inner(forceinline=True)
def push(queue, base, size, key, item):
    """Adds to the binary heap `queue[base:base + size]` with the smallest (key, item) first."""
    i = size
    while i > 0:
        above = (i - 1) >> 1
        other = queue[base + above]
        if other.key < key or (other.key == key and other.item < item):
            break
        queue[base + i].key, queue[base + i].item = other.key, other.item
        i = above
    queue[base + i].key, queue[base + i].item = key, item


@inner(forceinline=True)
def pop(queue, base, size):
    """Removes the first of the heap and returns its item."""
    top = queue[base].item
    last = size - 1
    key, item = queue[base + last].key, queue[base + last].item
    i, child = 0, 1
    while child < last:
        if child + 1 < last:
            left, right = queue[base + child], queue[base + child + 1]
            if right.key < left.key or (right.key == left.key and right.item < left.item):
                child += 1
        smaller = queue[base + child]
        if key < smaller.key or (key == smaller.key and item < smaller.item):
            break
        queue[base + i].key, queue[base + i].item = smaller.key, smaller.item
        i, child = child, 2 * child + 1
    queue[base + i].key, queue[base + i].item = key, item
    return top


@inner(forceinline=True)
def wait(queue, lane, key, item, heaped):
    """Adds an item to a lane; returns the number of entries moved, which is 0 for a heap."""
    if heaped:
        push(queue, lane.base, lane.tail - lane.base, key, item)
        moved = 0
    else:
        moved = insert(queue, lane.head, lane.tail, key, item)
    lane.tail += 1
    return moved


@inner(forceinline=True)
def take(queue, lane, heaped):
    """Removes the first item of a lane and returns it."""
    if heaped:
        item = pop(queue, lane.base, lane.tail - lane.base)
        lane.tail -= 1
        return item
    item = queue[lane.head].item
    lane.head += 1
    return item


@inner(forceinline=True)
def take_fitting(queue, lane, item_bytes, left):
    """Removes the first item of a sorted lane that fits into the bytes left on its device, and returns it; -1: none."""
    for at in range(lane.head, lane.tail):
        item = queue[at].item
        if item_bytes[item >> SHIFT] <= left[item & DEVICE]:
            for i in range(at, lane.head, -1):
                queue[i].key, queue[i].item = queue[i - 1].key, queue[i - 1].item
            lane.head += 1
            return item
    return -1


@inner(forceinline=True)
def heap(queue, lanes):
    """Makes every lane a heap. A sorted array already is one; it only has to start at the lane's base."""
    for k in range(len(lanes)):
        lane = lanes[k]
        size = lane.tail - lane.head
        for i in range(size):
            queue[lane.base + i].key, queue[lane.base + i].item = queue[lane.head + i].key, queue[lane.head + i].item
        lane.head, lane.tail = lane.base, lane.base + size


@inner(forceinline=True)
def touch(lanes, touched, count, k):
    """Notes that lane k may be able to start something; returns the number of noted lanes."""
    if lanes[k].touched:
        return count
    lanes[k].touched = True
    touched[count] = k
    return count + 1


@inner(forceinline=True)
def edge_cost(cost, source, destination, latency_s, bandwidth):
    """Seconds of a transfer: the edge's explicit cost or, if `cost` is minus its bytes, the link's; without a link its `latency_s` alone,
    which the caller sets as it likes."""
    if bandwidth[source, destination] == 0.0:
        return latency_s[source, destination]
    if np.signbit(cost):
        return latency_s[source, destination] + -cost / bandwidth[source, destination]
    return cost
