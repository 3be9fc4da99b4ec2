"""Shared by the searches: the budget and the result."""

from __future__ import annotations

import math
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
    """A search ends after this many simulations or seconds (None: no limit), or earlier, when its `Pool` is over.

    With a number of simulations the result depends on the seed alone. A larger number is never worse, because the search first takes the
    same steps.
    """

    simulations: int | None = None
    seconds: float | None = None

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
      lower_bound_s: the bound that the search proved; 0 if it proved none.
    """

    assignment: Assignment
    makespan_s: float
    simulations: int
    lower_bound_s: float = 0.0
