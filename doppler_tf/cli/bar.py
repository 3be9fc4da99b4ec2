"""A progress bar on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is moved by calls of (done, total); nothing is shown where bars are not wanted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from doppler_tf.cli.loudness import bars_wanted

    with Progress(TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TimeRemainingColumn(),
                  console=Console(stderr=True), disable=not bars_wanted()) as shown:
        task = shown.add_task(f"{label:<9}", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
