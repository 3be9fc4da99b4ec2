"""The arrays of a graph before an episode: static features, neighbour lists and clusters, padded to buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.search.move_sets import clusters
from doppler_tf.schedule.ranks import b_levels, t_levels

VERTEX_FEATURES = ("exec", "b_level", "t_level", "in_transfer", "out_transfer")
# Random numbers of its own tell a vertex, or a device, from those that look alike (Sato et al., Random Features Strengthen Graph Neural
# Networks, 2021).
IDENTITY = 8
VERTEX_WIDTH = len(VERTEX_FEATURES) + IDENTITY
CLUSTER_SCALES = (1.0, 0.5, 0.25)
LARGEST = 1e8
ROW_WIDTHS = (4, 8, 16)
# The latency between devices without a link.
NO_LINK = -1.0


class PaddedSizes(NamedTuple):
    """The shape that one or several graphs are padded to; graphs of one shape share every compiled function.

    Attributes:
      vertices, edges: N, a `bucket`, and E, a power of two, as edges are but a small part of the work.
      in_width, out_width: neighbours a row, the first of ROW_WIDTHS that holds the largest degree, or the last.
      in_rows, out_rows: rows of neighbours: N where each vertex needs one, else N + E / width, which always suffices.
      groups: colocation groups, and one more for "none".
    """

    vertices: int
    edges: int
    in_width: int
    out_width: int
    in_rows: int
    out_rows: int
    groups: int


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """One graph's work vertices and what is known of them, padded to N vertices and E edges; times are divided by `scale_s`.

    The last vertex is always padding: the null vertex that stands for "none" in neighbour lists.

    Attributes:
      graph, costs: what this was made of.
      scale_s: the graph's work divided by its devices, the unit of time.
      num_work: M, the vertices that count.
      vertex: float32 [N, VERTEX_WIDTH], VERTEX_FEATURES over the longest b-level, then the vertex's identity (zeros without).
      device_identity: float32 [D, IDENTITY] (zeros without).
      edge: float32 [E, 1], transfer over the largest.
      source, target: int32 [E].
      b_next, t_next: int32 [N], next vertex on the heaviest path (the null vertex ends it).
      in_degree: int32 [N].
      in_row, out_row: int32 [N, 2], the first row of a vertex in the tables of neighbours, and how many it has.
      predecessor, successor: int32 [R, K], K neighbours a row, the null vertex where there are fewer; the last row is empty.
      fixed_s, on_link, link_bytes: float32 [R, K], a predecessor's transfer = fixed + on_link * latency + bytes / bandwidth.
      latency_s, s_per_byte: float32 [D, D], zero on the diagonal; without a link the latency is NO_LINK.
      exec_s: float32 [N, D]; allowed: bool [N, D].
      group: int32 [N], colocation group, 0 for none; num_groups: more than the largest of them.
      memory: float32 [N], output bytes; memory_left: float32 [D] (both in GiB).
      cluster: int32 [N, len(CLUSTER_SCALES)], indices below that times N, and cluster_s: float32, the exec seconds of each.
      sibling: float32 [N, 2], how many vertices share a consumer with this one (counted by consumer), and their exec seconds.
    """

    graph: DataflowGraph
    costs: CostModel
    scale_s: float
    num_work: int
    vertex: np.ndarray
    device_identity: np.ndarray
    edge: np.ndarray
    source: np.ndarray
    target: np.ndarray
    b_next: np.ndarray
    t_next: np.ndarray
    in_degree: np.ndarray
    in_row: np.ndarray
    out_row: np.ndarray
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
    num_groups: int
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


def identity_features(vertices: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 [vertices, IDENTITY] and [devices, IDENTITY]: the same for the first of more, and whatever the costs."""
    return tuple(np.random.default_rng(seed).standard_normal((number, IDENTITY)).astype(np.float32)
                 for seed, number in enumerate((vertices, devices)))


