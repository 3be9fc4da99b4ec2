"""What the policies see of a graph before an episode: static features, neighbour lists and clusters, padded to buckets."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.ranks import b_levels, t_levels

VERTEX_FEATURES = ("exec", "b_level", "t_level", "in_transfer", "out_transfer")
CLUSTER_SCALES = (1.0, 0.5, 0.25)


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """One graph's work vertices and what is known of them, padded to N vertices and E edges; times are divided by `scale_s`.

    The last vertex is always padding: the null vertex that stands for "none" in neighbour lists.

    Attributes:
      graph, costs: what this was made of.
      scale_s: the graph's work divided by its devices, the unit of time.
      num_work: M, the vertices that count.
      vertex: float32 [N, 5], VERTEX_FEATURES over the longest b-level.
      edge: float32 [E, 1], transfer over the largest.
      source, target: int32 [E].
      b_next, t_next: int32 [N], next vertex on the heaviest path (the null vertex ends it).
      predecessor, successor: int32 [N, K].
      fixed_s, on_link, link_bytes: float32 [N, K], a predecessor's transfer = fixed + on_link * latency + bytes / bandwidth.
      latency_s, s_per_byte: float32 [D, D], zero on the diagonal.
      exec_s: float32 [N, D]; allowed: bool [N, D].
      group: int32 [N], colocation group, 0 for none.
      memory: float32 [N], output bytes; memory_left: float32 [D] (both in GiB).
      cluster: int32 [N, len(CLUSTER_SCALES)], indices below that times N, and cluster_s: float32, the exec seconds of each.
      sibling: float32 [N, 2], how many vertices share a consumer with this one (counted by consumer), and their exec seconds.
    """

    graph: DataflowGraph
    costs: CostModel
    scale_s: float
    num_work: int
    vertex: np.ndarray
    edge: np.ndarray
    source: np.ndarray
    target: np.ndarray
    b_next: np.ndarray
    t_next: np.ndarray
    predecessor: np.ndarray
    successor: np.ndarray
    fixed_s: np.ndarray
    on_link: np.ndarray
    link_bytes: np.ndarray
    latency_s: np.ndarray
    s_per_byte: np.ndarray
    exec_s: np.ndarray
    allowed: np.ndarray
    group: np.ndarray
    memory: np.ndarray
    memory_left: np.ndarray
    cluster: np.ndarray
    cluster_s: np.ndarray
    sibling: np.ndarray

    @property
    def num_vertices(self) -> int:
        """N, padding included."""
        return len(self.group)

    def to_devices(self, order: np.ndarray, device: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From episodes to the graph's own indices.

        Args:
          order, device: int [B, T], padded vertex and device by step.

        Returns:
          int32 [B, graph vertices] devices (-1 for inputs) and int32 [B, M] orders in the graph's vertex indices.
        """
        order, device = np.asarray(order)[:, :self.num_work], np.asarray(device)[:, :self.num_work]
        original = self.graph.work_vertices[order]
        by_vertex = np.full((len(order), self.graph.num_vertices), -1, np.int32)
        np.put_along_axis(by_vertex, original, device.astype(np.int32), axis=1)
        return by_vertex, original


def bucket(count: int) -> int:
    """The padded size for `count`: the next of 1, 2, 4, 6, 8, 12, 16, 24, 32, ... (powers of two and the steps between)."""
    size = 1
    while size < count:
        size *= 2
    return 3 * size // 4 if size >= 8 and count <= 3 * size // 4 else size


def graph_arrays(graph: DataflowGraph, costs: CostModel, num_vertices: int = 0, num_edges: int = 0, in_degree: int = 0,
                 out_degree: int = 0) -> GraphArrays:
    """Features and index arrays of one graph.

    Args:
      num_vertices, ...: least padded sizes, so that several graphs share one shape; see `padded_sizes`.
    """
    work, kept = graph.work_vertices, graph.work_edges
    count, devices = work.size, costs.num_devices
    size = max(bucket(count + 1), num_vertices)
    null = size - 1
    local = np.full(graph.num_vertices + 1, null, np.int32)
    local[work] = np.arange(count)
    source, target = local[graph.sources[kept]], local[graph.targets[kept]]
    exec_s, transfer_s = costs.mean_exec_s[work], costs.mean_transfer_s[kept]
    scale = float(exec_s.sum()) / devices or 1.0
    below, above = b_levels(graph, costs), t_levels(graph, costs)
    columns = (exec_s, below.value_s[work], above.value_s[work], np.bincount(target, transfer_s, count),
               np.bincount(source, transfer_s, count))
    vertex = np.stack(columns, axis=1) / max(float(below.value_s.max()), 1e-30)
    largest = max(float(transfer_s.max(initial=0.0)), 1e-30)
    edges = max(bucket(len(kept) + 1), num_edges)
    incoming = _neighbours(target, source, size, null, in_degree)
    outgoing = _neighbours(source, target, size, null, out_degree)
    explicit = costs.explicit_transfer_s[kept]
    given = ~np.isnan(explicit)
    clusters, cluster_s = _clusters(source, target, transfer_s, exec_s, size, devices)
    other = ~np.eye(devices, dtype=bool)
    bandwidth = costs.topology.bandwidth_bytes_per_s
    return GraphArrays(
        graph=graph, costs=costs, scale_s=scale, num_work=count,
        vertex=_pad(vertex, size).astype(np.float32),
        edge=_pad(transfer_s[:, None] / largest, edges).astype(np.float32),
        source=_pad(source, edges, null), target=_pad(target, edges, null),
        b_next=_pad(local[below.next_vertex[work]], size, null), t_next=_pad(local[above.next_vertex[work]], size, null),
        predecessor=incoming[0], successor=outgoing[0],
        fixed_s=_by_slot(np.where(given, explicit, 0.0) / scale, incoming[1]),
        on_link=_by_slot(np.where(given, 0.0, 1.0), incoming[1]),
        link_bytes=_by_slot(np.where(given, 0.0, costs.edge_bytes[kept]) / 2**30, incoming[1]),
        latency_s=(np.where(other, costs.topology.latency_s, 0.0) / scale).astype(np.float32),
        s_per_byte=(np.where(other, 2**30 / bandwidth, 0.0) / scale).astype(np.float32),
        exec_s=_pad(costs.exec_s[work] / scale, size).astype(np.float32),
        allowed=_pad(costs.allowed[work], size, True),
        group=_pad(_groups(costs.colocate[work]), size).astype(np.int32),
        memory=_pad(costs.output_bytes[work] / 2**30, size).astype(np.float32),
        memory_left=np.minimum(costs.memory_bytes / 2**30, 1e9).astype(np.float32),
        cluster=clusters, cluster_s=(cluster_s / scale).astype(np.float32),
        sibling=_siblings(source, target, exec_s / scale, size))


