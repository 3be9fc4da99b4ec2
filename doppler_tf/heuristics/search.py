"""What the searches share: a budget, a start, steps in slices between which the clock is read, and what was found."""

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
from doppler_tf.heuristics.chain import DRAWS, walk
from doppler_tf.heuristics.kin import kin
from doppler_tf.heuristics.start import starting_point

# Vertices and edges that are simulated between two looks at the clock, and by a search that is given no budget.
_SLICE_SIZE, _DEFAULT_SIZE, _MOST_DEFAULT = 200_000, 40_000_000, 200_000
# No search is far behind before this share of the time is spent, then by more than this share of the best times the share of time left.
_PATIENCE, _BEHIND = 0.4, 0.05
# Bounds and makespans are sums of the same seconds in other orders, which differ by some rounding.
ROUNDING = 1e-11


@dataclass(frozen=True)
class Budget:
    """When a search ends: after that many simulations or seconds (None: no such limit), or at a makespan of `target_s`, which cannot
    be beaten.

    What is found within n simulations depends on the seed alone, and more are never worse: a search with a larger budget takes the
    same steps and goes on.
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
      assignment: the best, `method` names the search.
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


class Exchange:
    """The best of searches that run side by side, in threads: all offer theirs, and all end once one has found what cannot be beaten.

    Attributes:
      target_s: what cannot be beaten.
      best: makespan, or beyond all makespans a measure of missing memory, and assignment.
      gives_way: whether a search may leave its own way for that best.
    """

    def __init__(self, target_s: float, seconds: float = math.inf):
        """Args: target_s: what cannot be beaten as far as is known yet; seconds: from now to the end of all, infinite: none gives way."""
        self.target_s, self.gives_way = target_s, math.isfinite(seconds)
        self._started, self._seconds = time.perf_counter(), seconds
        self.best: tuple[float, Assignment | None] = math.inf, None
        self._lock, self._stops = threading.Lock(), []

    def offer(self, makespan_s: float, assignment: Assignment) -> None:
        """Tells the others."""
        with self._lock:
            if makespan_s < self.best[0]:
                self.best = makespan_s, assignment
        self._end()

    def raise_target(self, target_s: float) -> None:
        """Tells of a larger bound."""
        with self._lock:
            self.target_s = max(self.target_s, target_s)
        self._end()

    def at_the_end(self, stop: Callable[[], None]) -> None:
        """Has `stop` called, in some thread, once all are to end: of a search that cannot ask."""
        self._stops.append(stop)
        self._end()

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, sooner if all are to end."""
        ended = threading.Event()
        self.at_the_end(ended.set)
        ended.wait(seconds)

    def _end(self) -> None:
        if self.over:
            for stop in self._stops:
                stop()

    def stop(self) -> None:
        """Ends all of them."""
        self.raise_target(math.inf)

    @property
    def over(self) -> bool:
        """Whether one of them has found what cannot be beaten, or all are to end."""
        return self.best[0] <= self.target_s * (1 + ROUNDING)

    def far_ahead(self, makespan_s: float) -> bool:
        """Whether others have found so much better than this, so late, that it is hardly caught up."""
        spent = (time.perf_counter() - self._started) / self._seconds
        return spent >= _PATIENCE and makespan_s > self.best[0] * (1.0 + _BEHIND * max(0.0, 1.0 - spent))


