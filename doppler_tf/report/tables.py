"""Tables for the terminal and in Markdown, and the only place that formats numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SECONDS_BELOW = 1e6
NOTHING = "–"
NO_ROOM = "out of memory"  # what an infinite makespan means
_MOST_WRITTEN_OUT = 1e12  # numbers from here on are written with a power of ten
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class TimeUnit:
    """The format of all times in one table or axis: ms, or a power of 1000 if costs are in the graph's own unit.

    Attributes:
      factor: multiplies a value in seconds.
      decimals: digits after the point.
      suffix: text after the number.
      axis: the unit in the label of an axis.
    """

    factor: float
    decimals: int
    suffix: str
    axis: str

    @property
    def plain_axis(self) -> str:
        """The unit for text that cannot show mathematics."""
        return self.axis if self.factor == 1e3 else f"1{self.suffix} units"

    def text(self, value_s: float | None) -> str:
        """One time; one with too many digits in this unit is written in its own. NO_ROOM for infinity, NOTHING for None."""
        if not _known(value_s):
            return NO_ROOM if value_s == math.inf else NOTHING
        number = float(value_s) * self.factor
        return f"{number:,.{self.decimals}f}{self.suffix}" if abs(number) < _MOST_WRITTEN_OUT else time_unit([value_s]).text(value_s)


def time_unit(times_s: Sequence[float | None]) -> TimeUnit:
    """The unit for times shown together, with four significant digits for the largest."""
    largest = max((abs(value) for value in times_s if _known(value)), default=0.0)
    if largest < SECONDS_BELOW:
        digits = 0 if largest == 0 else 3 - math.floor(math.log10(largest * 1e3))
        return TimeUnit(1e3, min(max(digits, 0), 7), " ms", "ms")
    exponent = 3 * math.floor(math.log10(largest) / 3)
    return TimeUnit(10.0**-exponent, 4, f"e{exponent}", rf"$10^{{{exponent}}}$ units")


def percent(share: float | None) -> str:
    """A fraction of one as a percentage: 0.123 is 12.3%."""
    return NOTHING if not _known(share) else _percentage(share)


def over(makespan_s: float | None, bound_s: float | None) -> str:
    """A makespan's distance above a lower bound, in percent."""
    return NOTHING if not (_known(makespan_s) and bound_s) else _percentage(float(makespan_s) / float(bound_s) - 1, sign="+")


def quantity(value: float | None, unit: str) -> str:
    """A number with a decimal prefix: 1.23e9, "B" is 1.23 GB."""
    if not _known(value):
        return NOTHING
    power = 0 if value < 1e3 else min(int(math.log10(value) // 3), len(_PREFIXES) - 1)
    return f"{value / 1000**power:.4g} {_PREFIXES[power]}{unit}"


def yes_no(value: bool | None) -> str:
    """yes, no, or NOTHING for None."""
    return NOTHING if value is None else "yes" if value else "no"


def facts(title: str, rows: Mapping[str, str]) -> RenderableType:
    """A table of names and values."""
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, value)
    return _titled(title, table)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None, words: bool = False) -> RenderableType:
    """A table with names in the first column and numbers, or `words`, in the rest. Row `best` is highlighted."""
    table = Table(box=SIMPLE_HEAD, header_style="dim")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 or words else "right")
    for i, row in enumerate(rows):
        table.add_row(*row, style="bold green" if i == best else None)
    return _titled(title, table)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> str:
    """A Markdown table with names in the first column and numbers, or `words`, in the rest."""
    lines = [columns, ["---", *["---" if words else "---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _titled(title: str, table: Table) -> RenderableType:
    """Adds a title above the table. rich's own titles wrap at the table's width."""
    return Group(Text(title, style="bold"), table) if title else table


def _percentage(share: float, sign: str = "") -> str:
    number = 100 * float(share)  # as Python's float, which becomes infinite without a warning
    if math.isinf(number):
        return "over 1e308%"
    return f"{number:{sign}z.1f}%" if number < _MOST_WRITTEN_OUT else f"{number:{sign}.1e}%"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
