"""Simple baselines: one device, round robin, random. They honour pins and colocation groups and ignore transfers."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph


def one_device(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """All vertices on the device that can run most of them, with the least total exec; others, and pinned ones, where they may go."""
    work = graph.work_vertices
    return all_on(graph, costs, int(np.lexsort((costs.exec_s[work].sum(axis=0), (~costs.eligible[work]).sum(axis=0)))[0]))


def all_on(graph: DataflowGraph, costs: CostModel, device: int) -> Assignment:
    """All vertices on `device`; those that may not go there on the next device where they may."""
    ranked = np.tile(np.roll(np.arange(costs.num_devices), -device), (graph.num_vertices, 1))
    return Assignment(_first_allowed(graph, costs, ranked), graph.topological_order[~graph.is_input[graph.topological_order]], "one_device")


def round_robin(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Vertices in topological order, on one device after another."""
    order = graph.topological_order[~graph.is_input[graph.topological_order]]
    turn = np.zeros(graph.num_vertices, np.int64)
    turn[order] = np.arange(order.size)
    ranked = (turn[:, None] + np.arange(costs.num_devices)) % costs.num_devices
    return Assignment(_first_allowed(graph, costs, ranked), order, "round_robin")


def random(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """Each vertex on a permitted device drawn uniformly."""
    ranked = np.argsort(rng.random((graph.num_vertices, costs.num_devices)), axis=1)
    return Assignment(_first_allowed(graph, costs, ranked), graph.topological_order[~graph.is_input[graph.topological_order]], "random")


def _first_allowed(graph: DataflowGraph, costs: CostModel, ranked: np.ndarray) -> np.ndarray:
    """The first permitted device in each vertex's row of `ranked` [N, D]; a colocation group gets the device of its first vertex."""
    permitted = np.take_along_axis(costs.allowed, ranked, axis=1)
    device = np.take_along_axis(ranked, np.argmax(permitted, axis=1)[:, None], axis=1)[:, 0].astype(np.int32)
    device[graph.is_input] = -1
    members = np.flatnonzero((costs.colocate >= 0) & ~graph.is_input)
    first = np.full(len(graph.groups), graph.num_vertices)
    np.minimum.at(first, costs.colocate[members], members)
    device[members] = device[first[costs.colocate[members]]]
    return device
