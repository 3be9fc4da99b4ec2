"""The ways in which a function was run, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from doppler_tf.finalists import Finalist
from doppler_tf.report.tables import NOTHING, grid, time_unit


def ways_table(ways: Mapping[str, Finalist], chosen: str) -> str:
    """A table, the fastest first, with the chosen way marked. Those that were dropped early have fewer runs."""
    rows = sorted(ways, key=lambda name: ways[name].median_s)
    unit, best_s = time_unit([ways[name].median_s for name in rows]), ways[rows[0]].median_s
    shown = []
    for name in rows:
        figures = ways[name].to_json()
        between = NOTHING if figures["low_s"] is None else f"{unit.text(figures['low_s'])} to {unit.text(figures['high_s'])}"
        times = NOTHING if figures["median_s"] is None else f"{figures['median_s'] / best_s:.2f}"
        shown.append((f"{name} (chosen)" if name == chosen else name, unit.text(figures["simulated_s"]), unit.text(figures["median_s"]),
                      between, str(figures["runs"]), times))
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(grid("", ("way", "simulated", "measured", "half of all", "runs", "over the fastest"), shown))
    return captured.get().rstrip()
