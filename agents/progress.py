"""The progress bars of a training run, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agents import summaries


def status(report: Mapping[str, Mapping[str, float]]) -> str:
    """What the bar says of the first graph, and among how many."""
    name, scalars = next(iter(report.items()))
    of = f" ({name} of {len(report)})" if len(report) > 1 else ""
    if summaries.GREEDY not in scalars:
        return f"loss {scalars[summaries.LOSS]:.3f}{of}"
    measured = f", measured {scalars[summaries.MEASURED_GREEDY]:.4g} s" if summaries.MEASURED_GREEDY in scalars else ""
    return f"greedy {scalars[summaries.GREEDY]:.4g} s{measured}{of}"


@contextmanager
def bar(label: str, begin: int, total: int, episodes: int, show: bool) -> Iterator[Callable[[int, str], None]]:
    """A progress bar, none without a terminal: call what it yields with what is completed and a status; a step is so many episodes,
    shown by second."""
    columns = (TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
               TimeRemainingColumn(), TextColumn("{task.fields[status]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not (show and console.is_terminal)) as shown:
        task = shown.add_task(f"{label:<9}", total=total, completed=begin, rate="starting", status="")
        started, first = time.perf_counter(), None

        def advance(completed: int, status: str) -> None:
            nonlocal started, first
            # The first update is traced, and compiled where that pays; the rate is of those after it.
            if first is None:
                started, first = time.perf_counter(), completed
            else:
                shown.update(task, rate=f"{episodes * (completed - first) / (time.perf_counter() - started):.0f} episodes/s")
            shown.update(task, completed=completed, status=status)

        yield advance
