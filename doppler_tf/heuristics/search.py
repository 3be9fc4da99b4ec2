"""What the searches have in common: a budget, what was found, the best of several, and the walk that annealing and climbing take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.metropolis import DRAWS, walk, walk_state
from doppler_tf.heuristics.move_sets import move_sets
from doppler_tf.heuristics.starting_point import starting_point

# Vertices and edges simulated between two looks at the clock, some milliseconds; and the default budget, about a second's worth.
_SLICE_SIZE, _DEFAULT_SIZE, _MOST_DEFAULT = 200_000, 40_000_000, 200_000
# Bounds and makespans add the same seconds in different orders, which differ by rounding.
ROUNDING = 1e-11


@dataclass(frozen=True)
class Budget:
    """When a search ends: after so many simulations or seconds (None: no such limit), or at a makespan of `target_s`, which cannot be
    beaten.

    With a number of simulations the result depends on the seed alone. A larger number is never worse: the search takes the same steps and
    goes on.
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
        """Simulations, infinite without such a limit."""
        return math.inf if self.simulations is None else self.simulations

    def reached(self, makespan_s: float) -> bool:
        """Whether a makespan is the target's or better, but for rounding."""
        return makespan_s <= self.target_s * (1 + ROUNDING)


def default_budget(graph: DataflowGraph) -> Budget:
    """About a second's worth: 200,000 simulations, fewer of graphs above 200 vertices and edges."""
    return Budget(max(1, min(_MOST_DEFAULT, _DEFAULT_SIZE // (graph.num_vertices + graph.num_edges))))


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      assignment: the best; `method` names the search that found it.
      makespan_s: simulated; infinite where nothing found fits in memory.
      simulations: how many were made, the start's included.
      seconds: wall-clock time.
      lower_bound_s: what was proven on the way: no assignment is faster; 0 where nothing was.
    """

    assignment: Assignment
    makespan_s: float
    simulations: int
    seconds: float
    lower_bound_s: float = 0.0


class Incumbent:
    """The best that searches in several threads have found. All of them end once it is as good as the target.

    Attributes:
      target_s: no makespan is below, as far as is known.
      shared: whether searches go on from it, whoever found it.
      best: makespan, or above all makespans a measure of missing memory, and assignment, whose `method` names the search.
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
        self._end()

    def raise_target(self, target_s: float) -> None:
        """Notes a lower bound."""
        with self._lock:
            self.target_s = max(self.target_s, target_s)
        self._end()

    def at_end(self, stop: Callable[[], None]) -> None:
        """Has `stop` called, in some thread, when all searches are to end: for a search that cannot ask."""
        self._at_end.append(stop)
        self._end()

    def stop(self) -> None:
        """Ends all searches."""
        self.raise_target(math.inf)

    @property
    def over(self) -> bool:
        """Whether all searches are to end."""
        return self.best[0] <= self.target_s * (1 + ROUNDING)

    def _end(self) -> None:
        if self.over:
            for stop in self._at_end:
                stop()


class Walker:
    """A search in progress: where it stands, the best so far, and how much of its budget is spent.

    Attributes:
      state: the current and the best assignment, with their makespans.
      steps: simulations so far.
    """

    def __init__(self, method: str, graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None,
                 start: Assignment | None, dispatch: str, incumbent: Incumbent | None = None):
        """Args: start: where to begin (None: `starting_point`); dispatch: rule of the simulations, `order` keeps the start's order."""
        self._started = time.perf_counter()
        self._method = self._found_by = method
        self._budget, self._rng, self._incumbent = budget or default_budget(graph), rng, incumbent
        self._sets = move_sets(graph, costs)
        self._stuck = not self._sets.movable.any()
        self._start = starting_point(graph, costs, rng, dispatch) if start is None else start
        self._prepared = FastSimulator(graph, costs, dispatch).prepared(self._start.order)
        self._ceiling_s = 1.0 + 2.0 * serial_s(costs)
        self._slice = max(1, min(1000, _SLICE_SIZE // (graph.num_vertices + graph.num_edges)))
        self.state, self.steps = walk_state(self._start.device, graph.num_edges), 0
        self._look()
        self._tell()
        self._ready = time.perf_counter()

    @property
    def num_units(self) -> int:
        """How many vertices or groups can move."""
        return self._sets.num_units

    @property
    def over(self) -> bool:
        """Whether the budget is spent, or nothing can be better or move."""
        budget = self._budget
        if self._incumbent is not None and self._incumbent.over:
            return True
        late = budget.seconds is not None and time.perf_counter() - self._started >= budget.seconds
        return late or self.steps >= budget.most or budget.reached(self.state.levels[1]) or self._stuck

    @property
    def affordable(self) -> int | float:
        """How many steps fit into the seconds left, at least one. Infinite where simulations are counted: a larger budget must not change
        the steps taken within a smaller one."""
        if self._budget.seconds is None or self._budget.simulations is not None:
            return math.inf
        now = time.perf_counter()
        pace = self.steps / max(now - self._ready, 1e-9)
        return max(1, int((self._budget.seconds - (now - self._started)) * pace))

    def walk(self, temperature_s: np.ndarray, measure: bool = False) -> tuple[float, int]:
        """One step for each temperature (float64 [steps]), fewer where the budget ends.

        Args:
          measure: whether to return the sum of losses' logarithms and their number, which takes longer; else zeros.
        """
        log_loss, losses, done = 0.0, 0, 0
        while done < len(temperature_s) and not self.over:
            steps, before = int(min(self._slice, len(temperature_s) - done, self._budget.most - self.steps)), self.state.levels[1]
            more = walk(self._sets, self._prepared, self.state, self._rng.random((steps, DRAWS)), temperature_s[done:done + steps],
                        self._ceiling_s, measure)
            log_loss, losses, done, self.steps = log_loss + more[0], losses + more[1], done + steps, self.steps + steps
            if self.state.levels[1] < before:
                self._found_by = self._method
                self._tell()
        return log_loss, losses

    def typical_loss_s(self) -> float:
        """The geometric mean of the losses in as many steps as there are units, of which it keeps none; 0 where there is none."""
        log_loss, losses = self.walk(np.zeros(self.num_units), measure=True)
        return float(np.exp(log_loss / losses)) if losses else 0.0

    def return_to_best(self) -> None:
        """Goes on from the best so far, or where it is shared from the best of all."""
        state = self.state
        if self._incumbent is not None and self._incumbent.shared:
            shared_s, shared = self._incumbent.best
            if shared_s < state.levels[1]:
                state.current[0], state.levels[0] = shared.device, math.inf
                self._look()
                self._found_by = shared.method
        state.current[:], state.critical[0], state.levels[0] = state.best, state.critical[1], state.levels[1]

    def _look(self) -> None:
        """Simulates where it stands."""
        walk(self._sets, self._prepared, self.state, np.zeros((1, DRAWS)), np.zeros(1), self._ceiling_s, True)
        self.steps += 1

    def _tell(self) -> None:
        if self._incumbent is not None:
            self._incumbent.offer(float(self.state.levels[1]), self._best_assignment())

    def _best_assignment(self) -> Assignment:
        return Assignment(self.state.best[0].copy(), self._start.order, self._found_by)

    def found(self) -> Found:
        """The best so far."""
        makespan_s = math.inf if self.state.levels[1] >= self._ceiling_s else float(self.state.levels[1])
        return Found(self._best_assignment(), makespan_s, self.steps, time.perf_counter() - self._started)


def serial_s(costs: CostModel) -> float:
    """At least as long as any schedule without needless waiting: everything on its slowest device, each transfer over the slowest link,
    one after the other."""
    dearest_s = costs.topology.latency_s.max() + costs.edge_bytes / costs.topology.bandwidth_bytes_per_s.min()
    transfer_s = np.where(np.isnan(costs.explicit_transfer_s), dearest_s, costs.explicit_transfer_s)
    return float(costs.exec_s.max(axis=1).sum() + costs.num_devices * transfer_s.sum())
