"""Measured runs: their makespans, the costs they imply, and the budget for more."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from doppler_tf.errors import CancelledError, DopplerError, UserError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.executor import Executor
from doppler_tf.schedule.refit import Factors, measured_factors, refitted_costs

# Of two executors the first one measures what policies learn from, the second one runs the candidates of the choice.
Executors = Executor | tuple[Executor, Executor]
# The number of runs whose factors count. Older ones are dropped, so that the costs follow a machine that changes.
_REMEMBERED = 256


class RunBudget:
    """Runs and minutes of wall clock, whichever ends first."""

    def __init__(self, runs: int, minutes: float = 0.0, clock: Callable[[], float] = time.perf_counter):
        """Args: minutes: 0 for any; clock: seconds."""
        self.runs, self.used = runs, 0
        self._limit_s, self._clock, self._spent_s = 60 * minutes or math.inf, clock, 0.0
        self._since: tuple[float, int] | None = None

    def resume(self, used: int, spent_s: float) -> None:
        """Counts the runs and seconds that were used before an interruption."""
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
        """The used share of the budget: 0 at the start, 1 at the end."""
        return max(self.used / max(self.runs, 1), self.spent_s / self._limit_s)

    def left(self, share: float = 1.0) -> int:
        """Runs until `share` is used; if the minutes end first, estimated from the pace of this process."""
        runs = int(share * self.runs) - self.used
        seconds = share * self._limit_s - self.spent_s
        if self._since is not None and self.used > self._since[1] and seconds < math.inf:
            pace_s = (self._clock() - self._since[0]) / (self.used - self._since[1])
            runs = min(runs, math.ceil(seconds / max(pace_s, 1e-9)))
        return max(runs, 0) if seconds > 0 else 0


class Measured:
    """Runs of one graph and the costs that they imply."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, executor: Executor, budget: RunBudget):
        self._graph, self._costs, self._executor, self._budget = graph, costs, executor, budget
        self._factors: deque[Factors] = deque(maxlen=_REMEMBERED)
        self.runs = self.failed = 0
        self.last_error = ""

    def run(self, assignment: Assignment, executor: Executor | None = None) -> float:
        """Seconds of one run; NaN if it failed.

        A failed run does not stop training, whatever exception the executor raises.

        Args: executor: another one, whose runs tell nothing of the costs.

        Raises: CancelledError, and UserError for an assignment that the executor can never run.
        """
        self._budget.used += 1
        self.runs += 1
        try:
            trace = (executor or self._executor).execute(self._graph, self._costs, assignment)
        except (CancelledError, UserError):
            raise
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            self.failed += 1
            self.last_error = reason if isinstance(error, DopplerError) else f"{type(error).__name__}: {reason}"
            return math.nan
        if executor is None:
            self._factors.append(measured_factors(self._graph, self._costs, trace))
        return trace.makespan_s

    def believed_costs(self) -> CostModel:
        """The caller's costs, corrected by the last runs."""
        return refitted_costs(self._graph, self._costs, self._factors) if self._factors else self._costs
