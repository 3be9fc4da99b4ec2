"""b-levels and t-levels: the heaviest path from a vertex to an exit and from an entry to it."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of all vertices.

    Attributes:
      value_s: float64 [N].
      next_vertex: int32 [N], the neighbour on the heaviest path, -1 at its end. Among equals the first output wins, then the first edge.
    """

    value_s: np.ndarray
    next_vertex: np.ndarray


def b_levels(graph: DataflowGraph, costs: CostModel) -> Levels:
    """b(v) = exec(v) + max over successors of transfer + b, costs averaged over devices and links (Sih and Lee's static level
    with communication; the upward rank of HEFT, Topcuoglu et al. 2002). `next_vertex` leads towards the exit."""
    out = graph.successors
    value, following = _sweep(graph.topological_order[::-1].copy(), out.ptr, out.vertex, out.edge, _transfers(graph, costs),
                              costs.mean_exec_s, True)
    return Levels(value, following)


def t_levels(graph: DataflowGraph, costs: CostModel) -> Levels:
    """t(v) = max over predecessors of t + exec + transfer, costs averaged (the downward rank of HEFT). `next_vertex` leads
    towards the entry."""
    into = graph.predecessors
    value, following = _sweep(graph.topological_order, into.ptr, into.vertex, into.edge, _transfers(graph, costs),
                              costs.mean_exec_s, False)
    return Levels(value, following)


def least_levels(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """float64 [N]: b-levels of the fastest allowed device's exec, transfers left out; no schedule takes less from v's start to its end."""
    out = graph.successors
    exec_s = np.where(graph.is_input, 0.0, np.where(costs.allowed, costs.exec_s, np.inf).min(axis=1))
    return _sweep(graph.topological_order[::-1].copy(), out.ptr, out.vertex, out.edge, np.zeros(graph.num_edges), exec_s, True)[0]


def _transfers(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """Mean transfer by edge; nothing from inputs, which are resident everywhere."""
    return np.where(graph.is_input[graph.sources], 0.0, costs.mean_transfer_s)


@numba.njit(cache=True)
def _sweep(order, ptr, neighbour, edge, transfer_s, exec_s, own_first):
    value = np.zeros(len(order))
    following = np.full(len(order), -1, np.int32)
    for v in order:
        best = 0.0
        for i in range(ptr[v], ptr[v + 1]):
            u = neighbour[i]
            through = transfer_s[edge[i]] + value[u]
            if not own_first:
                through += exec_s[u]
            if following[v] < 0 or through > best:
                best = through
                following[v] = u
        value[v] = best + exec_s[v] if own_first else best
    return value, following
