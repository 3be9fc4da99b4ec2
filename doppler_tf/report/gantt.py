"""A Gantt picture of a trace: a row by device and link, vertices coloured by group, pinned ones outlined; memory over time below."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from doppler_tf.formats.files import write_bytes
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.figures import DPI, INK, LINK, MEMORY, OTHER, PALETTE, PAPER, names_as_text, new_figure, png_bytes, style_axes
from doppler_tf.report.gantt_rows import groups_of, is_dark, lanes_of, link_rows
from doppler_tf.report.memory_rows import MemoryRow, memory_rows
from doppler_tf.report.tables import over, percent, time_unit
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.schedule.trace import Trace

_MAX_LABELS = 400
_CHARACTER_IN, _CARD_CHARACTERS = 0.066, 64
_LEGEND_IN, _MEMORY_TITLE_IN = 0.16, 0.3
_EDGE_FROM_PX, _PIN_LINE = 4, 1.4
_MAX_SNAPPED = 500


@dataclass(frozen=True)
class _Size:
    """The size of a picture: inches of its width and of rows, pixels per inch, and the most columns and characters of a legend's row."""

    width: float
    dpi: int
    device: float
    memory: float
    link: float
    columns: int
    characters: int


# A page, and a card of TensorBoard. A card is 350 pixels wide; TensorBoard shrinks wider pictures so much that no text is legible.
_PAGE, _CARD = _Size(13.0, DPI, 0.42, 0.3, 0.17, 99, 1000), _Size(3.5, 100, 0.24, 0.0, 0.14, 3, 33)


def write_gantt(path: str | Path, graph: DataflowGraph, costs: CostModel, trace: Trace, lower_bound_s: float | None = None,
                method: str = "") -> None:
    """Writes `gantt_png` atomically. Raises FormatError if the file cannot be written."""
    write_bytes(path, gantt_png(graph, costs, trace, lower_bound_s, method))


def gantt_png(graph: DataflowGraph, costs: CostModel, trace: Trace, lower_bound_s: float | None = None, method: str = "",
              card: bool = False) -> bytes:
    """The picture as PNG.

    Args:
      lower_bound_s: drawn as a line and stated in the title; None: neither.
      method: that made the assignment, for the title.
      card: a picture of TensorBoard's width, 350 pixels, instead of 1,950, and without memory.
    """
    with names_as_text():
        return png_bytes(_Picture(graph, costs, trace, lower_bound_s, _CARD if card else _PAGE).drawn(method))


def gantt_figure(graph: DataflowGraph, costs: CostModel, trace: Trace, lower_bound_s: float | None = None, method: str = "") -> Figure:
    """The picture of a page as a figure; arguments as for `gantt_png`."""
    with names_as_text():
        return _Picture(graph, costs, trace, lower_bound_s, _PAGE).drawn(method)


