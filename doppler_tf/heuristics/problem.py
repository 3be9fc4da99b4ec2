"""A placement problem: a graph, its costs and the rule of dispatch, with what is derived from them, each part computed once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.prepared import Prepared
from doppler_tf.graph.costs import CostModel, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.constructive.balancing import work_shares
from doppler_tf.heuristics.constructive.critical_path import CriticalPath
from doppler_tf.heuristics.constructive.planning import planning_data
from doppler_tf.heuristics.repeats.repetition import find_repetition
from doppler_tf.heuristics.search.move_sets import move_sets, units
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.memory import never_fits
from doppler_tf.schedule.ranks import b_levels, t_levels

Part = TypeVar("Part")


def _part(compute: Callable[[DataflowGraph, CostModel], Part]) -> property:
    """What is computed of graph and costs when it is first asked for."""
    return property(lambda problem: problem.once(compute.__name__, lambda: compute(problem.graph, problem.costs)))


def _order(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    return graph.topological_order[~graph.is_input[graph.topological_order]]


@dataclass(frozen=True, eq=False)
class Problem:
    """What heuristics and searches work on. Threads may share it.

    Attributes:
      graph, costs: what is placed, and where.
      dispatch: the rule that assignments are simulated under; `auto`: each under the rule that suits it best.
      order: int32 [M], the work vertices in topological order.
      bounds: lower bounds of the makespan; never_fits: why no assignment fits in memory, None if nothing proves it.
      b_levels, t_levels: the heaviest paths to an exit and from an entry.
      planning: what list schedulers read; work_shares: float64 [D], of each device; teacher: draws critical-path assignments.
      units, move_sets: what stays together, and what searches move together.
      repetition: what follows several times in the graph; None if nothing does.
    """

    graph: DataflowGraph
    costs: CostModel
    dispatch: str = "fifo"
    _parts: dict = field(default_factory=dict, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    order, bounds, never_fits = _part(_order), _part(lower_bounds), _part(never_fits)
    b_levels, t_levels = _part(b_levels), _part(t_levels)
    planning, work_shares, teacher = _part(planning_data), _part(work_shares), _part(CriticalPath)
    units, move_sets, repetition = _part(units), _part(move_sets), _part(find_repetition)

    def once(self, key: str | tuple, compute: Callable[[], Part]) -> Part:
        """What `compute` returned when the key was first asked for."""
        with self._lock:
            if key not in self._parts:
                self._parts[key] = compute()
            return self._parts[key]

    def under(self, dispatch: str) -> Problem:
        """The same problem under a rule; what has been computed stays."""
        other = copy.copy(self)
        object.__setattr__(other, "dispatch", dispatch)
        return other

    @property
    def ceiling_s(self) -> float:
        """More than any makespan."""
        return 1.0 + 2.0 * self.costs.longest_s

    @property
    def size(self) -> int:
        """Vertices and edges."""
        return self.graph.num_vertices + self.graph.num_edges

    def simulator(self, rule: str) -> FastSimulator:
        """Simulates assignments under a rule."""
        return self.once(("simulator", rule), lambda: FastSimulator(self.graph, self.costs, rule))

    def noisy_simulator(self, rule: str, sigma: float, seed: int) -> FastSimulator:
        """The same under noise. Args: sigma, seed: of `draw_noise`."""
        return self.simulator(rule).under(draw_noise(self.graph.num_vertices, self.costs.num_devices, sigma, seed))

    def prepared(self, rule: str, priority: np.ndarray | None = None) -> Prepared:
        """What compiled searches simulate with. Args: priority: see `FastSimulator.prepared`."""
        made = self.once(("prepared", rule), self.simulator(rule).prepared)
        return made if priority is None else made._replace(priority=priority[None])
