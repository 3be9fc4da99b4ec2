"""Costs corrected by measured runs: a factor for each link and for each kind of operation on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import plan_transfers
from doppler_tf.schedule.trace import Trace

# A group with a smaller share of the modelled time gets no factor: its measurements would show overhead more than the group's speed.
_TELLING = 1e-3


class Factors(NamedTuple):
    """Measured over modelled seconds; NaN for groups that the model gives too little time.

    Attributes:
      exec: float64 [K, D], by kind of operation (in the order of `np.unique(graph.kinds)`) and device.
      link: float64 [D, D], from row to column, of transfers whose cost comes from the link.
      explicit: float64 [1], of transfers whose cost is explicit, on whatever link.
    """

    exec: np.ndarray
    link: np.ndarray
    explicit: np.ndarray


def measured_factors(graph: DataflowGraph, costs: CostModel, trace: Trace) -> Factors:
    """The factors that one complete run shows: medians weighted by modelled seconds, so that long vertices count more than short ones.

    A duration is the time between instruction and news of the end where the trace has a log: so long a device or link was taken.
    """
    log, count = trace.log or trace, costs.num_devices
    kinds, kind = np.unique(graph.kinds, return_inverse=True)
    modelled_s = costs.exec_s[log.vertex, log.device] + _paid_s(costs, log)
    by_exec = _weighted_medians(log.end_s - log.start_s, modelled_s, kind[log.vertex] * count + log.device,
                                len(kinds) * count)
    device = np.full(graph.num_vertices, -1, np.int64)
    device[log.vertex] = log.device
    plan = plan_transfers(graph, costs, device)
    row = log.in_plan_order
    measured_s = (log.transfer_end_s - log.transfer_start_s)[row]
    moved = plan.of_edge >= 0
    # The edge with the largest cost decides. Transfers with edges of both kinds are left out, as neither kind explains their time.
    explicit, derived = (np.bincount(plan.of_edge[moved & sort], minlength=len(plan.producer)) > 0
                         for sort in (~np.isnan(costs.explicit_transfer_s), np.isnan(costs.explicit_transfer_s)))
    group = np.where(derived, plan.source * count + plan.destination, count * count)
    group[explicit & derived] = count * count + 1
    by_link = _weighted_medians(measured_s, plan.cost_s, group, count * count + 2)
    return Factors(by_exec.reshape(-1, count), by_link[:count * count].reshape(count, count), by_link[count * count:-1])


def refitted_costs(graph: DataflowGraph, costs: CostModel, runs: Sequence[Factors]) -> CostModel:
    """`costs` times the median of each factor over `runs`.

    What no run has shown takes the median of its like: a kind on a device that of the kind elsewhere, then that of all; a link that of
    the other links; without any, 1.
    """
    by_exec, link, explicit = (_median(np.stack(column), axis=0) for column in zip(*runs, strict=True))
    by_exec = _filled(_filled(by_exec, _median(by_exec, axis=1)[:, None]), _median(by_exec))
    link, explicit = _filled(link, _median(link)), _filled(explicit, _median(link))
    kind = np.unique(graph.kinds, return_inverse=True)[1]
    topology = costs.topology
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = np.where(topology.linked, topology.bandwidth_bytes_per_s / link, 0.0)
    refitted = replace(topology, name=f"{topology.name}-refitted", latency_s=topology.latency_s * link, bandwidth_bytes_per_s=bandwidth)
    return replace(costs, topology=refitted, exec_s=costs.exec_s * by_exec[kind], explicit_transfer_s=costs.explicit_transfer_s * explicit)


def _paid_s(costs: CostModel, trace: Trace) -> np.ndarray:
    """float64 [M]: by how much each execution ends later for transfers, as the rules of time have it."""
    paid_s, shares = np.zeros(len(trace.vertex)), costs.topology.shares
    if shares is None:
        return paid_s
    took_s = trace.transfer_end_s - trace.transfer_start_s
    for share, at in zip(shares, (trace.source, trace.destination), strict=True):
        owed_s = share[trace.source, trace.destination] * took_s
        for d in range(costs.num_devices):
            rows, sent = np.flatnonzero(trace.device == d), np.flatnonzero(at == d)
            rows = rows[np.argsort(trace.end_s[rows], kind="stable")]
            payer = np.searchsorted(trace.end_s[rows], trace.transfer_start_s[sent], side="right")  # what ends next
            np.add.at(paid_s, rows[payer[payer < len(rows)]], owed_s[sent[payer < len(rows)]])
    return paid_s


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The least value that together with all smaller ones has half of the weight or more; values, weights: float64 [n >= 1]."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _weighted_medians(measured_s: np.ndarray, modelled_s: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """float64 [count]: by group the median of measured / modelled, weighted by modelled; NaN where too little is modelled."""
    found = np.full(count, np.nan)
    rows = np.flatnonzero(modelled_s > 0)
    rows = rows[np.argsort(group[rows])]
    for members in np.split(rows, np.flatnonzero(np.diff(group[rows])) + 1) if len(rows) else ():
        weight = modelled_s[members]
        if weight.sum() >= _TELLING * modelled_s.sum():
            found[group[members[0]]] = weighted_median(measured_s[members] / weight, weight)
    return found


def _median(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The median of the values that are not NaN; NaN if all are."""
    kept = np.ma.median(np.ma.masked_invalid(values), axis=axis)
    return np.ma.filled(np.ma.asarray(kept, np.float64), np.nan)


def _filled(values: np.ndarray, otherwise: np.ndarray | float) -> np.ndarray:
    """`values`, with `otherwise` in place of NaN, and 1 where both are NaN."""
    return np.nan_to_num(np.where(np.isnan(values), otherwise, values), nan=1.0)
