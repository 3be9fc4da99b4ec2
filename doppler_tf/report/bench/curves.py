"""Learning curves: the greedy makespan's distance from the best known by episodes, one panel per graph, with a band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from doppler_tf.report.bench.bars import in_percent
from doppler_tf.report.figures import INK, names_as_text, new_figure, png_bytes, style_axes

_PANEL_IN = (4.2, 3.1)
_COLOURS = ("#332288", "#CC6677", "#117733", "#999933", "#882255", "#44AA99", "#88CCEE")
_POINTS = 120


def curves_png(title: str, records: Sequence[Mapping[str, Any]], best_known_s: Mapping[str, float]) -> bytes:
    """The picture as PNG.

    Args:
      records: of cells that trained on one topology: `method`, `graph`, `greedy_makespan_s`, `episodes` and `curve`, a list of `episodes`
        and `greedy_s`. A method without a curve (imitation simulates nothing) is drawn as a point at its end.
      best_known_s: by graph, over all methods, learned or not.
    """
    graphs, methods = (list(dict.fromkeys(record[key] for record in records)) for key in ("graph", "method"))
    with names_as_text():
        columns = min(max(len(graphs), 1), 2)
        rows = -(-max(len(graphs), 1) // columns)
        figure = new_figure(_PANEL_IN[0] * columns, _PANEL_IN[1] * rows + 0.7)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, graph in zip(panels, graphs, strict=False):
            _draw(axes, [record for record in records if record["graph"] == graph], methods, best_known_s[graph])
            axes.set_title(graph, loc="left", fontsize=9, color=INK)
        for axes in panels[len(graphs):]:
            axes.set_visible(False)
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
        named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(len(named) or 1, 2 * columns), fontsize=7.5,
                      frameon=False)
        return png_bytes(figure)


def mean_curve(curves: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[np.ndarray, np.ndarray]:
    """Episodes [P], and the greedy seconds of each curve at them [C, P]: the last value up to there, NaN before the first."""
    last = min(curve[-1]["episodes"] for curve in curves)
    grid = np.unique(np.concatenate([[point["episodes"] for point in curve] for curve in curves]))
    grid = grid[grid <= last]
    if len(grid) > _POINTS:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, _POINTS).round().astype(int))]
    values = np.full((len(curves), len(grid)), np.nan)
    for row, curve in zip(values, curves, strict=True):
        episodes = np.array([point["episodes"] for point in curve])
        at = np.searchsorted(episodes, grid, side="right") - 1
        row[at >= 0] = np.array([point["greedy_s"] for point in curve])[at[at >= 0]]
    return grid, values


def _draw(axes: Axes, records: Sequence[Mapping[str, Any]], methods: Sequence[str], best_s: float) -> None:
    most = max(_line(axes, method, [record for record in records if record["method"] == method],
                     _COLOURS[methods.index(method) % len(_COLOURS)], best_s)
               for method in dict.fromkeys(record["method"] for record in records))
    in_percent(axes.yaxis, axes.set_yscale, most)
    axes.set_ylim(-0.08, max(1.3 * most, 1.5))
    axes.set_xlabel("episodes", fontsize=8, color=INK)
    axes.set_ylabel("greedy above the best known (%)", fontsize=8, color=INK)
    style_axes(axes)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(left=0)


def _line(axes: Axes, method: str, records: Sequence[Mapping[str, Any]], colour: str, best_s: float) -> float:
    """Draws a method; returns the largest percentage."""
    curves = [record["curve"] for record in records if record.get("curve")]
    if not curves:
        ends = [_percent(record["greedy_makespan_s"], best_s) for record in records]
        axes.plot([record["episodes"] for record in records], ends, linestyle="none", marker="D", markersize=5, color=colour,
                  markeredgecolor="white", label=method, zorder=4)
        return max(ends)
    episodes, values = mean_curve(curves)
    known = ~np.isnan(values).any(axis=0)
    episodes, values = episodes[known], _percent(values[:, known], best_s)
    # If one method continues another, their lines coincide at first. The shorter line is drawn on top.
    axes.plot(episodes, values.mean(axis=0), color=colour, linewidth=1.4, label=method, zorder=3 + 1 / (1 + episodes[-1]))
    if len(curves) > 1:
        axes.fill_between(episodes, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.16, linewidth=0, zorder=2)
    return float(values.max(initial=0.0))


def _percent(makespan_s, best_s: float):
    """Percent above the best. Values below it, which come from rounding to float32, count as equal."""
    return np.maximum(100 * (makespan_s / best_s - 1), 0.0)
