"""The rules that a graph keeps as a whole: single edges, no cycle, operands that are predecessors, inputs that nothing feeds."""

from __future__ import annotations

import numpy as np

from doppler_tf.errors import GraphError
from doppler_tf.graph import DataflowGraph


def check_structure(graph: DataflowGraph, where: str) -> None:
    """Raises GraphError for a double edge, a cycle, an operand that is no predecessor, or an input vertex with predecessors."""
    pairs = graph.sources.astype(np.int64) * graph.num_vertices + graph.targets
    unique, counts = np.unique(pairs, return_counts=True)
    if (counts > 1).any():
        source, target = divmod(int(unique[counts > 1][0]), graph.num_vertices)
        raise GraphError(f"{where}: edge {graph.ids[source]!r} -> {graph.ids[target]!r}: source, target: expected one edge for a "
                         f"pair of vertices, got {int(counts.max())}; merge them (an edge is one tensor)")
    if sum(level.size for level in graph.levels) < graph.num_vertices:
        path = " -> ".join(repr(graph.ids[v]) for v in _cycle(graph))
        raise GraphError(f"{where}: edges: expected no cycle, got {path}; remove one of these edges")
    joined = set(pairs.tolist())
    for v, kernel in enumerate(graph.kernel):
        for operand in () if kernel is None else kernel.operands:
            if operand.vertex * graph.num_vertices + v not in joined:
                raise GraphError(f"{where}: vertex {graph.ids[v]!r}: kernel.operands: expected predecessors of the vertex, got "
                                 f"{graph.ids[operand.vertex]!r}; add the edge or mend the operand")
    fed = np.flatnonzero(graph.is_input[graph.targets])
    if fed.size:
        e = int(fed[0])
        raise GraphError(f"{where}: vertex {graph.ids[graph.targets[e]]!r}: input: expected an input vertex to have no "
                         f"predecessors, got an edge from {graph.ids[graph.sources[e]]!r}; drop 'input' or the edge")


def _cycle(graph: DataflowGraph) -> list[int]:
    """The vertices of one cycle, first and last the same: every vertex in no level has such a predecessor, and back from there."""
    behind = np.ones(graph.num_vertices, bool)
    for level in graph.levels:
        behind[level] = False
    edges = behind[graph.sources] & behind[graph.targets]
    before = dict(zip(graph.targets[edges].tolist(), graph.sources[edges].tolist(), strict=True))
    v, walked = next(iter(before)), {}
    while v not in walked:
        walked[v] = len(walked)
        v = before[v]
    cycle = list(walked)[walked[v]:][::-1]
    first = cycle.index(min(cycle))
    return [*cycle[first:], *cycle[:first + 1]]
