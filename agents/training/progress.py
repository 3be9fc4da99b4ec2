"""The progress bars of a training run, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console

from agents.training import summaries
from doppler_tf.report.progress import progress_bar


def status(report: Mapping[str, Mapping[str, float]]) -> str:
    """The status text: scalars of the first graph, and the number of graphs."""
    name, scalars = next(iter(report.items()))
    of = f" ({name} of {len(report)})" if len(report) > 1 else ""
    if summaries.GREEDY not in scalars:
        return f"loss {scalars[summaries.LOSS]:.3f}{of}"
    measured = f", measured {scalars[summaries.MEASURED_GREEDY]:.4g} s" if summaries.MEASURED_GREEDY in scalars else ""
    return f"greedy {scalars[summaries.GREEDY]:.4g} s{measured}{of}"


@contextmanager
def bar(label: str, begin: int, total: int, episodes: int, show: bool) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on a terminal, which also shows episodes a second.

    Args:
      episodes: of each step.

    Yields:
      A function of the completed steps and a status text.
    """
    with progress_bar(label, begin, total, show and Console(stderr=True).is_terminal) as move:
        started, first = time.perf_counter(), None

        def advance(completed: int, status: str) -> None:
            nonlocal started, first
            # The first update is traced, and compiled where that pays; the rate is of those after it.
            if first is None:
                started, first, rate = time.perf_counter(), completed, ""
            else:
                rate = f"{episodes * (completed - first) / (time.perf_counter() - started):.0f} episodes/s, "
            move(completed, status=f"{rate}{status}")

        yield advance
