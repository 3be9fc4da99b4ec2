"""Busy shares of devices, links and network cards."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.schedule.trace import Trace, by_link


def device_utilisation(costs: CostModel, trace: Trace) -> np.ndarray:
    """float64 [D]: busy slot seconds / (slots * makespan); 0 if the makespan is 0."""
    busy = np.bincount(trace.device, trace.end_s - trace.start_s, costs.num_devices)
    return busy / (costs.slots * trace.makespan_s) if trace.makespan_s > 0 else np.zeros(costs.num_devices)


def link_utilisation(trace: Trace) -> dict[tuple[int, int], float]:
    """The share of the makespan in which each used link carried a transfer, by (source, destination)."""
    return {link: _union(trace.transfer_start_s[members], trace.transfer_end_s[members]) / trace.makespan_s if trace.makespan_s > 0 else 0.0
            for link, members in by_link(trace.source, trace.destination).items()}


def card_utilisation(costs: CostModel, trace: Trace) -> dict[str, float]:
    """The share of the makespan in which each used network card carried a transfer, by its first link and the number of its others.

    Empty where links never wait, because cards do nothing there.
    """
    lanes, names, shares = costs.topology.lanes, costs.topology.device_names, {}
    if costs.topology.link_slots is None:
        return shares
    for lane in np.unique(lanes[trace.source, trace.destination]).tolist():
        links = np.argwhere(lanes == lane)
        if len(links) > 1:
            members = lanes[trace.source, trace.destination] == lane
            busy_s = _union(trace.transfer_start_s[members], trace.transfer_end_s[members])
            first = f"{names[links[0, 0]]} -> {names[links[0, 1]]} and {len(links) - 1} more"
            shares[first] = busy_s / trace.makespan_s if trace.makespan_s > 0 else 0.0
    return shares


def _union(start: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    return float(np.sum(end - np.maximum(start, np.concatenate([start[:1], end[:-1]]))))
