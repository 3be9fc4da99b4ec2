"""How placements, traces and distributed functions show themselves: a few lines of text, a table with a picture in notebooks, a figure."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from doppler_tf.placement import Placement
from doppler_tf.report.gantt import gantt_figure
from doppler_tf.report.tables import TimeUnit, over, percent, time_unit
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.schedule.bounds import bound_in_calls_s, known_bound_s
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import Trace

# Devices in text; vertices in a picture that nobody asked for, as more of them take seconds.
_MOST_NAMED, _MOST_DRAWN = 8, 5_000
_CELL = 'style="text-align: left; padding: 2px 12px 2px 0"'


@dataclass(frozen=True)
class Shown:
    """What there is to show.

    Attributes:
      title: what it is, in a word; facts: values by name.
      device: int [N], as in an Assignment; names: of the devices.
      run: gives the trace that is drawn.
      bound_s: the lower bound in the picture; None: there is none; method: in the picture's title.
    """

    title: str
    facts: Mapping[str, str]
    device: np.ndarray
    names: tuple[str, ...]
    run: Callable[[], Trace]
    bound_s: float | None = None
    method: str = ""

    def text(self) -> str:
        """A line a fact, and the devices that run vertices, with how many."""
        used = [f"{name} {count:,}" for name, count in self._vertices().items()]
        more = f" and {len(used) - _MOST_NAMED:,} more" if len(used) > _MOST_NAMED else ""
        lines = {**self.facts, "vertices": f"{', '.join(used[:_MOST_NAMED])}{more}; {len(used)} of {len(self.names)} devices"}
        return "\n".join([self.title, *(f"  {name}: {value}" for name, value in lines.items())])

    def html(self) -> str:
        """Tables of facts and of devices, and the Gantt picture; of a large graph the first alone."""
        tables = [f"<b>{html.escape(self.title)}</b>", _table(self.facts.items())]
        if (self.device >= 0).sum() > _MOST_DRAWN:
            tables.append("<p>A large graph: <code>plot()</code> draws it.</p>")
        else:
            trace, vertices = self.run(), self._vertices()
            busy = dict(zip(trace.costs.topology.device_names, device_utilisation(trace.costs, trace), strict=True))
            tables.append(_table([("device", "vertices", "busy"), *((name, f"{vertices.get(name, 0):,}", percent(busy[name]))
                                                                    for name in self.names)]))
            png = base64.b64encode(self._draw(trace)._repr_png_()).decode()
            tables.append(f'<img alt="Gantt picture" style="max-width: 100%; height: auto" src="data:image/png;base64,{png}">')
        return "\n".join(tables)

    def figure(self) -> Figure:
        """The Gantt picture."""
        return self._draw(self.run())

    def _draw(self, trace: Trace) -> Figure:
        return gantt_figure(trace.graph, trace.costs, trace, self.bound_s, self.method)

    def _vertices(self) -> dict[str, int]:
        count = np.bincount(self.device[self.device >= 0], minlength=len(self.names)).tolist()
        return {name: number for name, number in zip(self.names, count, strict=True) if number}


def shown(result) -> Shown:
    """What there is to show of a placement, a trace, or what `distribute` returns, whose module is above this room."""
    makers = {Placement: _of_placement, Trace: _of_trace}
    return makers.get(type(result), _of_distributed)(result)


def _of_placement(placed: Placement) -> Shown:
    """A placement; the picture is of a simulation."""
    graph, costs, assignment, unit = placed.graph, placed.costs, placed.assignment, time_unit([placed.makespan_s])
    facts = {"graph": f"{graph.name} on {costs.topology.name}", "method": f"{assignment.method}, rule {assignment.dispatch}",
             "makespan": unit.text(placed.makespan_s), "lower bound": _bound(placed.lower_bound_s, placed.makespan_s, unit)}
    return Shown("Placement", facts, assignment.device, costs.topology.device_names, lambda: simulate(graph, costs, assignment),
                 placed.lower_bound_s, assignment.method)


def _of_trace(trace: Trace) -> Shown:
    """A run."""
    device = np.full(trace.graph.num_vertices, -1)
    device[trace.vertex] = trace.device
    facts = {"graph": f"{trace.graph.name} on {trace.costs.topology.name}", "run on": f"{trace.device_kind} devices, rule {trace.dispatch}",
             "makespan": time_unit([trace.makespan_s]).text(trace.makespan_s), "transfers": f"{len(trace.producer):,}"}
    return Shown("Trace", facts, device, trace.costs.topology.device_names, lambda: trace)


def _of_distributed(placed) -> Shown:
    """What `distribute` returns. The picture is of the last run, before one of a simulation."""
    graph, costs, assignment, figures = placed.graph, placed.costs, placed.assignment, placed.ways[placed.chosen]
    unit = time_unit([figures.median_s])
    last, alone = placed.trace, placed.in_flight == 1
    simulated = "" if figures.simulated_s is None else f", simulated {unit.text(figures.simulated_s)}"
    facts = {"function": f"{graph.name} on {costs.topology.name}", "runs on": placed.chosen,
             "measured": f"{unit.text(figures.median_s)}{'' if alone else f' a call of {placed.in_flight} in flight'}{simulated}",
             "lower bound": f"{unit.text(bound_in_calls_s(graph, costs))}, of one call on the engine"}
    if last is not None:
        facts["last run"] = unit.text(last.makespan_s)
    drawn_alone = last is None or last.graph.num_vertices == graph.num_vertices
    return Shown("Distributed", facts, assignment.device, costs.topology.device_names,
                 lambda: simulate(graph, costs, assignment) if last is None else last,
                 known_bound_s(graph, costs, assignment) if drawn_alone else None, assignment.method)


def _bound(bound_s: float, makespan_s: float, unit: TimeUnit) -> str:
    return f"{unit.text(bound_s)} (makespan {over(makespan_s, bound_s)})"


def _table(rows) -> str:
    """Rows of texts, the first of each as a heading."""
    body = "".join(f"<tr><th {_CELL}>{html.escape(first)}</th>{''.join(f'<td {_CELL}>{html.escape(cell)}</td>' for cell in rest)}</tr>"
                   for first, *rest in rows)
    return f"<table>{body}</table>"
