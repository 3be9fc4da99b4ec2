"""Where searches begin unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.critical_path import critical_path
from doppler_tf.heuristics.enumerative import enumerative
from doppler_tf.heuristics.list_schedulers import etf, heft
from doppler_tf.heuristics.partition import partition

# Above this size only the first two are tried, and only on all devices: at 100,000 vertices that takes a second.
_MOST_VERTICES = 20_000
_TRIED = (critical_path, heft, etf, enumerative, partition)
# Those that use no device which is forbidden, and so can be held to fewer devices.
_ON_FEWER = (critical_path, heft, etf)


def starting_point(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, dispatch: str,
                   known: Assignment | None = None) -> Assignment:
    """The fastest by simulation of some constructed assignments, the first of equals.

    They are one of critical path, HEFT, ETF, the enumerative optimizer and a partition, or `known` in place of these; and the first three
    on fewer devices, which beat all others where transfers are costly. Graphs above 20,000 vertices get critical path and HEFT alone.
    """
    few = graph.num_vertices <= _MOST_VERTICES
    found = [make(graph, costs, rng) for make in _TRIED[:None if few else 2]] if known is None else [known]
    if few:
        found += [make(graph, fewer, rng) for fewer in _on_fewer_devices(graph, costs) for make in _ON_FEWER]
    makespans = FastSimulator(graph, costs, dispatch).makespans(np.stack([a.device for a in found]), stacked_orders(found))
    return found[int(np.argmin(makespans))]


def stacked_orders(assignments: list[Assignment]) -> np.ndarray | None:
    """int32 [B, M], None if one of them has no order."""
    if any(a.order is None for a in assignments):
        return None
    return np.stack([a.order for a in assignments])


def _on_fewer_devices(graph: DataflowGraph, costs: CostModel) -> Iterator[CostModel]:
    """The same costs with half of the devices allowed, a quarter, and so on to one: fast ones that are close to each other. What is pinned
    elsewhere stays there."""
    order = _close_together(graph, costs)
    count = costs.num_devices // 2
    while count:
        group = np.zeros(costs.num_devices, bool)
        group[order[:count]] = True
        inside = costs.allowed & group
        yield replace(costs, allowed=np.where(inside.any(axis=1, keepdims=True), inside, costs.allowed))
        count //= 2


def _close_together(graph: DataflowGraph, costs: CostModel) -> list[int]:
    """All devices: the fastest, then always the one that takes least for a mean vertex and a mean transfer from and to those before."""
    work_s = costs.exec_s[graph.work_vertices].sum(axis=0) / max(1, graph.work_vertices.size)
    sent_bytes, link_s = costs.edge_bytes[np.isnan(costs.explicit_transfer_s)], np.zeros((costs.num_devices, costs.num_devices))
    if sent_bytes.size:
        link_s = costs.topology.latency_s + sent_bytes.mean() / costs.topology.bandwidth_bytes_per_s
    order, away_s = [int(np.argmin(work_s))], np.zeros(costs.num_devices)
    while len(order) < costs.num_devices:
        away_s += link_s[order[-1]] + link_s[:, order[-1]]
        taken_s = work_s + away_s / len(order)
        taken_s[order] = np.inf
        order.append(int(np.argmin(taken_s)))
    return order