def padded_sizes(graphs: list[DataflowGraph]) -> dict[str, int]:
    """The sizes that all of `graphs` fit, as keyword arguments of `graph_arrays`."""
    def degree(ends: str) -> int:
        return max(int(np.bincount(getattr(g, ends)[g.work_edges], minlength=1).max(initial=1)) for g in graphs)

    return {"num_vertices": max(bucket(g.work_vertices.size + 1) for g in graphs),
            "num_edges": max(bucket(g.work_edges.size + 1) for g in graphs), "in_degree": degree("targets"),
            "out_degree": degree("sources")}


def _groups(colocate: np.ndarray) -> np.ndarray:
    """Groups numbered from 1 among the work vertices alone (inputs may have more), 0 for none."""
    used = np.unique(colocate[colocate >= 0])
    return np.where(colocate >= 0, np.searchsorted(used, colocate) + 1, 0)


def _pad(array: np.ndarray, size: int, fill=0) -> np.ndarray:
    padded = np.full((size, *array.shape[1:]), fill, array.dtype)
    padded[:len(array)] = array
    return padded


def _neighbours(keys: np.ndarray, others: np.ndarray, size: int, null: int, least: int) -> tuple[np.ndarray, np.ndarray]:
    """int32 [N, K] neighbours by vertex and the edge in each place (-1: none), K padded to a bucket."""
    counts = np.bincount(keys, minlength=size)
    width = bucket(max(int(counts.max(initial=1)), least, 1))
    edge = np.full((size, width), -1, np.int64)
    by_key = np.argsort(keys, kind="stable")
    slot = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    edge[keys[by_key], slot] = by_key
    return np.where(edge >= 0, np.append(others, null)[edge], null).astype(np.int32), edge


def _by_slot(values: np.ndarray, edge: np.ndarray) -> np.ndarray:
    return np.where(edge >= 0, np.append(values, 0.0)[edge], 0.0).astype(np.float32)


def _siblings(source: np.ndarray, target: np.ndarray, exec_s: np.ndarray, size: int) -> np.ndarray:
    """By vertex, summed over its consumers: how many others feed the same consumer, and their exec."""
    feeders = np.bincount(target, minlength=size)
    load = np.bincount(target, exec_s[source], size)
    shared = np.bincount(source, feeders[target] - 1, size)
    weighted = np.bincount(source, load[target] - exec_s[source], size)
    return np.stack([shared, weighted], axis=1).astype(np.float32)


def _clusters(source: np.ndarray, target: np.ndarray, transfer_s: np.ndarray, exec_s: np.ndarray, size: int,
              devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of at most a device's share of the work (and of fractions of it), grown along the costliest edges first.

    (Greedy edge contraction under a load cap, in the spirit of Sarkar 1989 and of the coarsening of METIS, Karypis and Kumar 1998.)
    """
    by_cost = np.argsort(-transfer_s, kind="stable")
    share = float(exec_s.sum()) / devices
    index, load = np.empty((size, len(CLUSTER_SCALES)), np.int32), np.zeros(size * len(CLUSTER_SCALES))
    for level, fraction in enumerate(CLUSTER_SCALES):
        root = _contract(source[by_cost], target[by_cost], _pad(exec_s, size), share * fraction * (1 + 1e-9))
        index[:, level] = root + level * size
        load[level * size:(level + 1) * size] = np.bincount(root[:len(exec_s)], exec_s, size)
    return index, load


@numba.njit(cache=True)
def _contract(source, target, exec_s, cap):
    root, load = np.arange(len(exec_s)), exec_s.copy()
    for e in range(len(source)):
        a, b = source[e], target[e]
        while root[a] != a:
            root[a] = root[root[a]]
            a = root[a]
        while root[b] != b:
            root[b] = root[root[b]]
            b = root[b]
        if a != b and load[a] + load[b] <= cap:
            root[b] = a
            load[a] += load[b]
    for v in range(len(root)):
        r = v
        while root[r] != r:
            r = root[r]
        root[v] = r
    return root
