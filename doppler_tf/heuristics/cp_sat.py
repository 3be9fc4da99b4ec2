"""Constraint programming with OR-tools: finds an assignment and proves a lower bound."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from doppler_tf.errors import ConfigError, DeadlockError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.cp_model import Model
from doppler_tf.heuristics.judging import judge, ranks
from doppler_tf.heuristics.search import ROUNDING, Budget, Found, Incumbent, default_budget
from doppler_tf.heuristics.starting_point import starting_point
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import lower_bounds, rounding
from doppler_tf.schedule.simulator import Simulator

# The model is worth building up to this many pairs of a vertex and a link, and this many vertices.
MOST_PAIRS, MOST_UNITS = 8_000, 300
# A budget of simulations is converted to CP-SAT's deterministic time, whose unit is about a second.
_TIME_PER_SIMULATION = 1e-4


@dataclass(frozen=True)
class Proven(Found):
    """The result of a search that also proves a bound.

    Attributes:
      optimal: whether the model was solved to optimality. The makespan may still be above `lower_bound_s`, because schedules of the model
        may wait on purpose and start vertices in any order, which the rules of time do not allow.
    """

    optimal: bool = False


def cp_sat(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """`solve` from the best of some heuristics, with the default budget."""
    return solve(graph, costs, rng).assignment


def small_enough(graph: DataflowGraph, costs: CostModel) -> bool:
    """Whether `solve` accepts the graph: up to 300 vertices on 4 devices, 140 on 8."""
    return graph.work_vertices.size <= MOST_UNITS and pairs(graph, costs) <= MOST_PAIRS


def pairs(graph: DataflowGraph, costs: CostModel) -> int:
    """Pairs of a vertex and a link. The model grows with their number."""
    return graph.work_vertices.size * costs.num_devices * max(1, costs.num_devices - 1)


def solve(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
          start: Assignment | None = None, dispatch: str = "fifo", incumbent: Incumbent | None = None) -> Proven:
    """Solves `cp_model.Model`, simulates every assignment that the solver finds, and keeps the fastest; never worse than its start.

    (Perron, Didier and Gay, "The CP-SAT-LP solver", CP 2023.)

    Args:
      budget: with seconds alone the solver uses all processors, and its result depends on their load. With simulations the result depends
        on the seed alone; each counts as 0.1 ms of CP-SAT's deterministic time.
      incumbent: receives assignments and bounds, and ends the solver, which then uses one processor.

    Raises:
      ConfigError: the graph is too large.
    """
    if not small_enough(graph, costs):
        raise field_error(ConfigError, "cp_sat", graph.name, "vertices", f"at most {MOST_UNITS} vertices that are no inputs, and at most "
                          f"{MOST_PAIRS} pairs of one and a link", graph.work_vertices.size, "use annealing")
    started, budget = time.perf_counter(), budget or default_budget(graph)
    from ortools.sat.python import cp_model

    begin = starting_point(graph, costs, rng, dispatch) if start is None else start
    best_s, best = judge(graph, costs, [replace(begin, method="cp_sat")], dispatch)[0]
    known_s = lower_bounds(graph, costs).best_s
    latest_s = best_s if math.isfinite(best_s) else costs.longest_s
    optimal = best_s <= known_s * (1 + ROUNDING)
    if optimal or budget.reached(best_s):
        return Proven(best, best_s, 1, time.perf_counter() - started, known_s, optimal=optimal)
    program = Model(graph, costs, latest_s, known_s)
    with contextlib.suppress(DeadlockError):  # an assignment that does not fit in memory gives no hint
        program.hint(best.device, Simulator().execute(graph, costs, best))
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = int(rng.integers(2**31 - 1))
    counted = budget.simulations is not None
    one = counted or incumbent is not None or not hasattr(os, "sched_getaffinity")
    solver.parameters.num_workers = 1 if one else len(os.sched_getaffinity(0))
    if counted:
        solver.parameters.max_deterministic_time = budget.simulations * _TIME_PER_SIMULATION
    if budget.seconds is not None:
        solver.parameters.max_time_in_seconds = max(0.0, budget.seconds - (time.perf_counter() - started))

    def proven(bound: float) -> float:
        return max(known_s, bound * program.unit_s * (1 - rounding(graph, costs)))

    made = 1

    def take(device: np.ndarray, start: np.ndarray) -> None:
        nonlocal best, best_s, made
        found = Assignment(device, begin.order, "cp_sat", priority=ranks(start))
        made, (makespan_s, found) = made + 1, judge(graph, costs, [found], dispatch)[0]
        if makespan_s < best_s:
            best, best_s = found, makespan_s
            if incumbent is not None:
                incumbent.offer(best_s, best)

    if incumbent is not None:
        solver.best_bound_callback = lambda bound: incumbent.raise_target(proven(bound))
        incumbent.at_end(solver.stop_search)  # stop_search has no effect before the solver runs, so `over` is checked next
        if incumbent.over:
            return Proven(best, best_s, 1, time.perf_counter() - started, known_s)
    status = solver.solve(program.model, _on_solution(cp_model, program, graph, take))
    bound = solver.best_objective_bound if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN) else 0.0
    if incumbent is not None:
        incumbent.raise_target(proven(bound))
    return Proven(best, best_s, made, time.perf_counter() - started, proven(bound),
                  optimal=status == cp_model.OPTIMAL)


def _on_solution(cp_model, program: Model, graph: DataflowGraph, take: Callable[[np.ndarray, np.ndarray], None]):
    """A callback that passes the devices and starts of every solution to `take`. The class is local because OR-tools is imported late."""

    class OnSolution(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            chosen = np.array([next(d for d, literal in enumerate(row) if self.boolean_value(literal)) for row in program.on], np.int32)
            device = np.full(graph.num_vertices, -1, np.int32)
            device[graph.work_vertices] = chosen[program.units.unit_of[graph.work_vertices]]
            start = np.zeros(graph.num_vertices)
            start[graph.work_vertices] = [self.value(program.start[v]) for v in graph.work_vertices.tolist()]
            take(device, start)

    return OnSolution()