class _Picture:
    def __init__(self, graph: DataflowGraph, costs: CostModel, trace: Trace, lower_bound_s: float | None, size: _Size):
        self.graph, self.costs, self.trace, self.lower_bound_s, self.size = graph, costs, trace, lower_bound_s, size
        self.unit = time_unit([trace.makespan_s])
        self.span = trace.makespan_s * self.unit.factor

    def drawn(self, method: str) -> Figure:
        """Devices, the memory that they hold, and links, one above the other."""
        rows, size = link_rows(self.costs, self.trace), self.size
        memory, what = memory_rows(self.graph, self.costs, self.trace) if size is _PAGE else ([], "")
        heights = [size.device * self.costs.num_devices, *([size.memory * len(memory)] if memory else []), max(size.link * len(rows), 0.01)]
        figure = new_figure(size.width, sum(heights) + 1.75 + (_MEMORY_TITLE_IN if memory else 0.0), size.dpi)
        devices, *between, links = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        legend = self._draw_devices(devices)
        for axes in between:
            self._draw_memory(axes, memory, what)
        self._draw_links(links, rows)
        links.set_visible(bool(rows))
        self._finish(figure, [devices, *between, *([links] if rows else [])], legend)
        title = self._title(method)
        if size is _PAGE:
            devices.set_title("\n".join(title), loc="left", fontsize=10, color=INK, pad=10, linespacing=1.5)
        else:  # over the whole width
            title = [line.replace("  ·  ", "\N{NO-BREAK SPACE}· ") for line in title]
            lines = [textwrap.fill(line, _CARD_CHARACTERS, max_lines=2, placeholder=" …") for line in title]
            figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=7, color=INK)
        return figure

    def _title(self, method: str) -> list[str]:
        """Two lines."""
        trace, bound_s, text = self.trace, self.lower_bound_s, self.unit.text
        first = [f"{self.graph.name} on {self.costs.topology.name}", *([method] if method else []),
                 f"{trace.device_kind} devices, {trace.dispatch}"]
        second = [f"makespan {text(trace.makespan_s)}",
                  *([] if bound_s is None else [f"lower bound of the model {text(bound_s)} ({over(trace.makespan_s, bound_s)})"]),
                  f"devices busy {percent(float(np.mean(device_utilisation(self.costs, trace))))}"]
        return ["  ·  ".join(first), "  ·  ".join(second)]

    def _draw_devices(self, axes: Axes) -> list[Patch]:
        """Draws bars by device, in one lane per slot, with an outline where no other device is permitted; returns the legend."""
        costs, trace = self.costs, self.trace
        groups, names, others = groups_of(self.graph, trace)
        colours = np.array([*PALETTE[:len(names)], OTHER])
        lane, lanes = lanes_of(trace, costs)
        height = 0.84 / lanes[trace.device]
        bottom = trace.device - 0.42 + lane * height
        start, width = trace.start_s * self.unit.factor, (trace.end_s - trace.start_s) * self.unit.factor
        _add_boxes(axes, _boxes(start, width, bottom, height), colours[groups], 1.0, self._edges(width))
        pinned = np.flatnonzero(costs.allowed[trace.vertex].sum(axis=1) == 1) if costs.num_devices > 1 else np.zeros(0, np.int64)
        axes.add_collection(PolyCollection(_boxes(start[pinned], width[pinned], bottom[pinned], height[pinned]), facecolors="none",
                                           edgecolors=INK, linewidths=_PIN_LINE, zorder=2))
        busy = device_utilisation(costs, trace)
        names_and_busy = zip(costs.topology.device_names, busy, strict=True)
        axes.set_yticks(range(costs.num_devices), [f"{name}   {share:4.0%}" for name, share in names_and_busy])
        axes.set_ylim(costs.num_devices - 0.5, -0.5)
        for d in range(costs.num_devices):
            axes.axhspan(d - 0.42, d + 0.42, color=PAPER, zorder=0, linewidth=0)
        self._label(axes, start + width / 2, bottom + height / 2, width, colours[groups])
        present = [Patch(color=colour, label=name) for colour, name in zip(PALETTE, names, strict=False)]
        return [*present, *([Patch(color=OTHER, label=f"{others} others")] if others else []),
                *([Patch(facecolor="none", edgecolor=INK, linewidth=_PIN_LINE, label="pinned")] if pinned.size else [])]

    def _label(self, axes: Axes, x: np.ndarray, y: np.ndarray, width: np.ndarray, colours: np.ndarray) -> None:
        """Writes names into the middle of bars that have room for them."""
        if len(width) > _MAX_LABELS or self.span <= 0:
            return
        room = width / self.span * (self.size.width - 2.0) / _CHARACTER_IN
        for i, v in enumerate(self.trace.vertex.tolist()):
            if len(self.graph.names[v]) <= room[i]:
                axes.text(x[i], y[i], self.graph.names[v], ha="center", va="center", fontsize=6.5,
                          color="white" if is_dark(colours[i]) else INK)

    def _draw_memory(self, axes: Axes, rows: list[MemoryRow], what: str) -> None:
        """Draws the bytes held by device over time."""
        for y, row in enumerate(rows):
            seconds, share = row.until(self.trace.makespan_s)
            axes.axhspan(y - 0.42, y + 0.42, color=PAPER, zorder=0, linewidth=0)
            axes.fill_between(seconds * self.unit.factor, y + 0.42 - 0.84 * share, y + 0.42, color=MEMORY, linewidth=0)
            if row.is_near:
                axes.axhline(y - 0.42, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(what, loc="left", fontsize=8, color=INK)

    def _draw_links(self, axes: Axes, rows: list[tuple[str, np.ndarray]]) -> None:
        """Draws bars by link. Overlapping transfers (on links that never wait, or in rows of several links) appear darker."""
        trace = self.trace
        for y, (_, members) in enumerate(rows):
            start = trace.transfer_start_s[members] * self.unit.factor
            width = (trace.transfer_end_s[members] - trace.transfer_start_s[members]) * self.unit.factor
            boxes = _boxes(start, width, np.full(len(members), y - 0.36), np.full(len(members), 0.72))
            _add_boxes(axes, boxes, LINK, 0.6, self._edges(width))
            axes.axhspan(y - 0.36, y + 0.36, color=PAPER, zorder=0, linewidth=0)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)

    def _finish(self, figure: Figure, panels: list[Axes], legend: list[Patch]) -> None:
        """Draws axes, grid, the line of the bound and the legend. Args: panels: from top to bottom."""
        size, (devices, *_, bottom) = self.size, (*panels, panels[-1])
        for axes in figure.axes:
            style_axes(axes, rows=True, row_size=8 if axes is devices else 6.5)
            if self.lower_bound_s:
                bound = axes.axvline(self.lower_bound_s * self.unit.factor, color=INK, linewidth=1, linestyle=(0, (4, 3)),
                                     label="lower bound of the model" if size is _PAGE else "lower bound")
        handles = [*legend, *([bound] if self.lower_bound_s else [])]
        for axes in panels[:-1]:
            axes.tick_params(axis="x", labelbottom=False, length=0)
        if bottom is not figure.axes[-1]:  # there are no links
            bottom.tick_params(axis="x", labelbottom=True, length=3)
        bottom.set_xlabel(f"time ({self.unit.axis})", fontsize=8, color=INK, parse_math=True)
        bottom.xaxis.set_major_formatter("{x:,.10g}")
        devices.set_xlim(0, self.span * 1.005 or 1)
        columns = max(1, min(len(handles), size.columns, size.characters // max((len(patch.get_label()) for patch in legend), default=1)))
        figure.set_figheight(figure.get_figheight() + _LEGEND_IN * max(-(-len(handles) // columns) - 2, 0))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=7.5, frameon=False,
                      handlelength=1.4, handleheight=1, columnspacing=1.6)

    def _edges(self, width: np.ndarray) -> np.ndarray:
        """Line width by bar; 0 for bars so narrow that an edge would hide them."""
        return np.where(width / (self.span or 1.0) * self.size.width * self.size.dpi > _EDGE_FROM_PX, 0.4, 0.0)


def _add_boxes(axes: Axes, boxes: np.ndarray, colours: np.ndarray | str, alpha: float, edges: np.ndarray) -> None:
    """Adds boxes. A few are snapped to pixels. Many thin ones are not, because snapping would make them vanish or swell."""
    snap = None if len(boxes) <= _MAX_SNAPPED else False
    axes.add_collection(PolyCollection(boxes, facecolors=colours, alpha=alpha, edgecolors="white", linewidths=edges, snap=snap))


def _boxes(start: np.ndarray, width: np.ndarray, bottom: np.ndarray, height: np.ndarray) -> np.ndarray:
    """float64 [n, 4, 2]: corners of rectangles."""
    x = np.stack([start, start, start + width, start + width], axis=1)
    y = np.stack([bottom, bottom + height, bottom + height, bottom], axis=1)
    return np.stack([x, y], axis=2)
