"""The progress bar of everything that takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


@contextmanager
def progress_bar(label: str, done: int = 0, total: int | None = None, show: bool = True) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the time elapsed and the time left; nothing is shown unless `show`.

    Yields:
      A function of (done, total, status) that moves the bar. `total` is None where it stays; `status` says what goes on.
    """
    last = TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with Progress(TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  TextColumn("left"), last, console=Console(stderr=True), disable=not show, expand=True) as shown:
        task = shown.add_task(f"{label:<9}", total=total, completed=done, status="")

        def move(done: int, total: int | None = None, status: str = "") -> None:
            shown.update(task, completed=done, total=total, status=status)

        yield move
