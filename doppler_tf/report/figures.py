"""Shared by the matplotlib pictures: a new figure, the look of its axes, and the figure as PNG."""

from __future__ import annotations

import io
import warnings
from contextlib import AbstractContextManager

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Paul Tol's "muted" scheme, which is distinct for every kind of colour vision (https://personal.sron.nl/~pault/); grey for the rest.
PALETTE = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933", "#882255")
OTHER, LINK, MEMORY, INK, PAPER = "#BBBBBB", "#8A8F98", "#A9B8C9", "#22252B", "#F4F5F7"
DPI = 150
_GRID, _AXIS = "#DFE2E7", "#C9CCD2"


class Picture(Figure):
    """A figure that shows itself in a notebook, whatever matplotlib's backend."""

    def savefig(self, *args, **options) -> None:
        """As matplotlib's. A character that the font lacks is drawn as a box without a warning."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from", UserWarning)
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def names_as_text() -> AbstractContextManager[None]:
    """A context in which matplotlib does not read dollar signs in names as mathematics."""
    return rc_context({"text.parse_math": False})


def new_figure(width: float, height: float, dpi: int = DPI) -> Picture:
    """An empty figure. Args: width, height: in inches."""
    figure = Picture((width, height), dpi=dpi, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, rows: bool = False, row_size: float = 8) -> None:
    """Applies the common look. Args: rows: the y axis names rows, in letters of `row_size` points."""
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom" or (side == "left" and not rows))
        spine.set_color(_AXIS)
    axes.tick_params(color=_AXIS, labelsize=8, labelcolor=INK)
    if rows:
        axes.tick_params(axis="y", length=0, labelsize=row_size)
    axes.grid(axis="x" if rows else "both", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
