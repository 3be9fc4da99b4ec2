"""Simple baselines: one device, round robin, random. They honour pins and colocation groups and ignore transfers."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.mending import first_allowed, legal, over_links
from doppler_tf.schedule.assignment import Assignment


def one_device(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """All vertices on the device that can run most of them, with the least total exec; others, and pinned ones, where they may go."""
    work = graph.work_vertices
    return all_on(graph, costs, int(np.lexsort((costs.exec_s[work].sum(axis=0), (~costs.eligible[work]).sum(axis=0)))[0]))


def all_on(graph: DataflowGraph, costs: CostModel, device: int) -> Assignment:
    """All vertices on `device`; those that may not go there on the next device where they may."""
    ranked = np.tile(np.roll(np.arange(costs.num_devices), -device), (graph.num_vertices, 1))
    order = graph.topological_order[~graph.is_input[graph.topological_order]]
    return legal(graph, costs, Assignment(first_allowed(graph, costs, ranked), order, "one_device"))


@over_links
def round_robin(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Vertices in topological order, on one device after another."""
    order = graph.topological_order[~graph.is_input[graph.topological_order]]
    turn = np.zeros(graph.num_vertices, np.int64)
    turn[order] = np.arange(order.size)
    ranked = (turn[:, None] + np.arange(costs.num_devices)) % costs.num_devices
    return Assignment(first_allowed(graph, costs, ranked), order, "round_robin")


@over_links
def random(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Each vertex on a permitted device drawn uniformly."""
    ranked = np.argsort(rng.random((graph.num_vertices, costs.num_devices)), axis=1)
    return Assignment(first_allowed(graph, costs, ranked), graph.topological_order[~graph.is_input[graph.topological_order]], "random")
