"""Shared by the searches: the budget, the result, the best of several searches, and the walk of annealing and hill climbing."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from doppler_tf.assignment import AUTO, Assignment
from doppler_tf.costs import CostModel
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.prepared import makespan_bound
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.judging import judge, ranks, static_priority
from doppler_tf.heuristics.metropolis import DRAWS, walk, walk_state
from doppler_tf.heuristics.move_sets import move_sets
from doppler_tf.heuristics.proposals import Proposals, shipped_proposals
from doppler_tf.heuristics.starting_point import starting_point

# Vertices and edges simulated between two checks of the clock (some milliseconds), and in the default budget (about a second).
_SLICE_SIZE, _DEFAULT_SIZE, _MOST_DEFAULT = 200_000, 40_000_000, 200_000
# Improvements that a search remembers.
_REMEMBERED = 64
# Bounds and makespans add the same seconds in different orders, so that they may differ by this much.
ROUNDING = 1e-11


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
    """

    assignment: Assignment
    makespan_s: float
    simulations: int
    seconds: float
    lower_bound_s: float = 0.0
    improvements: Sequence[tuple[float, Assignment]] = ()


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


class Standing(NamedTuple):
    """Where a walk stands. Attributes: device: int32 [N]; keys, begun_s, critical: rows of `WalkState`; level_s: the makespan."""

    device: np.ndarray
    keys: np.ndarray
    begun_s: np.ndarray
    critical: np.ndarray
    level_s: float


