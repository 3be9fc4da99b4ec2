"""Missing links: the devices from which every neighbour can be reached, and assignments that use existing links alone; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from doppler_tf.graph.dataflow import DataflowGraph

# The search for an assignment ends after so many dead ends: the first number, on large graphs so many for all units and neighbours.
_MOST_DEAD_ENDS, _DEAD_END_SIZE = 20_000, 20_000_000
SOLVED, IMPOSSIBLE, NOT_FOUND = 0, 1, 2


class Neighbours(NamedTuple):
    """Units (vertices or colocation groups) that pass tensors to each other.

    Attributes: unit_of: int64 [N], -1 for inputs; ptr: int64 [U + 1]; other: int64 [P], the neighbours of unit u are
    `other[ptr[u]:ptr[u + 1]]`; outward: bool [P], whether u sends to that neighbour; linked: bool [D, D], from row to column.
    """

    unit_of: np.ndarray
    ptr: np.ndarray
    other: np.ndarray
    outward: np.ndarray
    linked: np.ndarray


def neighbours(graph: DataflowGraph, linked: np.ndarray) -> Neighbours:
    """The units of a graph. Args: linked: bool [D, D], True on the diagonal."""
    work, group, unit_of = graph.work_vertices, graph.colocate[graph.work_vertices], np.full(graph.num_vertices, -1, np.int64)
    unit_of[work] = np.unique(np.where(group >= 0, graph.num_vertices + group, work), return_inverse=True)[1]
    ends = np.stack([unit_of[graph.sources], unit_of[graph.targets]], axis=1)
    ends = np.unique(ends[(ends[:, 0] >= 0) & (ends[:, 0] != ends[:, 1])], axis=0)
    own, other = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    by_own = np.argsort(own, kind="stable")
    count = int(unit_of.max(initial=-1)) + 1
    ptr = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=count))])
    return Neighbours(unit_of, ptr, other[by_own], by_own < len(ends), linked)


def narrow(near: Neighbours, allowed: np.ndarray) -> int:
    """Takes from `allowed` (bool [U, D]) the devices that no assignment over existing links can use, as far as neighbours show it.

    Returns: a unit that has no device left, -1: each has one. (Arc consistency: Mackworth, Artificial Intelligence 8, 1977.)
    """
    units = len(allowed)
    trail = np.empty(allowed.size, np.int64)
    return int(_propagate(near, allowed, allowed.sum(axis=1), np.arange(units + 1), units, np.ones(units, bool), trail, 0)[0])


def legal_devices(near: Neighbours, allowed: np.ndarray, ranked: np.ndarray) -> tuple[np.ndarray, int]:
    """Devices of units that use existing links alone.

    Args: allowed: bool [U, D]; ranked: int64 [U, D], the devices of each unit, the preferred first.

    Returns: int64 [U], and SOLVED, IMPOSSIBLE (proven by exhaustion) or NOT_FOUND (after many dead ends).
    """
    return _search(near, allowed.copy(), ranked, min(_MOST_DEAD_ENDS, max(100, _DEAD_END_SIZE // (len(allowed) + len(near.other)))))


@numba.njit(cache=True, nogil=True)
def _propagate(near, allowed, size, queue, queued, waits, trail, noted):
    """Takes away devices without a partner, starting from units whose devices have changed.

    Args:
      size: int64 [U], devices left, kept up to date.
      queue: int64 [U + 1], begins with these units, `queued` of them; waits: bool [U], whether a unit is in the queue; False at the end.
      trail: int64 [U * D], gets what was taken away, as unit * D + device, from `noted` on.

    Returns: a unit without devices or -1; the length of the trail.
    """
    units, devices = allowed.shape
    head, tail, empty = 0, queued, -1
    while head != tail:
        u = queue[head]
        head = (head + 1) % (units + 1)
        waits[u] = False
        if empty >= 0:
            continue
        for i in range(near.ptr[u], near.ptr[u + 1]):
            w, changed = near.other[i], False
            for d in range(devices):
                if not allowed[w, d]:
                    continue
                partner = False
                for own in range(devices):
                    if allowed[u, own] and (near.linked[own, d] if near.outward[i] else near.linked[d, own]):
                        partner = True
                        break
                if not partner:
                    allowed[w, d], changed = False, True
                    size[w] -= 1
                    trail[noted] = w * devices + d
                    noted += 1
            if changed and not waits[w]:
                waits[w] = True
                queue[tail] = w
                tail = (tail + 1) % (units + 1)
            if size[w] == 0:
                empty = w
                break
    return empty, noted


@numba.njit(cache=True, nogil=True)
def _search(near, allowed, ranked, most):
    """Depth first: units in order take the preferred device that is left, after each choice what it excludes is taken away, and after a
    dead end the last choice is. (Sabin and Freuder, "Contradicting conventional wisdom in constraint satisfaction", 1994.)"""
    units, devices = allowed.shape
    size = np.empty(units, np.int64)
    for u in range(units):
        size[u] = allowed[u].sum()
    trail, queue, waits = np.empty(units * devices, np.int64), np.arange(units + 1), np.ones(units, np.bool_)
    chosen, mark, depth, dead_ends = np.empty(units, np.int64), np.empty(units, np.int64), 0, 0
    failed, noted = _propagate(near, allowed, size, queue, units, waits, trail, 0)
    found, u = np.full(units, -1, np.int64), 0
    while True:
        while failed >= 0:
            dead_ends += 1
            if depth == 0:
                return found, IMPOSSIBLE
            if dead_ends > most:
                return found, NOT_FOUND
            depth -= 1
            while noted > mark[depth]:
                noted -= 1
                allowed[trail[noted] // devices, trail[noted] % devices] = True
                size[trail[noted] // devices] += 1
            u = chosen[depth] // devices
            allowed[u, chosen[depth] % devices] = False
            size[u] -= 1
            trail[noted] = chosen[depth]
            noted += 1
            queue[0], waits[u] = u, True
            failed, noted = _propagate(near, allowed, size, queue, 1, waits, trail, noted)
        while u < units and size[u] == 1:
            u += 1
        if u == units:
            break
        k = 0
        while not allowed[u, ranked[u, k]]:
            k += 1
        chosen[depth], mark[depth] = u * devices + ranked[u, k], noted
        depth += 1
        for d in range(devices):
            if allowed[u, d] and d != ranked[u, k]:
                allowed[u, d] = False
                size[u] -= 1
                trail[noted] = u * devices + d
                noted += 1
        queue[0], waits[u] = u, True
        failed, noted = _propagate(near, allowed, size, queue, 1, waits, trail, noted)
    for v in range(units):
        found[v] = np.argmax(allowed[v])
    return found, SOLVED
