"""PEFT: predict earliest finish time."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.fastsim.compiled import compiled
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import by_priority
from doppler_tf.heuristics.timeline import by_start, problem

_ANY = -1


def peft(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Vertices by their mean optimistic cost, each where its end plus what must still follow is least; gaps are filled.

    (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014.)
    """
    table = optimistic_costs(graph, costs)
    anywhere = np.full(graph.num_vertices, _ANY, np.int32)
    made = by_priority.schedule(problem(graph, costs), table.mean(axis=1), table, anywhere, True, False)
    return by_start(*made, "peft")


def optimistic_costs(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """The optimistic cost table, float64 [N, D]: what must follow a vertex that ran on d if every successor had its best device free."""
    out = graph.successors
    return _table(graph.topological_order[::-1].copy(), out.ptr, out.vertex, costs.mean_transfer_s[out.edge], costs.exec_s, costs.allowed)


@compiled
def _table(order, ptr, consumer, transfer_s, exec_s, allowed):
    count, num_devices = exec_s.shape
    table = np.zeros((count, num_devices))
    for v in order:
        for i in range(ptr[v], ptr[v + 1]):
            w = consumer[i]
            elsewhere = np.inf
            for d in range(num_devices):
                if allowed[w, d]:
                    elsewhere = min(elsewhere, table[w, d] + exec_s[w, d])
            elsewhere += transfer_s[i]
            for d in range(num_devices):
                here = table[w, d] + exec_s[w, d] if allowed[w, d] else np.inf
                table[v, d] = max(table[v, d], min(here, elsewhere))
    return table
