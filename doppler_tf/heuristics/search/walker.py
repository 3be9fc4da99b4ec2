"""The walk of annealing, hill climbing and their race: a current assignment, the best so far, the steadiest so far, and the budget."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.prepared import makespan_bound
from doppler_tf.heuristics.judging import judge, ranks, static_priority
from doppler_tf.heuristics.pool import Candidate, Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget, Found, default_budget
from doppler_tf.heuristics.search.metropolis import DRAWS, walk, walk_state
from doppler_tf.heuristics.search.move_sets import move_sets
from doppler_tf.heuristics.search.proposals import Proposals, shipped_proposals
from doppler_tf.heuristics.search.starting_point import starting_point
from doppler_tf.heuristics.steadiness import Steadiness
from doppler_tf.schedule.assignment import AUTO, Assignment

# Vertices and edges simulated between two checks of the clock (some milliseconds).
_SLICE_SIZE = 200_000
# Up to which size of graph assignments are judged under noise, and steps between two judgements: twenty for each simulation in one.
_MOST_JUDGED, _BETWEEN = 50_000, 160


class Standing(NamedTuple):
    """Where a walk stands. Attributes: device: int32 [N]; keys, begun_s, critical: rows of `WalkState`; level_s: the makespan."""

    device: np.ndarray
    keys: np.ndarray
    begun_s: np.ndarray
    critical: np.ndarray
    level_s: float


class Walker:
    """A search in progress: its current assignment, the best so far, and the spent budget.

    The fastest assignment may owe its makespan to exact ties, and take 5% longer when times differ by a thousandth. The walk therefore
    returns to the steadiest so far: the one with the least makespan and mean under noise together. Some of the assignments that it meets
    are judged so.

    Attributes:
      state: the current and the best assignment, with their makespans.
      steps: simulations so far, without those under noise.
    """

    def __init__(self, method: str, problem: Problem, rng: np.random.Generator, budget: Budget | None = None,
                 start: Assignment | None = None, pool: Pool | None = None, tied: np.ndarray | None = None,
                 proposals: Proposals | None = None):
        """Under the rule `order`, which `auto` becomes, priorities are searched, too.

        Args:
          start: None: `starting_point`; pool: gets all improvements; None: one of its own.
          tied: see `move_sets.units`, of which `start` places each on one device; proposals: None: those that come with the project.
        """
        self._started = time.perf_counter()
        self._method = self._found_by = method
        self._problem, self._rng, self._pool = problem, rng, pool or Pool(problem)
        self._budget = budget or default_budget(problem.graph)
        self._sets = problem.move_sets if tied is None else move_sets(problem.graph, problem.costs, tied)
        self._proposals = shipped_proposals() if proposals is None else proposals
        self._start = starting_point(problem, rng) if start is None else start
        self._rule, self._ceiling_s = "order" if problem.dispatch == AUTO else problem.dispatch, problem.ceiling_s
        self._slice = max(1, min(1000, _SLICE_SIZE // problem.size))
        ordered = self._rule == "order"
        if ordered:  # a priority can change where a device cannot
            self._sets = self._sets._replace(movable=np.ones(self.num_units, bool))
        self._immovable = not self._sets.movable.any()
        self.state, self.steps = walk_state(self._start.device, problem.graph.num_edges, ordered), 0
        self._prepared = problem.prepared(self._rule, self.state.priority[0] if ordered else None)
        self._start_s = math.inf
        self._steadiness = Steadiness(problem) if problem.size <= _MOST_JUDGED else None
        self._steadiest: Standing | None = None
        self._judged, self._next_judged = b"", _BETWEEN
        if ordered:
            self._begin_ordered()
        else:
            self._simulate()
        self._offer()
        self._walked, self._walked_s = 0, 0.0

    @property
    def num_units(self) -> int:
        """The number of units."""
        return self._sets.num_units

    @property
    def over(self) -> bool:
        """Whether the budget is spent, the pool is over, or no unit can move."""
        budget = self._budget
        late = budget.seconds is not None and time.perf_counter() - self._started >= budget.seconds
        reached = self._pool.over or self._pool.reached(self.state.levels[1])
        return reached or late or self.steps >= budget.most or self._immovable

    @property
    def affordable(self) -> int | float:
        """The number of steps that fit into the seconds left, at the pace of the steps walked so far; at least one.

        It is infinite if simulations are counted, because the steps within a smaller budget must be the first steps within a larger one.
        """
        if self._budget.seconds is None or self._budget.simulations is not None:
            return math.inf
        pace = self._walked / max(self._walked_s, 1e-9)
        return max(1, int((self._budget.seconds - (time.perf_counter() - self._started)) * pace))

    def walk(self, temperature_s: np.ndarray, measure: bool = False) -> tuple[float, int]:
        """Takes one step for each temperature (float64 [steps]), or fewer if the budget ends.

        Args:
          measure: returns the sum of the losses' logarithms and their number, which takes longer; otherwise returns zeros.
        """
        log_loss, losses, done, started = 0.0, 0, 0, time.perf_counter()
        while done < len(temperature_s) and not self.over:
            steps, before = int(min(self._slice, len(temperature_s) - done, self._budget.most - self.steps)), self.state.levels[1]
            more = walk(self._sets, self._prepared, self._proposals, self.state, self._rng.random((steps, DRAWS)),
                        temperature_s[done:done + steps], self._ceiling_s, measure)
            log_loss, losses, done, self.steps = log_loss + more[0], losses + more[1], done + steps, self.steps + steps
            if self.state.levels[1] < before:
                self._found_by = self._method
                self._offer()
            if self.steps >= self._next_judged:
                self._judge()
                self._next_judged = self.steps + _BETWEEN
        self._walked, self._walked_s = self._walked + done, self._walked_s + time.perf_counter() - started
        return log_loss, losses

    def typical_loss_s(self) -> float:
        """The geometric mean of the losses of as many steps as there are units; 0 without losses. Steps with a loss are undone."""
        log_loss, losses = self.walk(np.zeros(self.num_units), measure=True)
        return float(np.exp(log_loss / losses)) if losses else 0.0

    def return_to_best(self) -> None:
        """Continues from the steadiest of those judged, the best so far and, if the pool is shared, the best of all searches."""
        state = self.state
        if self._pool.shared:
            (shared_s, shared), before = self._pool.best, state.levels[1]
            if shared_s < before:
                self.begin_at(shared)
                if state.levels[1] < before:  # under another rule it may be slower
                    self._found_by = shared.method
        self.resume(self.standing(1))
        if self.steps >= _BETWEEN:
            self._judge()
        if self._steadiest is not None:
            self.resume(self._steadiest)

    def _judge(self) -> None:
        """Judges the current assignment, if it may be the steadiest."""
        standing = self.standing()
        looks = standing.device.tobytes() + standing.keys.tobytes()
        if self._steadiness is None or standing.level_s >= self._ceiling_s or looks == self._judged:
            return
        self._judged = looks
        priority = ranks(standing.keys) if self._rule == "order" else None
        assignment = Assignment(standing.device, self._start.order, self._method, self._rule, priority)
        if self._steadiness.offer(standing.level_s, assignment):
            self._steadiest, self._pool.steadiest[self._method] = standing, Candidate(standing.level_s, assignment)

    def begin_at(self, start: Assignment) -> None:
        """Continues from another assignment and, where priorities are searched, from its order."""
        self.state.current[0] = start.device
        if self._rule == "order":
            self._take_order(start)
        else:
            self._simulate()

    def standing(self, row: int = 0) -> Standing:
        """Where the walk stands. Args: row: 1: where it stood at its best."""
        state = self.state
        return Standing((state.current, state.best)[row][0].copy(), state.priority[row].copy(), state.begun_s[row].copy(),
                        state.critical[row].copy(), float(state.levels[row]))

    def resume(self, standing: Standing) -> None:
        """Continues from where the walk stood."""
        state = self.state
        state.current[0], state.priority[0], state.begun_s[0], state.critical[0], state.levels[0] = standing

    def _begin_ordered(self) -> None:
        """Simulates the start in its own order, then with the most urgent first, and begins with the faster of the two."""
        if self._problem.dispatch == AUTO:
            self._start_s = judge(self._problem, [self._start], self._start.dispatch)[0][0]
        elif self._start.order is not None or self._start.priority is not None:
            self._start = replace(self._start, dispatch="order")
        self._take_order(self._start)
        if not self.over:
            self.state.priority[0] = self._levels()
            self._simulate()
            self.return_to_best()

    def _take_order(self, assignment: Assignment) -> None:
        """Takes the order of an assignment with the current devices, and simulates. Keys are spaced like seconds to the end."""
        position = static_priority(self._problem, assignment)
        spaced = np.sort(self._levels()) + np.arange(len(position)) * 1e-9 * self._problem.costs.exec_s.mean()
        self.state.priority[0] = spaced[position.astype(np.int64)]
        self._simulate()

    def _levels(self) -> np.ndarray:
        """float64 [N]: minus the seconds from a vertex's start to the end of everything that depends on it, under the current devices."""
        tail_s = np.zeros(self._problem.graph.num_vertices)
        makespan_bound(self.state.current, self._prepared, math.inf, tail_s)
        return -tail_s

    def _simulate(self) -> None:
        """Simulates the current assignment."""
        self.state.levels[0] = math.inf
        walk(self._sets, self._prepared, self._proposals, self.state, np.zeros((1, DRAWS)), np.zeros(1), self._ceiling_s, True)
        self.steps += 1

    def _offer(self) -> None:
        self._pool.offer(min(float(self.state.levels[1]), self._start_s), self._best_assignment())

    def _best_assignment(self) -> Assignment:
        if self._start_s < self.state.levels[1]:  # a priority comes close to `fifo`, but is not always as fast
            return replace(self._start, method=self._method)
        priority = ranks(self.state.priority[1]) if self._rule == "order" else None
        return Assignment(self.state.best[0].copy(), self._start.order, self._found_by, self._rule, priority)

    def found(self) -> Found:
        """The best so far."""
        makespan_s = math.inf if self.state.levels[1] >= self._ceiling_s else float(self.state.levels[1])
        return Found(self._best_assignment(), min(makespan_s, self._start_s), self.steps)
