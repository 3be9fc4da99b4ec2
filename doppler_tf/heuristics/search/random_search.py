"""The best of many random assignments: the control that a search must beat."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from doppler_tf.heuristics.judging import judge
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget, Found, default_budget
from doppler_tf.schedule.assignment import AUTO, Assignment

# Vertices simulated between two checks of the clock, which take some milliseconds.
_BATCH_SIZE = 50_000


def draw_best(problem: Problem, rng: np.random.Generator, budget: Budget | None = None, start: Assignment | None = None,
              pool: Pool | None = None) -> Found:
    """The best of `start`, if given, and random assignments; every permitted device of a unit is equally likely.

    Under `auto` a random assignment is simulated under `fifo` and `b_level`.
    """
    graph, own, started, pool = problem.graph, problem.units, time.perf_counter(), pool or Pool(problem)
    budget = budget or default_budget(graph)
    rules = ("fifo", "b_level") if problem.dispatch == AUTO else (problem.dispatch,)
    order = problem.order if start is None else start.order
    best, best_s, made, batch = None, math.inf, 0, max(1, _BATCH_SIZE // graph.num_vertices)
    if start is not None:
        (best_s, best), made = judge(problem, [replace(start, method="random_search")])[0], 1
    choices = own.allowed.sum(axis=1)
    # Row u lists the permitted devices of unit u first.
    ranked = np.argsort(~own.allowed, axis=1, kind="stable")
    deadline = math.inf if budget.seconds is None else started + budget.seconds
    while best is None or (made < budget.most and not pool.reached(best_s) and time.perf_counter() < deadline):
        count = int(min(batch, budget.most - made))
        drawn = (rng.random((count, own.num_units)) * choices).astype(np.int64)
        devices = np.full((count, graph.num_vertices), -1, np.int32)
        devices[:, graph.work_vertices] = ranked[np.arange(own.num_units), drawn][:, own.unit_of[graph.work_vertices]]
        orders = None if order is None else np.broadcast_to(order, (count, order.size))
        for rule in rules:
            makespans = problem.simulator(rule).makespans(devices, orders)
            first = int(np.argmin(makespans))
            if best is None or makespans[first] < best_s:
                best, best_s = Assignment(devices[first], order, "random_search", rule), float(makespans[first])
        made += count
    if not math.isfinite(best_s):
        best_s, best = judge(problem, [best])[0]
    return Found(best, best_s, made)
