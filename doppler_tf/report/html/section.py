"""The part of the page about one graph: its figures and pictures as data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.html.pictures import MOST_BARS, colour, executions, gantt_data, graph_data, names_data, unit_data
from doppler_tf.report.idle import CAUSES, idle_by_cause
from doppler_tf.report.methods import fastest_baseline
from doppler_tf.report.tables import time_unit
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.trace import Trace, peak_bytes

# Rows of a learning chart's table.
_MOST_ROWS = 20


@dataclass(frozen=True)
class Outcome:
    """The results of a run on one graph.

    Attributes:
      figures: of `result.json`.
      assignment, trace: the best assignment, and its run under the virtual clock.
      methods: of `report.methods.compared_methods`.
      charts: of `cli.learning_curves.learning_charts`.
      traces: of `trace_link`.
    """

    graph: DataflowGraph
    costs: CostModel
    figures: Mapping[str, Any]
    assignment: Assignment
    trace: Trace
    methods: Sequence[Mapping[str, Any]]
    charts: Sequence[Mapping[str, Any]]
    traces: Sequence[Mapping[str, str]]


def trace_link(path: Path, page: Path, what: str, makespan_s: float) -> dict[str, str]:
    """A trace file as the page links to it: `href`, `text` and `what`, which describes it."""
    seconds = time_unit([makespan_s]).text(makespan_s)
    return {"href": quote(os.path.relpath(path, page.parent)), "text": path.name, "what": f"{what}: {seconds}"}


def section(outcome: Outcome) -> dict[str, Any]:
    """The template's values for one graph; `data` holds the values of the script."""
    graph, costs, trace, figures = outcome.graph, outcome.costs, outcome.trace, outcome.figures
    bound_s = figures["lower_bound_s"]
    unit = time_unit([trace.makespan_s, figures["greedy_makespan_s"], figures["best_makespan_s"], bound_s])
    gantt, drawing = gantt_data(graph, costs, trace, bound_s), graph_data(graph, outcome.assignment)
    charts = [_chart(chart, bound_s) for chart in outcome.charts]
    return {
        "name": graph.name, "topology": costs.topology.name, "figures": figures, "measured": figures.get("measured"),
        "baseline": fastest_baseline(figures.get("measured") or {}), "unit": unit, "makespan_s": trace.makespan_s,
        "vertices": len(graph.work_vertices), "inputs": int(graph.is_input.sum()), "edges": len(graph.work_edges), "depth": graph.depth,
        "dispatch": trace.dispatch, "methods": _ranked(outcome.methods),
        "methods_unit": time_unit([row["makespan_s"] for row in outcome.methods]),
        "devices": _devices(graph, costs, outcome.assignment, trace), "transfers": len(trace.producer), "charts": charts,
        "executions": executions(graph, costs, trace) if len(trace.vertex) <= MOST_BARS else [], "traces": outcome.traces,
        "data": {**(names_data(graph, costs, unit) if gantt or drawing else {}), "gantt": gantt, "graph": drawing,
                 "charts": [chart["data"] for chart in charts]},
    }


def _ranked(methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Learned methods first, then the rest, each sorted by makespan. `fastest` marks methods that no other beats."""
    known = [row["makespan_s"] for row in methods if row["makespan_s"] is not None]
    rows = sorted(methods, key=lambda row: (not row["learned"], row["makespan_s"] is None, row["makespan_s"] or 0.0))
    return [{**row, "fastest": row["makespan_s"] == min(known, default=None)} for row in rows]


def _devices(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> list[dict[str, Any]]:
    """One row per device: vertices, busy share, peak memory, idle seconds by cause."""
    idle, busy = idle_by_cause(graph, costs, assignment, trace), device_utilisation(costs, trace)
    peaks = peak_bytes(graph, costs, assignment, trace)
    return [{"name": name, "index": d, **colour(d), "vertices": int((trace.device == d).sum()), "busy": float(busy[d]),
             "peak_bytes": float(peaks[d]), "idle": dict(zip(CAUSES, idle[d].tolist(), strict=True))}
            for d, name in enumerate(costs.topology.device_names)]


def _chart(chart: Mapping[str, Any], bound_s: float) -> dict[str, Any]:
    """A chart with a table of some of its points. If y is in seconds, it is shown in the chart's own unit."""
    series = chart["series"]
    values = [y for line in series for _, y in line["points"]]
    unit = time_unit(values) if chart["seconds"] else None
    xs = sorted({x for line in series for x, _ in line["points"]})
    if len(xs) > _MOST_ROWS:
        xs = [xs[round(i * (len(xs) - 1) / (_MOST_ROWS - 1))] for i in range(_MOST_ROWS)]
    by_x = [dict(map(tuple, line["points"])) for line in series]
    rows = [(x, [points.get(x) for points in by_x]) for x in xs]
    axes = {"title": chart["title"], "x": chart["x"], "y": chart["y"]}
    plain = {"factor": 1, "decimals": 2, "suffix": "", "axis": ""}
    return {**axes, "names": [line["name"] for line in series], "rows": rows, "unit": unit,
            "data": {**axes, "series": series, "bound_s": bound_s if unit else None, "unit": unit_data(unit) if unit else plain}}
