"""The output of all benchmarks: a table for people, and one JSON object as the last line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of `repeats` wall-clock times of `call`, which is the least disturbed one."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def show(title: str, rows: dict[str, dict[str, float | None]]) -> None:
    """Prints rows by name. A column's name sets its format: `_s` seconds; `_share` or `_error` percent; `_ratio` or `_over_` three
    decimals."""
    table = Table(title=title)
    table.add_column("case")
    columns = list(next(iter(rows.values())))
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(_text(column, row[column]) for column in columns))
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
