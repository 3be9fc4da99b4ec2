"""What results have in common that show themselves: short text, a table with a picture in notebooks, a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ShowsItself:
    """A placement, a trace or a distributed function."""

    def __repr__(self) -> str:
        return _shown(self).text()

    def _repr_html_(self) -> str:
        return _shown(self).html()

    def plot(self) -> Figure:
        """The Gantt picture, as a matplotlib figure: of the run, or of a simulation where there was none."""
        return _shown(self).figure()


def _shown(result: ShowsItself):
    from doppler_tf.report import notebook  # above all others; loaded where something is shown

    return notebook.shown(result)
