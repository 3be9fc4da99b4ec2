"""A bar chart of methods: one panel per graph, one bar per method for its distance from the best known, with the range over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from doppler_tf.report.figures import INK, PALETTE, PAPER, names_as_text, new_figure, png_bytes, style_axes

_BAR_IN, _PANEL_IN = 0.235, 2.9
# The axis is linear up to this percentage and logarithmic beyond, so that 0.5% and 300% are both visible.
_LINEAR = 1.0
LEARNED, OTHERS = PALETTE[4], PALETTE[0]


def bars_png(title: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The picture as PNG: one panel per graph and topology, one bar per method.

    Args:
      rows: of `results.summarise`; rows without `best_known_s` are left out.
    """
    rows = [row for row in rows if row.get("best_known_s")]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    places = list(dict.fromkeys((row["topology"], row["graph"]) for row in rows))
    several = len({topology for topology, _ in places}) > 1
    with names_as_text():
        figure = new_figure(1.9 + _PANEL_IN * max(len(places), 1), 1.35 + _BAR_IN * max(len(methods), 2))
        panels = figure.subplots(1, max(len(places), 1), sharey=True, squeeze=False)[0]
        for axes, place in zip(panels, places, strict=False):
            _draw(axes, [row for row in rows if (row["topology"], row["graph"]) == place], methods)
            axes.set_title(f"{place[1]} on {place[0]}" if several else place[1], loc="left", fontsize=9, color=INK)
        panels[0].set_yticks(range(len(methods)), methods)
        panels[0].set_ylim(len(methods) - 0.4, -0.6)
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
        figure.supxlabel("mean makespan above the best known (%); line: least to most over seeds", fontsize=8, color=INK)
        figure.legend([Patch(color=LEARNED), Patch(color=OTHERS)], ["learned", "heuristic or search"], loc="outside upper right", ncols=2,
                      fontsize=7.5, frameon=False, handlelength=1.4)
        return png_bytes(figure)


def in_percent(axis: Axis, set_scale: Callable[..., None], most: float) -> None:
    """Formats an axis of percentages, linear up to _LINEAR and logarithmic beyond. Args: most: the largest percentage shown."""
    set_scale("symlog", linthresh=_LINEAR)
    axis.set_ticks([0, *[tick for tick in (1, 3, 10, 30, 100, 300, 1000, 10000) if tick <= most]])
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> None:
    most = 0.0
    for row in rows:
        y, colour = methods.index(row["method"]), OTHERS if row["greedy_s"] is None else LEARNED
        # The makespans of equally good assignments may differ in the last digits.
        above, low, high = (max(100 * (row[key] / row["best_known_s"] - 1), 0.0) for key in ("mean_s", "least_s", "most_s"))
        axes.barh(y, above, height=0.72, color=colour, zorder=2)
        if high > low:
            axes.plot([low, high], [y, y], color=INK, linewidth=1.2, zorder=3, solid_capstyle="butt")
        axes.annotate(f"+{above:.0f}" if above >= 9.95 else f"+{above:.1f}", (max(above, high), y), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=7.5, color=INK, zorder=4)
        most = max(most, above, high)
    in_percent(axes.xaxis, axes.set_xscale, most)
    axes.set_xlim(0, max(3 * most, 2 * _LINEAR))
    style_axes(axes, rows=True)
    axes.set_facecolor(PAPER)
