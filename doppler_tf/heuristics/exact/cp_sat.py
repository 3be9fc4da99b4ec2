"""Constraint programming with OR-tools: finds an assignment and proves a lower bound."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from doppler_tf.errors import ConfigError, DeadlockError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.exact.cp_model import Model
from doppler_tf.heuristics.judging import judge, ranks
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import ROUNDING, Budget, Found, default_budget
from doppler_tf.heuristics.search.starting_point import starting_point
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import rounding
from doppler_tf.schedule.simulator import Simulator

# The model is worth building up to this many pairs of a vertex and a link, and this many vertices.
MOST_PAIRS, MOST_UNITS = 8_000, 300
# A budget of simulations is converted to CP-SAT's deterministic time, whose unit is about a second.
_TIME_PER_SIMULATION = 1e-4


def small_enough(problem: Problem) -> bool:
    """Whether `solve` accepts the graph: up to 300 vertices on 4 devices, 140 on 8."""
    return problem.graph.work_vertices.size <= MOST_UNITS and pairs(problem) <= MOST_PAIRS


def pairs(problem: Problem) -> int:
    """Pairs of a vertex and a link. The model grows with their number."""
    devices = problem.costs.num_devices
    return problem.graph.work_vertices.size * devices * max(1, devices - 1)


def solve(problem: Problem, rng: np.random.Generator, budget: Budget | None = None, start: Assignment | None = None,
          pool: Pool | None = None) -> Found:
    """Solves `cp_model.Model`, simulates every assignment that the solver finds, and keeps the fastest; never worse than its start.

    (Perron, Didier and Gay, "The CP-SAT-LP solver", CP 2023.)

    Args:
      budget: with seconds alone the solver uses all processors, and its result depends on their load. With simulations the result depends
        on the seed alone; each counts as 0.1 ms of CP-SAT's deterministic time.
      pool: receives assignments; beside other searches bounds, too, and it ends the solver, which then uses one processor.

    Raises:
      ConfigError: the graph is too large.
    """
    graph, costs, pool = problem.graph, problem.costs, pool or Pool(problem)
    if not small_enough(problem):
        raise field_error(ConfigError, "cp_sat", graph.name, "vertices", f"at most {MOST_UNITS} vertices that are no inputs, and at most "
                          f"{MOST_PAIRS} pairs of one and a link", graph.work_vertices.size, "use annealing")
    started, budget = time.perf_counter(), budget or default_budget(graph)
    from ortools.sat.python import cp_model

    begin = starting_point(problem, rng) if start is None else start
    best_s, best = judge(problem, [replace(begin, method="cp_sat")])[0]
    known_s = problem.bounds.best_s
    latest_s = best_s if math.isfinite(best_s) else costs.longest_s
    if best_s <= known_s * (1 + ROUNDING) or pool.reached(best_s):
        return Found(best, best_s, 1, known_s)
    program = Model(problem, latest_s, known_s)
    with contextlib.suppress(DeadlockError):  # an assignment that does not fit in memory gives no hint
        program.hint(best.device, Simulator().execute(graph, costs, best))
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = int(rng.integers(2**31 - 1))
    counted = budget.simulations is not None
    solver.parameters.num_workers = 1 if counted or not pool.alone else len(os.sched_getaffinity(0))
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
        made, (makespan_s, found) = made + 1, judge(problem, [found])[0]
        if makespan_s < best_s:
            best, best_s = found, makespan_s
            pool.offer(best_s, best)

    if not pool.alone:
        solver.best_bound_callback = lambda bound: pool.raise_bound(proven(bound))
        pool.at_end(solver.stop_search)  # stop_search has no effect before the solver runs, so `over` is checked next
        if pool.over:
            return Found(best, best_s, 1, known_s)
    status = solver.solve(program.model, _on_solution(cp_model, program, graph, take))
    bound = solver.best_objective_bound if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN) else 0.0
    if not pool.alone:
        pool.raise_bound(proven(bound))
    return Found(best, best_s, made, proven(bound))


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
