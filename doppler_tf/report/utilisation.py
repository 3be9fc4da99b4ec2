"""How busy devices and links were."""

from __future__ import annotations

import numpy as np

from doppler_tf.costs import CostModel
from doppler_tf.trace import Trace, by_link


def device_utilisation(costs: CostModel, trace: Trace) -> np.ndarray:
    """float64 [D]: busy slot seconds over slots times makespan; 0 for a run that takes no time."""
    busy = np.bincount(trace.device, trace.end_s - trace.start_s, costs.num_devices)
    return busy / (costs.slots * trace.makespan_s) if trace.makespan_s > 0 else np.zeros(costs.num_devices)


def link_utilisation(trace: Trace) -> dict[tuple[int, int], float]:
    """By (source, destination) of every link used: the fraction of the makespan in which it carried anything."""
    return {link: _union(trace.transfer_start_s[members], trace.transfer_end_s[members]) / trace.makespan_s if trace.makespan_s > 0 else 0.0
            for link, members in by_link(trace.source, trace.destination).items()}


def _union(start: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    return float(np.sum(end - np.maximum(start, np.concatenate([start[:1], end[:-1]]))))
