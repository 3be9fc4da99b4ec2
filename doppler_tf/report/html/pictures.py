"""The data of the page's pictures as JSON: the Gantt chart of a trace, and the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.figures import LINK, OTHER, PALETTE
from doppler_tf.report.gantt_rows import groups_of, is_dark, lanes_of, link_rows
from doppler_tf.report.html.layout import layered
from doppler_tf.report.memory_rows import memory_rows
from doppler_tf.report.tables import TimeUnit
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.trace import Trace

# Limits up to which a browser draws quickly and a person can read the picture.
MOST_BARS, MOST_VERTICES, MOST_EDGES = 5_000, 1_000, 5_000


def gantt_data(graph: DataflowGraph, costs: CostModel, trace: Trace, lower_bound_s: float) -> dict[str, Any] | None:
    """The bars of a trace; None if there are more than MOST_BARS.

    Returns:
      `rows`: the devices, those of `memory_rows` with `memory`, then the links as in `link_rows`, with `label` and `lanes`. `bars`: columns
      `row`, `lane`, `start_s`, `end_s`, `vertex`, `source`, `destination` (both the device of an execution) and `group`, an index into
      `groups`; transfers have the last one. `memory`: what those rows are.
    """
    if len(trace.vertex) + len(trace.producer) > MOST_BARS:
        return None
    groups, names, others = groups_of(graph, trace)
    lane, lanes = lanes_of(trace, costs)
    devices, busy = costs.topology.device_names, device_utilisation(costs, trace).tolist()
    rows = [{"label": f"{name} {share:.0%}", "lanes": int(count), "link": False}
            for name, share, count in zip(devices, busy, lanes, strict=True)]
    held, what = memory_rows(graph, costs, trace)
    for row in held:
        time_s, height = row.until(trace.makespan_s)
        rows.append({"label": " ".join(row.label.split()), "lanes": 1, "link": False, "memory": {
            "time_s": time_s.tolist(), "height": height.tolist(), "limit": row.is_near}})
    row_of = np.zeros(len(trace.producer), np.int64)
    for label, members in link_rows(costs, trace):
        row_of[members] = len(rows)
        rows.append({"label": " ".join(label.split()), "lanes": 1, "link": True})
    colours = [colour(g) for g in range(len(names))] + [colour(-1), colour(-1) | {"colour": LINK}]
    labels = [*names, f"{others} others", "transfer"]
    columns = {"row": (trace.device, row_of), "lane": (lane, np.zeros_like(row_of)), "start_s": (trace.start_s, trace.transfer_start_s),
               "end_s": (trace.end_s, trace.transfer_end_s), "vertex": (trace.vertex, trace.producer),
               "source": (trace.device, trace.source), "destination": (trace.device, trace.destination),
               "group": (groups, np.full(len(row_of), len(labels) - 1))}
    bars = {name: np.concatenate(parts).tolist() for name, parts in columns.items()}
    used = set(bars["group"])
    return {"rows": rows, "bars": bars, "makespan_s": trace.makespan_s, "lower_bound_s": lower_bound_s, "memory": what,
            "groups": [{"name": label, "used": g in used, **look} for g, (label, look) in enumerate(zip(labels, colours, strict=True))]}


def graph_data(graph: DataflowGraph, assignment: Assignment) -> dict[str, Any] | None:
    """The positions of work vertices and the edges between them; None for a graph that is too large to draw.

    Returns:
      `vertex`, `column`, `row` and `device` of each drawn vertex; `edges`: pairs of indices into them.
    """
    drawn = graph.work_vertices
    if len(drawn) > MOST_VERTICES or len(graph.work_edges) > MOST_EDGES:
        return None
    column, row = layered(graph)
    position = np.full(graph.num_vertices, -1)
    position[drawn] = np.arange(len(drawn))
    edges = np.stack([position[graph.sources[graph.work_edges]], position[graph.targets[graph.work_edges]]], axis=1)
    return {"vertex": drawn.tolist(), "column": column[drawn].tolist(), "row": row[drawn].tolist(), "edges": edges.tolist(),
            "device": assignment.device[drawn].tolist()}


def names_data(graph: DataflowGraph, costs: CostModel, unit: TimeUnit) -> dict[str, Any]:
    """Data for both pictures: labels and kinds of vertices, devices with colours, and the unit of times."""
    labels = [graph.vertex_label(v) for v in range(graph.num_vertices)]
    devices = [{"name": name, **colour(d)} for d, name in enumerate(costs.topology.device_names)]
    return {"vertices": labels, "names": list(graph.names), "kinds": list(graph.kinds), "devices": devices, "unit": unit_data(unit)}


def unit_data(unit: TimeUnit) -> dict[str, Any]:
    """A unit for the script."""
    return {"factor": unit.factor, "decimals": unit.decimals, "suffix": unit.suffix, "axis": unit.plain_axis}


def colour(index: int) -> dict[str, Any]:
    """The colour of a device or group, repeating after the end of the palette; -1: the colour of the rest."""
    value = OTHER if index < 0 else PALETTE[index % len(PALETTE)]
    return {"colour": value, "dark": is_dark(value)}


def executions(graph: DataflowGraph, costs: CostModel, trace: Trace) -> Sequence[dict[str, Any]]:
    """The executions as rows of a table, by start."""
    order, names = np.lexsort((trace.vertex, trace.start_s)), costs.topology.device_names
    return [{"vertex": graph.vertex_label(int(trace.vertex[i])), "kind": graph.kinds[trace.vertex[i]], "device": names[trace.device[i]],
             "start_s": float(trace.start_s[i]), "end_s": float(trace.end_s[i])} for i in order]