def bucket(count: int) -> int:
    """The padded size for `count`, at least 8: four sizes an octave (8, 10, 12, 14, 16, 20, ...), so that at most a fifth is padding."""
    step = max(2, 1 << max((count - 1).bit_length() - 3, 0))
    return max(8, -(-count // step) * step)


def padded_sizes(graphs: Sequence[DataflowGraph]) -> PaddedSizes:
    """The least shape of buckets that all of `graphs` fit."""
    vertices = max(bucket(g.work_vertices.size + 1) for g in graphs)
    edges = max(1 << int(g.work_edges.size).bit_length() for g in graphs)

    def table(ends: str) -> tuple[int, int]:
        degree = max(int(np.bincount(getattr(g, ends)[g.work_edges], minlength=1).max()) for g in graphs)
        width = next((w for w in ROW_WIDTHS if w >= degree), ROW_WIDTHS[-1])
        return width, vertices if degree <= width else vertices + edges // width

    (in_width, in_rows), (out_width, out_rows) = table("targets"), table("sources")
    groups = max(bucket(len(g.groups) + 1) for g in graphs)
    return PaddedSizes(vertices, edges, in_width, out_width, in_rows, out_rows, groups)


def graph_arrays(graph: DataflowGraph, costs: CostModel, sizes: PaddedSizes | None = None, identity: bool = True) -> GraphArrays:
    """Features and index arrays of one graph.

    Args:
      sizes: the padded shape, where several graphs share one (default: the graph's own).
      identity: random features tell vertices and devices with equal features apart; policies that learn with them transfer less well.
    """
    sizes = sizes or padded_sizes([graph])
    work, kept = graph.work_vertices, graph.work_edges
    count, devices, size = work.size, costs.num_devices, sizes.vertices
    null = size - 1
    local = np.full(graph.num_vertices + 1, null, np.int32)
    local[work] = np.arange(count)
    source, target = local[graph.sources[kept]], local[graph.targets[kept]]
    exec_s, transfer_s = costs.mean_exec_s[work], costs.mean_transfer_s[kept]
    scale = float(exec_s.sum()) / devices or 1.0
    below, above = b_levels(graph, costs), t_levels(graph, costs)
    columns = (exec_s, below.value_s[work], above.value_s[work], np.bincount(target, transfer_s, count),
               np.bincount(source, transfer_s, count))
    own, own_device = (one * identity for one in identity_features(count, devices))
    vertex = np.concatenate([np.stack(columns, axis=1) / max(float(below.value_s.max()), 1e-30), own], axis=1)
    largest = max(float(transfer_s.max(initial=0.0)), 1e-30)
    incoming, in_row = _rows(target, size, sizes.in_rows, sizes.in_width)
    outgoing, out_row = _rows(source, size, sizes.out_rows, sizes.out_width)
    explicit = costs.explicit_transfer_s[kept]
    given = ~np.isnan(explicit)
    clusters, cluster_s = _clusters(source, target, transfer_s, exec_s, size, devices)
    topology, links = costs.topology, costs.topology.links
    latency_s = np.where(topology.linked, np.where(links, topology.latency_s, 0.0) / scale, NO_LINK)
    s_per_byte = np.divide(2**30, topology.bandwidth_bytes_per_s, out=np.zeros((devices, devices)), where=links) / scale
    return GraphArrays(
        graph=graph, costs=costs, scale_s=scale, num_work=count,
        vertex=_float32(_pad(vertex, size)), device_identity=own_device,
        edge=_pad(transfer_s[:, None] / largest, sizes.edges).astype(np.float32),
        source=_pad(source, sizes.edges, null), target=_pad(target, sizes.edges, null),
        b_next=_pad(local[below.next_vertex[work]], size, null), t_next=_pad(local[above.next_vertex[work]], size, null),
        in_degree=np.bincount(target, minlength=size).astype(np.int32), in_row=in_row, out_row=out_row,
        predecessor=_by_slot(source, incoming, null), successor=_by_slot(target, outgoing, null),
        fixed_s=_float32(_by_slot(np.where(given, explicit, 0.0) / scale, incoming)),
        on_link=_by_slot(np.where(given, 0.0, 1.0), incoming).astype(np.float32),
        link_bytes=_float32(_by_slot(np.where(given, 0.0, costs.edge_bytes[kept]) / 2**30, incoming)),
        latency_s=_float32(latency_s), s_per_byte=_float32(s_per_byte),
        exec_s=_pad(costs.exec_s[work] / scale, size).astype(np.float32),
        allowed=_pad(costs.allowed[work], size, True),
        group=_pad(costs.colocate[work] + 1, size).astype(np.int32), num_groups=sizes.groups,
        memory=_float32(_pad(costs.output_bytes[work] / 2**30, size)),
        memory_left=_float32(costs.memory_bytes / 2**30),
        cluster=clusters, cluster_s=(cluster_s / scale).astype(np.float32),
        sibling=_siblings(source, target, exec_s / scale, size))


def _float32(array: np.ndarray) -> np.ndarray:
    """Figures beyond LARGEST (a transfer of 100 million times the work's share) are as good as it, and their products stay finite."""
    return np.minimum(array, LARGEST).astype(np.float32)


def _pad(array: np.ndarray, size: int, fill=0) -> np.ndarray:
    padded = np.full((size, *array.shape[1:]), fill, array.dtype)
    padded[:len(array)] = array
    return padded


def _rows(keys: np.ndarray, size: int, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The edges of each vertex in rows of `width`: int [rows, width] edge in each place (-1: none); int32 [N, 2] first row and count."""
    degree = np.bincount(keys, minlength=size)
    needed = np.maximum(1, -(-degree // width))
    first = np.cumsum(needed) - needed
    by_key = np.argsort(keys, kind="stable")
    place = np.arange(len(keys)) - np.repeat(np.cumsum(degree) - degree, degree)
    edge = np.full((rows, width), -1, np.int64)
    edge[first[keys[by_key]] + place // width, place % width] = by_key
    return edge, np.stack([first, needed], axis=1).astype(np.int32)


def _by_slot(values: np.ndarray, edge: np.ndarray, none=0.0) -> np.ndarray:
    return np.where(edge >= 0, np.append(values, none)[edge], none).astype(np.asarray(values).dtype)


def _siblings(source: np.ndarray, target: np.ndarray, exec_s: np.ndarray, size: int) -> np.ndarray:
    """By vertex, summed over its consumers: how many others feed the same consumer, and their exec."""
    feeders = np.bincount(target, minlength=size)
    load = np.bincount(target, exec_s[source], size)
    shared = np.bincount(source, feeders[target] - 1, size)
    weighted = np.bincount(source, load[target] - exec_s[source], size)
    return np.stack([shared, weighted], axis=1).astype(np.float32)


def _clusters(source: np.ndarray, target: np.ndarray, transfer_s: np.ndarray, exec_s: np.ndarray, size: int,
              devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of at most a device's share of the work (and of fractions of it), grown along the costliest edges first."""
    by_cost = np.argsort(-transfer_s, kind="stable")
    share = float(exec_s.sum()) / devices
    index, load = np.empty((size, len(CLUSTER_SCALES)), np.int32), np.zeros(size * len(CLUSTER_SCALES))
    for level, fraction in enumerate(CLUSTER_SCALES):
        root = clusters(source[by_cost], target[by_cost], _pad(exec_s, size), share * fraction * (1 + 1e-9))
        index[:, level] = root + level * size
        load[level * size:(level + 1) * size] = np.bincount(root[:len(exec_s)], exec_s, size)
    return index, load
