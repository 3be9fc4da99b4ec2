"""The progress bar of long operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from doppler_tf.notes import bars_wanted


@contextmanager
def progress_bar(label: str, done: int = 0, total: int | None = None, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """A bar on stderr with elapsed and remaining time. Args: show: None: as `bars_wanted` says.

    Yields:
      A function of (done, total, status) that moves the bar. With `total` None the total stays; `status` is shown beside the bar.
    """
    show = bars_wanted() if show is None else show
    last = TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    with Progress(TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  TextColumn("left"), last, console=Console(stderr=True), disable=not show, expand=True) as shown:
        task = shown.add_task(f"{label:<9}", total=total, completed=done, status="")

        def move(done: int, total: int | None = None, status: str = "") -> None:
            shown.update(task, completed=done, total=total, status=status)

        yield move
