"""The layout of a graph's picture: columns by depth from left to right, with few crossings of edges."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.dataflow import DataflowGraph, longest_paths

_SWEEPS = 8


def layered(graph: DataflowGraph) -> tuple[np.ndarray, np.ndarray]:
    """Column and row of every work vertex; input vertices are not drawn.

    A vertex is right of its predecessors; a vertex without predecessors is one column before its first consumer. Within a column,
    vertices are ordered by the mean row of their neighbours (Sugiyama's barycenter method).

    Returns:
      int64 [N] columns, -1 for inputs; float64 [N] rows, centred on 0 and one apart within a column.
    """
    edges = graph.work_edges
    pairs = list(zip(graph.sources[edges].tolist(), graph.targets[edges].tolist(), strict=True))
    before: list[list[int]] = [[] for _ in range(graph.num_vertices)]
    after: list[list[int]] = [[] for _ in range(graph.num_vertices)]
    for u, v in pairs:
        before[v].append(u)
        after[u].append(v)
    column = np.where(graph.is_input, -1, longest_paths(graph.sources[edges], graph.targets[edges], graph.num_vertices)).astype(np.int64)
    for v in graph.work_vertices.tolist():
        if after[v] and not before[v]:
            column[v] = min(column[w] for w in after[v]) - 1
    return column, _rows(column, before, after)


def _rows(column: np.ndarray, before: list[list[int]], after: list[list[int]]) -> np.ndarray:
    row = np.zeros(len(column))
    columns = [np.flatnonzero(column == c).tolist() for c in range(column.max() + 1)]
    for members in columns:
        _centre(members, row)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        neighbours = before if forth else after
        for members in columns if forth else reversed(columns):
            wanted = {v: float(np.mean(row[neighbours[v]])) if neighbours[v] else row[v] for v in members}
            members.sort(key=wanted.__getitem__)
            _centre(members, row)
    return row


def _centre(members: list[int], row: np.ndarray) -> None:
    """Puts members one below another, centred on row 0."""
    row[members] = np.arange(len(members)) - (len(members) - 1) / 2
