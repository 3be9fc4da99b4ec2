"""The pool of candidates for one problem: who found what, the best of all, and when to stop."""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from doppler_tf.heuristics.judging import judge
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import ROUNDING, Found
from doppler_tf.schedule.assignment import Assignment

# Improvements of a search that are remembered.
_REMEMBERED = 64


class Candidate(NamedTuple):
    """An assignment and its simulated seconds."""

    makespan_s: float
    assignment: Assignment


class Pool:
    """Heuristics, policies and searches offer what they find, searches from several threads. All end when the best meets the bound.

    Attributes:
      problem: what the candidates are for.
      bound_s: the largest lower bound known.
      alone: whether one search runs at a time; shared: whether searches that run together may continue from the best of all.
      best: of all; of a search that has found none that fits in memory its level (see `WalkState.levels`).
      members: by heuristic, policy or search its best, which may be another search's that it went on from.
      ranked: all that heuristics and policies made, with their ranks among those of their maker.
      improvements: by search those that were its best for a while, the last ones.
      steadiest: by search the steadiest of those that it judged under noise.
      simulations: by search, how many it has made.
    """

    def __init__(self, problem: Problem, bound_s: float = 0.0, shared: bool = False):
        self.problem, self.bound_s, self.shared, self.alone = problem, bound_s, shared, True
        self.best: tuple[float, Assignment | None] = math.inf, None
        self.members, self.ranked = dict[str, Candidate](), list[tuple[int, Candidate]]()
        self.improvements = defaultdict[str, deque[Candidate]](lambda: deque(maxlen=_REMEMBERED))
        self.steadiest, self.simulations = dict[str, Candidate](), dict[str, int]()
        self._lock, self._at_end = threading.Lock(), list[Callable[[], None]]()

    def take(self, name: str, assignments: Sequence[Assignment]) -> None:
        """Judges what a heuristic or policy has made. The first of the fastest is its best."""
        judged = sorted(judge(self.problem, assignments), key=lambda pair: pair[0])
        self.ranked += enumerate(Candidate(*pair) for pair in judged)
        self.put(name, *judged[0])

    def put(self, name: str, makespan_s: float, assignment: Assignment) -> None:
        """Makes a candidate the best of a member, under its name."""
        self.members[name] = Candidate(makespan_s, replace(assignment, method=name))
        self._keep(*self.members[name])

    def offer(self, makespan_s: float, assignment: Assignment) -> None:
        """Remembers what a search has found; its `method` names the search."""
        self.improvements[assignment.method].append(Candidate(makespan_s, assignment))
        self._keep(makespan_s, assignment)

    def enter(self, name: str, found: Found) -> None:
        """Takes the result of a search."""
        self.members[name], self.simulations[name] = Candidate(found.makespan_s, found.assignment), found.simulations
        self._keep(*self.members[name])
        self.raise_bound(found.lower_bound_s)

    @property
    def leader(self) -> str:
        """The first of the members whose best is the fastest."""
        return min(self.members, key=lambda name: self.members[name].makespan_s)

    def starts(self) -> list[Assignment]:
        """Where searches may start: the best of each member, the fastest first; then the second best of each maker, and so on."""
        firsts = [(0, candidate) for candidate in self.members.values()]
        others = [(rank, candidate) for rank, candidate in self.ranked if rank]
        return [candidate.assignment for _, candidate in sorted([*firsts, *others], key=lambda pair: (pair[0], pair[1].makespan_s))]

    def raise_bound(self, bound_s: float) -> None:
        """Takes a proven lower bound."""
        with self._lock:
            self.bound_s = max(self.bound_s, bound_s)
        self._end_if_over()

    def at_end(self, stop: Callable[[], None]) -> None:
        """Registers `stop`, which some thread calls when all searches must end. For a search that cannot check `over`."""
        self._at_end.append(stop)
        self._end_if_over()

    def stop(self) -> None:
        """Ends all searches."""
        self.raise_bound(math.inf)

    def reached(self, makespan_s: float) -> bool:
        """Whether a makespan is at most the bound, apart from rounding."""
        return makespan_s <= self.bound_s * (1 + ROUNDING)

    @property
    def over(self) -> bool:
        """Whether all searches must end."""
        return self.reached(self.best[0])

    def _keep(self, makespan_s: float, assignment: Assignment) -> None:
        with self._lock:
            if makespan_s < self.best[0]:
                self.best = makespan_s, assignment
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.over:
            for stop in self._at_end:
                stop()
