"""Shared by the searches: the budget, the result, and the best of several searches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment

# The most simulations, and vertices and edges in them, of the default budget (about a second).
_MOST_DEFAULT, _DEFAULT_SIZE = 200_000, 40_000_000
# A makespan that is above a bound by no more than this share is as good as at it: sums of the same seconds differ in their last digits,
# CP-SAT rounds durations to ticks of its horizon, and no cost is known so exactly.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Budget:
    """A search ends after this many simulations or seconds (None: no limit), or at the makespan `target_s`, which cannot be beaten.

    With a number of simulations the result depends on the seed alone. A larger number is never worse, because the search first takes the
    same steps.
    """

    simulations: int | None = None
    seconds: float | None = None
    target_s: float = 0.0

    def __post_init__(self):
        number = self.simulations
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1):
            raise field_error(ConfigError, "budget", "", "simulations", "an integer >= 1 or None", number)
        if self.seconds is not None and not (isinstance(self.seconds, int | float) and self.seconds >= 0):
            raise field_error(ConfigError, "budget", "", "seconds", "a number >= 0 or None", self.seconds)
        if number is None and self.seconds is None:
            raise field_error(ConfigError, "budget", "", "simulations", "a number of simulations, or of seconds, or both", None)

    @property
    def most(self) -> float:
        """The limit of simulations; infinity without one."""
        return math.inf if self.simulations is None else self.simulations

    def reached(self, makespan_s: float) -> bool:
        """Whether a makespan is at most the target, apart from rounding."""
        return makespan_s <= self.target_s * (1 + ROUNDING)


def default_budget(graph: DataflowGraph) -> Budget:
    """About a second of simulations: 200,000, or fewer for a graph with more than 200 vertices and edges."""
    return Budget(max(1, min(_MOST_DEFAULT, _DEFAULT_SIZE // (graph.num_vertices + graph.num_edges))))


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
      assignment: the best; `method` names the search that found it.
      makespan_s: simulated; infinite if no assignment fits in memory.
      simulations: the number made, including that of the start.
      seconds: wall-clock time.
      lower_bound_s: the bound that the search proved; 0 if it proved none.
      improvements: makespans and assignments that were the best for a while, the last ones.
      steadiest: makespan and assignment of those judged under noise (see `judging.Steadiness`) the steadiest; None: none was judged.
    """

    assignment: Assignment
    makespan_s: float
    simulations: int
    seconds: float
    lower_bound_s: float = 0.0
    improvements: Sequence[tuple[float, Assignment]] = ()
    steadiest: tuple[float, Assignment] | None = None


class Incumbent:
    """The best assignment of searches in several threads. All searches end when it meets the target.

    Attributes:
      target_s: the largest known lower bound.
      shared: whether every search may continue from it.
      best: its level (see `Walker.levels`) and the assignment, whose `method` names the search.
    """

    def __init__(self, target_s: float, shared: bool = True):
        self.target_s, self.shared = target_s, shared
        self.best: tuple[float, Assignment | None] = math.inf, None
        self._lock, self._at_end = threading.Lock(), []

    def offer(self, makespan_s: float, assignment: Assignment) -> None:
        """Keeps the assignment if it is the best so far."""
        with self._lock:
            if makespan_s < self.best[0]:
                self.best = makespan_s, assignment
        self._end_if_over()

    def raise_target(self, target_s: float) -> None:
        """Raises the target to a proven lower bound."""
        with self._lock:
            self.target_s = max(self.target_s, target_s)
        self._end_if_over()

    def at_end(self, stop: Callable[[], None]) -> None:
        """Registers `stop`, which some thread calls when all searches must end. For a search that cannot check `over`."""
        self._at_end.append(stop)
        self._end_if_over()

    def stop(self) -> None:
        """Ends all searches."""
        self.raise_target(math.inf)

    @property
    def over(self) -> bool:
        """Whether all searches must end."""
        return self.best[0] <= self.target_s * (1 + ROUNDING)

    def _end_if_over(self) -> None:
        if self.over:
            for stop in self._at_end:
                stop()
