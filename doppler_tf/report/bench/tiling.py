"""A picture of tilings: one panel a tiling, one row an expression, one column a label; a cell says into how many parts the label is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from doppler_tf.report.figures import INK, PALETTE, PAPER, names_as_text, new_figure, png_bytes

# Into how many parts each expression cuts each of its labels.
Cuts = Mapping[str, Mapping[str, int]]
_ROW_IN, _COLUMN_IN = 0.165, 0.32


def tilings_png(title: str, tilings: Mapping[str, Cuts], labels: Sequence[str]) -> bytes:
    """The picture as PNG.

    Args:
      tilings: by name; all have the same expressions, each with all its labels.
      labels: the columns.
    """
    expressions = list(next(iter(tilings.values())))
    with names_as_text():
        figure = new_figure(1.6 + (0.4 + _COLUMN_IN * len(labels)) * len(tilings), 0.9 + _ROW_IN * len(expressions))
        panels = figure.subplots(1, len(tilings), sharey=True, squeeze=False)[0]
        for axes, (name, cuts) in zip(panels, tilings.items(), strict=True):
            _draw(axes, cuts, expressions, labels)
            axes.set_title(name, loc="left", fontsize=8, color=INK)
        panels[0].set_yticks(range(len(expressions)), expressions)
        panels[0].set_ylim(len(expressions) - 0.4, -0.6)
        figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    return png_bytes(figure)


def _draw(axes: Axes, cuts: Cuts, expressions: Sequence[str], labels: Sequence[str]) -> None:
    for row, name in enumerate(expressions):
        for column, label in enumerate(labels):
            parts = cuts[name].get(label)
            if parts is None:
                continue
            colour = PALETTE[column % len(PALETTE)] if parts > 1 else PAPER
            axes.add_patch(Rectangle((column - 0.46, row - 0.42), 0.92, 0.84, facecolor=colour, edgecolor="none"))
            if parts > 1:
                axes.text(column, row, str(parts), ha="center", va="center", fontsize=6.5, color=INK,
                          bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8})
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.set_xticks(range(len(labels)), labels)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=7, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
