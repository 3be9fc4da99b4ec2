"""The sets of vertices that searches move together: units (a vertex or a colocation group) and sets of related units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

# Sizes of clusters, as multiples of the total work divided by the number of devices.
_CLUSTER_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)


class Units(NamedTuple):
    """Vertices and colocation groups, each of which is placed on one device.

    Attributes: unit_of: int32 [N], -1 for inputs; allowed: bool [U, D].
    """

    unit_of: np.ndarray
    allowed: np.ndarray

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.allowed)


class MoveSets(NamedTuple):
    """Units and sets of units.

    Attributes:
      unit_of: int32 [N], -1 for inputs; unit u is `member[member_ptr[u]:member_ptr[u + 1]]` (vertices).
      allowed: bool [U, D]; movable: bool [U], whether a unit may use two devices or more.
      near: int32, the units that share an edge with unit u are `near[near_ptr[u]:near_ptr[u + 1]]`.
      set_unit: int64, set k holds the units `set_unit[set_ptr[k]:set_ptr[k + 1]]`; sets of kind c are `kind_ptr[c]` to `kind_ptr[c + 1]`.
    """

    unit_of: np.ndarray
    member_ptr: np.ndarray
    member: np.ndarray
    allowed: np.ndarray
    movable: np.ndarray
    near_ptr: np.ndarray
    near: np.ndarray
    set_ptr: np.ndarray
    set_unit: np.ndarray
    kind_ptr: np.ndarray

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.member_ptr) - 1


def units(graph: DataflowGraph, costs: CostModel, tied: np.ndarray | None = None) -> Units:
    """The units of a graph: each colocation group, and each other work vertex.

    Args: tied: int [N], vertices with the same number >= 0 stay together, too.
    """
    work = graph.work_vertices
    keys = np.where(costs.colocate[work] >= 0, graph.num_vertices + costs.colocate[work], work)
    if tied is not None:
        _, keys = np.unique(keys, return_inverse=True)
        rows = np.flatnonzero(tied[work] >= 0)
        _, first, label = np.unique(tied[work[rows]], return_index=True, return_inverse=True)
        keys = clusters(keys[rows[first]][label], keys[rows], np.zeros(keys.max() + 1), np.inf)[keys]
    _, first, unit = np.unique(keys, return_index=True, return_inverse=True)
    unit_of = np.full(graph.num_vertices, -1, np.int32)
    unit_of[work] = unit
    return Units(unit_of, costs.allowed[work[first]])


def move_sets(graph: DataflowGraph, costs: CostModel, tied: np.ndarray | None = None) -> MoveSets:
    """The move sets of a graph. Args: tied: see `units`.

    The kinds are: a unit with its producers; a unit with its consumers; clusters of each size along the costliest edges; connected
    components; the vertices of a meta-op. Sets of one unit or of all units are left out, and so are kinds without sets.
    """
    work = graph.work_vertices
    unit_of, allowed = units(graph, costs, tied)
    unit, count = unit_of[work], len(allowed)
    member_ptr, member = _rows(unit, work, count)
    edges = graph.work_edges
    source, target = unit_of[graph.sources[edges]], unit_of[graph.targets[edges]]
    near_ptr, near = _rows(np.concatenate([source, target]), np.concatenate([target, source]), count)
    own = np.arange(count)
    labels = [_rows(np.concatenate([own, target]), np.concatenate([own, source]), count),
              _rows(np.concatenate([own, source]), np.concatenate([own, target]), count)]
    exec_s = np.bincount(unit, costs.mean_exec_s[work], count)
    by_cost = np.argsort(-costs.mean_transfer_s[edges], kind="stable")
    for share in (*_CLUSTER_SHARES, np.inf):
        most = np.inf if share == np.inf else share * exec_s.sum() / costs.num_devices
        label = clusters(source[by_cost], target[by_cost], exec_s, most)
        labels.append(_rows(label, own, count))
    named = np.array([v for v in work.tolist() if graph.meta_op[v] is not None], np.int64)
    if named.size:
        _, meta_op = np.unique([graph.meta_op[v] for v in named.tolist()], return_inverse=True)
        labels.append(_rows(meta_op, unit_of[named], int(meta_op.max()) + 1))
    set_ptr, set_unit, kind_ptr = [0], [], [0]
    for ptr, members in labels:
        for begin, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
            if 1 < end - begin < count:
                set_unit.append(members[begin:end])
                set_ptr.append(set_ptr[-1] + end - begin)
        if len(set_ptr) - 1 > kind_ptr[-1]:
            kind_ptr.append(len(set_ptr) - 1)
    joined = np.concatenate(set_unit) if set_unit else np.empty(0)
    return MoveSets(unit_of, member_ptr, member.astype(np.int32), allowed, allowed.sum(axis=1) > 1, near_ptr, near.astype(np.int32),
               np.array(set_ptr), joined.astype(np.int64), np.array(kind_ptr))


def _rows(keys: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [count + 1] pointers, and the distinct values of each key."""
    pairs = np.unique(np.stack([keys, values], axis=1), axis=0) if len(keys) else np.empty((0, 2), np.int64)
    return np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=count))]), pairs[:, 1]


@compiled
def clusters(source, target, exec_s, most):
    """int64 [U]: the cluster of each unit, named after one of its members. It joins units along the edges, in the given order, while a
    cluster's work stays within `most`.

    (Greedy edge contraction under a load cap, in the spirit of Sarkar 1989 and of the coarsening of METIS, Karypis and Kumar 1998.)
    """
    head, work_s = np.arange(len(exec_s)), exec_s.copy()
    for i in range(len(source)):
        a, b = source[i], target[i]
        while head[a] != a:
            head[a] = head[head[a]]
            a = head[a]
        while head[b] != b:
            head[b] = head[head[b]]
            b = head[b]
        if a != b and work_s[a] + work_s[b] <= most:
            head[max(a, b)] = min(a, b)
            work_s[min(a, b)] += work_s[max(a, b)]
    for u in range(len(head)):
        while head[u] != head[head[u]]:
            head[u] = head[head[u]]
    return head
