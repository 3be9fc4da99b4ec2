"""Shared by all Gantt pictures: groups of vertices, lanes of devices, rows of links."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.figures import PALETTE
from doppler_tf.report.utilisation import link_utilisation
from doppler_tf.schedule.trace import Trace, by_link

_MAX_LINK_ROWS = 16


def groups_of(graph: DataflowGraph, trace: Trace) -> tuple[np.ndarray, list[str], int]:
    """Colour index by bar, the names of the colours, and the number of names that share the last colour.

    Names are meta-ops if the graph has them, else kinds. Names with the most time get a colour, in the order in which they first run.
    """
    labels = graph.meta_op if any(graph.meta_op[v] for v in trace.vertex.tolist()) else graph.kinds
    bar_names = [labels[v] or "none" for v in trace.vertex.tolist()]
    time_of: dict[str, float] = {}
    for name, seconds in zip(bar_names, (trace.end_s - trace.start_s).tolist(), strict=True):
        time_of[name] = time_of.get(name, 0.0) + seconds
    names = sorted(time_of, key=lambda name: (-time_of[name], name))[:len(PALETTE)]
    first = {name: min(i for i, other in enumerate(bar_names) if other == name) for name in names}
    names.sort(key=lambda name: (trace.start_s[first[name]], first[name]))
    index = {name: i for i, name in enumerate(names)}
    return np.array([index.get(name, len(names)) for name in bar_names], np.int64), names, len(time_of) - len(names)


def lanes_of(trace: Trace, costs: CostModel) -> tuple[np.ndarray, np.ndarray]:
    """The lane of each bar within its device, and the number of lanes by device, which is its number of slots."""
    lane, lanes = np.zeros(len(trace.vertex), np.int64), costs.slots.astype(np.int64)
    for d in np.flatnonzero(lanes > 1).tolist():
        free = np.zeros(lanes[d])
        members = np.flatnonzero(trace.device == d)
        for i in members[np.lexsort((trace.end_s[members], trace.start_s[members]))].tolist():
            lane[i] = int(np.argmin(free))
            free[lane[i]] = trace.end_s[i]
    return lane, lanes


def link_rows(costs: CostModel, trace: Trace) -> list[tuple[str, np.ndarray]]:
    """(label, members) of each row: a link that was used or, if these are too many, all links into one device."""
    names, shares = costs.topology.device_names, link_utilisation(trace)
    if len(shares) <= _MAX_LINK_ROWS:
        return [(f"{names[s]} → {names[d]}   {shares[s, d]:4.0%}", members)
                for (s, d), members in by_link(trace.source, trace.destination).items()]
    return [(f"all → {names[d]}", np.flatnonzero(trace.destination == d)) for d in sorted({d for _, d in shares})]


def is_dark(colour: str) -> bool:
    """Whether text on this colour should be white."""
    red, green, blue = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140