class Walker:
    """A search in progress: where it stands, the best so far, and what is left of its budget.

    Attributes: follows: whether it has given way, and goes on from the best of all.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None, start: Assignment | None,
                 dispatch: str, exchange: Exchange | None = None):
        """Args: start: where to begin (None: `starting_point`); dispatch: rule of the simulations, `order` keeps the start's."""
        self._exchange, self.follows = exchange, False
        self._own, self._taken_s = None, math.inf  # what it had found when it took over another's best, and how good that was
        self._started, self._pace_s, self._looks = time.perf_counter(), 0.0, np.zeros(3, np.int64)
        self._budget, self._rng = budget or default_budget(graph), rng
        self._kin = kin(graph, costs)
        self._stuck = not self._kin.movable.any()
        self._start = starting_point(graph, costs, rng, dispatch) if start is None else start
        self._simulator = FastSimulator(graph, costs, dispatch)
        self._prepared = self._simulator.prepared(self._start.order)
        # No schedule without needless waiting takes longer than everything, one after the other.
        dearest = costs.topology.latency_s.max() + costs.edge_bytes / costs.topology.bandwidth_bytes_per_s.min()
        transfer_s = np.where(np.isnan(costs.explicit_transfer_s), dearest, costs.explicit_transfer_s)
        self._ceiling_s = 1.0 + 2.0 * float(costs.exec_s.max(axis=1).sum() + transfer_s.sum() * costs.num_devices)
        self._slice = max(1, min(1000, _SLICE_SIZE // (graph.num_vertices + graph.num_edges)))
        self.current = np.ascontiguousarray(self._start.device, np.int32)[None].copy()
        self.best = self.current.copy()
        self.levels = np.array([math.inf, math.inf])
        self.critical = np.zeros((2, graph.num_vertices + graph.num_edges + 1), np.int64)
        self.steps = 0
        self._look()
        self._tell()

    @property
    def num_units(self) -> int:
        """How many vertices or groups can move."""
        return self._kin.num_units

    @property
    def over(self) -> bool:
        """Whether the budget is spent, or nothing can be better or move."""
        budget = self._budget
        if self._exchange is not None and self._exchange.over:
            return True
        late = budget.seconds is not None and time.perf_counter() - self._started >= budget.seconds
        return late or self.steps >= budget.most or budget.reached(self.levels[1]) or self._stuck

    @property
    def far_behind(self) -> bool:
        """Whether others are far ahead of this search; never so without others."""
        return self._exchange is not None and self._exchange.far_ahead(float(self.levels[1]))

    @property
    def affordable(self) -> float:
        """How many steps the seconds left are enough for, at the pace of the last walk, one that measures only if it is the first; infinite
        for a search that never gives way."""
        if self._exchange is None or not self._exchange.gives_way or self._budget.seconds is None or not self._pace_s:
            return math.inf
        return max(0.0, self._budget.seconds - (time.perf_counter() - self._started)) / self._pace_s

    def walk(self, temperature_s: np.ndarray, measure: bool = False) -> tuple[float, int]:
        """One step for each temperature (float64 [steps]), fewer where the budget ends, or where the search comes to be far
        behind and gives way.

        Args:
          measure: whether to return the sum of losses' logarithms and their number, which takes longer; else zeros.
        """
        log_loss, losses, done, began_s = 0.0, 0, 0, time.perf_counter()
        while done < len(temperature_s) and not self.over:
            if not self.follows and self.far_behind:
                self.follows = True
                break
            steps, before = int(min(self._slice, len(temperature_s) - done, self._budget.most - self.steps)), self.levels[1]
            more = walk(self._kin, self._prepared, self._rng.random((steps, DRAWS)), temperature_s[done:done + steps], self._ceiling_s,
                        self.current, self.best, self.levels, self.critical, measure, self._looks)
            log_loss, losses, done, self.steps = log_loss + more[0], losses + more[1], done + steps, self.steps + steps
            if self.levels[1] < before:
                self._tell()
        if done and not (measure and self._pace_s):
            self._pace_s = (time.perf_counter() - began_s) / done
        return log_loss, losses

    def typical_loss_s(self) -> float:
        """The geometric mean of the losses in as many steps as there are units, of which it keeps none; 0 where there is none."""
        log_loss, losses = self.walk(np.zeros(self.num_units), measure=True)
        return float(np.exp(log_loss / losses)) if losses else 0.0

    def return_to_best(self) -> None:
        """Goes on from the best so far; once it follows others, from the best of all."""
        if self.follows:
            others_s, other = self._exchange.best
            if others_s < self.levels[1]:
                self._own = self._found()
                self.current[0], self.levels[0] = other.device, math.inf
                self._look()
                self._taken_s = self.levels[1]
        self.current[:], self.critical[0] = self.best, self.critical[1]
        self.levels[0] = self.levels[1]

    def _look(self) -> None:
        """Simulates where it stands, in its own order."""
        walk(self._kin, self._prepared, np.zeros((1, DRAWS)), np.zeros(1), self._ceiling_s, self.current, self.best, self.levels,
             self.critical, True, self._looks)
        self.steps += 1

    def _tell(self) -> None:
        if self._exchange is not None:
            self._exchange.offer(float(self.levels[1]), Assignment(self.best[0].copy(), self._start.order))

    def _found(self) -> tuple[float, np.ndarray]:
        """Level and devices of the best that it found itself."""
        if self._own is None or self.levels[1] < self._taken_s:
            return float(self.levels[1]), self.best[0].copy()
        return self._own

    def found(self, method: str) -> Found:
        """The best so far that it found itself, which may have begun at what another found."""
        seconds, (level, device) = time.perf_counter() - self._started, self._found()
        makespan_s = math.inf if level >= self._ceiling_s else level
        return Found(Assignment(device, self._start.order, method), makespan_s, self.steps, seconds)
