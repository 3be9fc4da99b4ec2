"""What all benchmarks share: seconds of calls, a table for people, and one JSON object as the last line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler_tf.finalists import warm_up


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """Wall-clock seconds of a call, and its result."""
    started = time.perf_counter()
    value = call()
    return time.perf_counter() - started, value


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of `repeats` wall-clock times of `call`, which is the least disturbed one."""
    return min(timed(call)[0] for _ in range(repeats))


def in_turns(calls: Mapping[str, Callable[[], float]], turns: int) -> dict[str, np.ndarray]:
    """By name the seconds that calls return, float64 [turns]. A turn makes each call twice, and the second counts: at the first, the
    caches are full of another's tensors."""
    for call in calls.values():
        warm_up(call)
    names, seconds = list(calls), np.zeros((turns, len(calls)))
    for turn in range(turns):
        for k in np.roll(range(len(calls)), -turn):  # who comes after its own kind finds warmer caches
            calls[names[k]]()
            seconds[turn, k] = calls[names[k]]()
    return dict(zip(calls, seconds.T, strict=True))


def show(title: str, rows: Mapping[str, Mapping[str, float | None]], columns: Sequence[str] = ()) -> None:
    """Prints rows by name. A column's name sets its format: `_s` seconds; `_share` or `_error` percent; `_ratio` or `_over_` three
    decimals. Args: columns: those to show; none: all of the first row."""
    table = Table(title=title)
    table.add_column("case")
    columns = columns or list(next(iter(rows.values())))
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_text(column, row.get(column)) for column in columns))
    Console(width=160).print(table)


def finish(result: dict) -> None:
    """Prints `result` as the last line."""
    print(json.dumps(result))


def _text(column: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    if isinstance(value, int):
        return f"{value:,}"
    if column.endswith("_ratio") or "_over_" in column or column.endswith("correlation"):
        return f"{value:.3f}"
    if column.endswith(("_share", "_error", "bias")):
        return f"{value:.1%}"
    if column.endswith("_s"):
        return f"{value * 1e6:,.1f} us" if value < 1e-3 else f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"
    return f"{value:,.1f}"
