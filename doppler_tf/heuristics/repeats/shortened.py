"""A graph in which something repeats, with fewer repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from doppler_tf.heuristics.problem import Problem


class Shortened(NamedTuple):
    """A graph with fewer copies.

    Attributes:
      problem: what is left, without kernels.
      vertex: int32 [N], the vertices of the whole graph that these are.
    """

    problem: Problem
    vertex: np.ndarray


def shorten(problem: Problem, copies: int) -> Shortened | None:
    """The graph with as many copies left of what most chains repeat.

    Half of the copies are the first, the others the last ones. The last follow the first as the vertices in between did. Chains that would
    have no vertex left stay as they are. Inputs that nothing reads any more are left out.

    Args:
      copies: at least two.

    Returns:
      None: nothing repeats; or there are no more copies; or a vertex that repeats would lose a predecessor; or a cycle would arise.
    """
    graph, costs, repetition = problem.graph, problem.costs, problem.repetition
    if repetition is None:
        return None
    longest = int(np.argmax(np.bincount(repetition.lengths)))
    cut, first = longest - copies, (copies + 1) // 2
    if cut <= 0:
        return None
    short = repetition.lengths <= max(cut, first)
    position = np.where((repetition.chain >= 0) & ~short[repetition.chain], repetition.position, -1)
    left = (position < first) | (position >= first + cut)
    read = graph.is_input[graph.sources]
    left &= ~graph.is_input | (np.bincount(graph.sources[read & left[graph.targets]], minlength=len(left)) > 0)
    kept = np.flatnonzero(left)
    index = np.full(graph.num_vertices, -1, np.int32)
    index[kept] = np.arange(kept.size)
    # The place of a source in the shorter chain is that which it has from where its target is.
    source, target = graph.sources, graph.targets
    place = position[source] - np.where(position[target] >= first, cut, 0)
    inside, at = (position[source] >= 0) & (position[target] >= 0), repetition.ptr[repetition.chain[source]]
    moved = np.clip(at + place + np.where(place >= first, cut, 0), 0, len(repetition.vertex) - 1)
    stands = np.where(inside, repetition.vertex[moved], source)
    exists = (index[stands] >= 0) & (~inside | ((place >= 0) & (repetition.chain[stands] == repetition.chain[source])))
    if (~exists & (index[target] >= 0) & (position[target] >= 0)).any():
        return None
    edges = np.flatnonzero(exists & (index[target] >= 0))
    tensors = np.flatnonzero(index[graph.tensor_producer] >= 0)
    pick = kept.tolist()
    short_graph = replace(
        graph, ids=tuple(graph.ids[v] for v in pick), names=tuple(graph.names[v] for v in pick), kinds=tuple(graph.kinds[v] for v in pick),
        meta_op=tuple(graph.meta_op[v] for v in pick), role=tuple(graph.role[v] for v in pick), flops=graph.flops[kept],
        tensor_ptr=np.concatenate([[0], np.cumsum(np.diff(graph.tensor_ptr)[kept])]).astype(np.int32),
        tensor_bytes=graph.tensor_bytes[tensors], exec_s=graph.exec_s[kept], is_input=graph.is_input[kept], kernel=(None,) * kept.size,
        pin=tuple(graph.pin[v] for v in pick), colocate=graph.colocate[kept], sources=index[stands[edges]], targets=index[target[edges]],
        edge_output=graph.edge_output[edges], edge_bytes=graph.edge_bytes[edges], transfer_s=graph.transfer_s[edges])
    short_costs = replace(
        costs, exec_s=costs.exec_s[kept], edge_bytes=costs.edge_bytes[edges], explicit_transfer_s=costs.explicit_transfer_s[edges],
        tensor_bytes=costs.tensor_bytes[tensors], output_bytes=costs.output_bytes[kept], eligible=costs.eligible[kept],
        allowed=costs.allowed[kept], colocate=costs.colocate[kept])
    short = Problem(short_graph, short_costs, problem.dispatch)
    return Shortened(short, kept.astype(np.int32)) if short_graph.topological_order.size == kept.size else None