class Walker:
    """A search in progress: its current assignment, the best so far, and the spent budget.

    Attributes:
      state: the current and the best assignment, with their makespans.
      steps: simulations so far.
    """

    def __init__(self, method: str, graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None,
                 start: Assignment | None, dispatch: str, incumbent: Incumbent | None = None, tied: np.ndarray | None = None,
                 proposals: Proposals | None = None):
        """Args: start: None: `starting_point`; dispatch: rule of the simulations. Under `order`, which `auto` becomes, priorities are
        searched, too; tied: see `move_sets.units`, of which `start` places each on one device;
        proposals: None: those that come with the project."""
        self._started = time.perf_counter()
        self._method = self._found_by = method
        self._budget, self._rng, self._incumbent = budget or default_budget(graph), rng, incumbent
        self._sets = move_sets(graph, costs, tied)
        self._proposals = shipped_proposals() if proposals is None else proposals
        self._start = starting_point(graph, costs, rng, dispatch) if start is None else start
        self._graph, self._costs = graph, costs
        self._rule = "order" if dispatch == AUTO else dispatch
        self._ceiling_s = 1.0 + 2.0 * serial_s(costs)
        self._slice = max(1, min(1000, _SLICE_SIZE // (graph.num_vertices + graph.num_edges)))
        ordered = self._rule == "order"
        if ordered:  # a priority can change where a device cannot
            self._sets = self._sets._replace(movable=np.ones(self.num_units, bool))
        self._immovable = not self._sets.movable.any()
        self.state, self.steps = walk_state(self._start.device, graph.num_edges, ordered), 0
        self._prepared = FastSimulator(graph, costs, self._rule).prepared(self.state.priority[0] if ordered else None)
        self._start_s = math.inf
        self._improvements: deque[tuple[float, Assignment]] = deque(maxlen=_REMEMBERED)
        if ordered:
            self._begin_ordered(dispatch)
        else:
            self._simulate()
        self._offer()
        self._walk_started = time.perf_counter()

    @property
    def num_units(self) -> int:
        """The number of units."""
        return self._sets.num_units

    @property
    def over(self) -> bool:
        """Whether the budget is spent, the target is reached, or no unit can move."""
        budget = self._budget
        if self._incumbent is not None and self._incumbent.over:
            return True
        late = budget.seconds is not None and time.perf_counter() - self._started >= budget.seconds
        return late or self.steps >= budget.most or budget.reached(self.state.levels[1]) or self._immovable

    @property
    def affordable(self) -> int | float:
        """The number of steps that fit into the seconds left, at least one.

        It is infinite if simulations are counted, because the steps within a smaller budget must be the first steps within a larger one.
        """
        if self._budget.seconds is None or self._budget.simulations is not None:
            return math.inf
        now = time.perf_counter()
        pace = self.steps / max(now - self._walk_started, 1e-9)
        return max(1, int((self._budget.seconds - (now - self._started)) * pace))

    def walk(self, temperature_s: np.ndarray, measure: bool = False) -> tuple[float, int]:
        """Takes one step for each temperature (float64 [steps]), or fewer if the budget ends.

        Args:
          measure: returns the sum of the losses' logarithms and their number, which takes longer; otherwise returns zeros.
        """
        log_loss, losses, done = 0.0, 0, 0
        while done < len(temperature_s) and not self.over:
            steps, before = int(min(self._slice, len(temperature_s) - done, self._budget.most - self.steps)), self.state.levels[1]
            more = walk(self._sets, self._prepared, self._proposals, self.state, self._rng.random((steps, DRAWS)),
                        temperature_s[done:done + steps], self._ceiling_s, measure)
            log_loss, losses, done, self.steps = log_loss + more[0], losses + more[1], done + steps, self.steps + steps
            if self.state.levels[1] < before:
                self._found_by = self._method
                self._offer()
        return log_loss, losses

    def typical_loss_s(self) -> float:
        """The geometric mean of the losses of as many steps as there are units; 0 without losses. Steps with a loss are undone."""
        log_loss, losses = self.walk(np.zeros(self.num_units), measure=True)
        return float(np.exp(log_loss / losses)) if losses else 0.0

    def return_to_best(self) -> None:
        """Continues from the best so far or, if the incumbent is shared, from the best of all searches."""
        state = self.state
        if self._incumbent is not None and self._incumbent.shared:
            (shared_s, shared), before = self._incumbent.best, state.levels[1]
            if shared_s < before:
                self.begin_at(shared)
                if state.levels[1] < before:  # under another rule it may be slower
                    self._found_by = shared.method
        state.current[:], state.critical[0], state.levels[0] = state.best, state.critical[1], state.levels[1]
        state.priority[0], state.begun_s[0] = state.priority[1], state.begun_s[1]

    def begin_at(self, start: Assignment) -> None:
        """Continues from another assignment and, where priorities are searched, from its order."""
        self.state.current[0] = start.device
        if self._rule == "order":
            self._take_order(start)
        else:
            self._simulate()

    def standing(self) -> Standing:
        """Where the walk stands."""
        state = self.state
        return Standing(state.current[0].copy(), state.priority[0].copy(), state.begun_s[0].copy(), state.critical[0].copy(),
                        float(state.levels[0]))

    def resume(self, standing: Standing) -> None:
        """Continues from where the walk stood."""
        state = self.state
        state.current[0], state.priority[0], state.begun_s[0], state.critical[0], state.levels[0] = standing

    def _begin_ordered(self, dispatch: str) -> None:
        """Simulates the start in its own order, then with the most urgent first, and begins with the faster of the two."""
        if dispatch == AUTO:
            self._start_s = judge(self._graph, self._costs, [self._start], self._start.dispatch)[0][0]
        elif self._start.order is not None or self._start.priority is not None:
            self._start = replace(self._start, dispatch="order")
        self._take_order(self._start)
        if not self.over:
            self.state.priority[0] = self._levels()
            self._simulate()
            self.return_to_best()

    def _take_order(self, assignment: Assignment) -> None:
        """Takes the order of an assignment with the current devices, and simulates. Keys are spaced like seconds to the end."""
        position = static_priority(self._graph, self._costs, assignment)
        spaced = np.sort(self._levels()) + np.arange(len(position)) * 1e-9 * self._costs.exec_s.mean()
        self.state.priority[0] = spaced[position.astype(np.int64)]
        self._simulate()

    def _levels(self) -> np.ndarray:
        """float64 [N]: minus the seconds from a vertex's start to the end of everything that depends on it, under the current devices."""
        tail_s = np.zeros(self._graph.num_vertices)
        makespan_bound(self.state.current, self._prepared, math.inf, tail_s)
        return -tail_s

    def _simulate(self) -> None:
        """Simulates the current assignment."""
        self.state.levels[0] = math.inf
        walk(self._sets, self._prepared, self._proposals, self.state, np.zeros((1, DRAWS)), np.zeros(1), self._ceiling_s, True)
        self.steps += 1

    def _offer(self) -> None:
        makespan_s, assignment = min(float(self.state.levels[1]), self._start_s), self._best_assignment()
        self._improvements.append((makespan_s, assignment))
        if self._incumbent is not None:
            self._incumbent.offer(makespan_s, assignment)

    def _best_assignment(self) -> Assignment:
        if self._start_s < self.state.levels[1]:  # a priority comes close to `fifo`, but is not always as fast
            return replace(self._start, method=self._method)
        priority = ranks(self.state.priority[1]) if self._rule == "order" else None
        return Assignment(self.state.best[0].copy(), self._start.order, self._found_by, self._rule, priority)

    def found(self) -> Found:
        """The best so far."""
        makespan_s = math.inf if self.state.levels[1] >= self._ceiling_s else float(self.state.levels[1])
        return Found(self._best_assignment(), min(makespan_s, self._start_s), self.steps, time.perf_counter() - self._started,
                     improvements=tuple(self._improvements))


def serial_s(costs: CostModel) -> float:
    """An upper bound on schedules without needless waiting: all vertices on their slowest device and all transfers over the slowest link,
    one after another."""
    slowest_s = costs.topology.latency_s.max() + costs.edge_bytes / costs.topology.bandwidth_bytes_per_s.min()
    transfer_s = np.where(np.isnan(costs.explicit_transfer_s), slowest_s, costs.explicit_transfer_s)
    return float(costs.exec_s.max(axis=1).sum() + costs.num_devices * transfer_s.sum())
