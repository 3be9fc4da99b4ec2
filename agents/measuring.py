"""Measured runs: what they took, what they show of the costs, how many more there may be, and which assignment they say is best."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.errors import CancelledError, DopplerError, UserError
from doppler_tf.executor import Executor
from doppler_tf.graph import DataflowGraph
from doppler_tf.refit import Factors, measured_factors, refitted_costs

# Runs whose factors count; older ones are forgotten, so that the costs follow a machine that changes.
_REMEMBERED = 256


class Budget:
    """Runs and minutes of wall clock, whichever ends first."""

    def __init__(self, runs: int, minutes: float = 0.0, clock: Callable[[], float] = time.perf_counter):
        """Args: minutes: 0 for any; clock: seconds."""
        self.runs, self.used = runs, 0
        self._limit_s, self._clock, self._spent_s = 60 * minutes or math.inf, clock, 0.0
        self._since: tuple[float, int] | None = None

    def resume(self, used: int, spent_s: float) -> None:
        """So many runs and seconds were used up before."""
        self.used, self._spent_s = used, spent_s

    def start(self) -> None:
        """The clock runs from now on."""
        self._since = self._clock(), self.used

    @property
    def spent_s(self) -> float:
        """Seconds, those before an interruption included."""
        return self._spent_s + (self._clock() - self._since[0] if self._since else 0.0)

    @property
    def share(self) -> float:
        """How much is used up: 0 at the start, 1 at the end."""
        return max(self.used / max(self.runs, 1), self.spent_s / self._limit_s)

    def left(self, share: float = 1.0) -> int:
        """Runs until `share` is used up; where time is short, at the pace of this process so far."""
        runs = int(share * self.runs) - self.used
        seconds = share * self._limit_s - self.spent_s
        if self._since is not None and self.used > self._since[1] and seconds < math.inf:
            pace_s = (self._clock() - self._since[0]) / (self.used - self._since[1])
            runs = min(runs, math.ceil(seconds / max(pace_s, 1e-9)))
        return max(runs, 0) if seconds > 0 else 0


class Measured:
    """Runs of one graph, and what they show of its costs."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, executor: Executor, budget: Budget):
        self._graph, self._costs, self._executor, self._budget = graph, costs, executor, budget
        self._factors: deque[Factors] = deque(maxlen=_REMEMBERED)
        self.runs = self.failed = 0
        self.last_error = ""

    def run(self, assignment: Assignment) -> float:
        """Seconds of one run; NaN if it failed.

        A failed run must not stop training, whatever an executor of another make raises. Raises CancelledError, and UserError for what
        the executor can never run.
        """
        self._budget.used += 1
        self.runs += 1
        try:
            trace = self._executor.execute(self._graph, self._costs, assignment)
        except (CancelledError, UserError):
            raise
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            self.failed += 1
            self.last_error = reason if isinstance(error, DopplerError) else f"{type(error).__name__}: {reason}"
            return math.nan
        self._factors.append(measured_factors(self._graph, self._costs, trace))
        return trace.makespan_s

    def believed_costs(self) -> CostModel:
        """The caller's costs, corrected by what the last runs took."""
        return refitted_costs(self._graph, self._costs, self._factors) if self._factors else self._costs


def halve(count: int, always: Sequence[int], runs: int, run: Callable[[int], float]) -> list[list[float]]:
    """Sequential halving (Karnin, Koren, Somekh 2013): all candidates are run, the better half by median again, and so on, so that
    most runs are spent on those that are hard to tell apart.

    Args:
      count: candidates, numbered from 0; always: those that are run to the end, however slow.
      runs: how many there may be; run: one of a candidate, in seconds, NaN where it failed.

    Returns:
      By candidate its seconds, failed runs left out. Who was dropped early has fewer.
    """
    seconds: list[list[float]] = [[] for _ in range(count)]
    alive, rounds, left = list(range(count)), max(1, math.ceil(math.log2(max(count, 2)))), runs
    for r in range(rounds):
        members = sorted({*alive, *always})
        # Turn by turn, so that a burst of other work on the machine strikes all alike.
        for _ in range(left // (rounds - r) // len(members)):
            for c in members:
                seconds[c] += [value for value in (run(c),) if not math.isnan(value)]
            left -= len(members)
        alive = sorted(alive, key=lambda c: median_s(seconds[c]))[:max(1, len(alive) // 2)]
    return seconds


def median_s(seconds: Sequence[float]) -> float:
    """The median; infinity of none."""
    return float(np.median(seconds)) if len(seconds) else math.inf


def clearly_faster(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> bool:
    """Whether `after` is faster by more than twice the standard error of the difference.

    Args:
      before, after: by graph the runs, in units that may be added up over graphs; fewer than two prove nothing.
    """
    if any(len(runs) < 2 for runs in (*before, *after)):
        return False
    gain = sum(map(median_s, before)) - sum(map(median_s, after))
    return gain > 2 * math.hypot(*(_error_s(runs) for runs in (*before, *after)))


def _error_s(runs: Sequence[float]) -> float:
    """Standard error of the median, from the median distance to it (of normal errors: sigma / 1.48, and the error 1.25 sigma / sqrt(n))."""
    return 1.25 * 1.48 * median_s(np.abs(np.asarray(runs) - median_s(runs))) / math.sqrt(len(runs))
