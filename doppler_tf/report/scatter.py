"""A scatter plot of simulated against measured makespans: one panel per model, one point per assignment, and the diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from doppler_tf.report.figures import INK, names_as_text, new_figure, png_bytes, style_axes
from doppler_tf.report.tables import TimeUnit, time_unit

_PANEL_IN = 4.2
# The dark colours of the Gantt picture, because points are small and the background is white.
_STYLES = (("#CC6677", "o"), ("#332288", "s"), ("#117733", "^"), ("#882255", "D"), ("#999933", "v"))


def scatter_png(title: str, measured_s: np.ndarray, simulated_s: Mapping[str, np.ndarray], families: Sequence[str],
                captions: Mapping[str, str]) -> bytes:
    """The picture as PNG.

    Args:
      measured_s: float64 [A], one makespan per assignment.
      simulated_s: float64 [A] by model.
      families: A names; each distinct one gets a colour and a marker.
      captions: by model, for its panel's title.
    """
    with names_as_text():
        unit = time_unit([*measured_s.tolist(), *(x for values in simulated_s.values() for x in values.tolist())])
        figure = new_figure(_PANEL_IN * max(len(simulated_s), 1.15), _PANEL_IN + 1.0)
        panels = figure.subplots(1, len(simulated_s), squeeze=False)[0]
        limits = _limits(measured_s * unit.factor, np.concatenate(list(simulated_s.values())) * unit.factor)
        for axes, (model, values) in zip(panels, simulated_s.items(), strict=True):
            _draw(axes, measured_s * unit.factor, values * unit.factor, families, limits)
            axes.set_title(f"{model}: {captions[model]}", loc="left", fontsize=8.5, color=INK, pad=8)
            axes.set_xlabel(f"measured makespan ({unit.axis})", fontsize=8, color=INK, parse_math=True)
        _finish(figure, panels, title, unit)
        return png_bytes(figure)


def _draw(axes: Axes, measured: np.ndarray, simulated: np.ndarray, families: Sequence[str], limits: tuple[float, float]) -> None:
    axes.plot(limits, limits, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="simulated = measured", zorder=1)
    for i, family in enumerate(dict.fromkeys(families)):
        mine = np.array([name == family for name in families])
        colour, marker = _STYLES[i % len(_STYLES)]
        axes.scatter(measured[mine], simulated[mine], s=30, alpha=0.85, color=colour, marker=marker, edgecolors="white", linewidths=0.5,
                     label=family, zorder=2)
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")


def _finish(figure: Figure, panels: Sequence[Axes], title: str, unit: TimeUnit) -> None:
    """Draws axes, grid, title and legend."""
    for axes in panels:
        style_axes(axes)
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.locator_params(nbins=6)
    panels[0].set_ylabel(f"simulated makespan ({unit.axis})", fontsize=8, color=INK, parse_math=True)
    figure.suptitle(title, fontsize=10, color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 2 if len(panels) == 1 else len(handles)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7.5, frameon=False, columnspacing=1.6)


def _limits(*values: np.ndarray) -> tuple[float, float]:
    """From 0 to a little above the largest value, for both axes of all panels."""
    return 0.0, float(max(part.max(initial=0.0) for part in values)) * 1.06 or 1.0
