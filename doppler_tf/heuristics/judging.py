"""Assignments judged by simulation: under one dispatch rule, or each under the rule that suits it best."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from doppler_tf.heuristics.mending import frugal_orders, legal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES, Assignment
from doppler_tf.schedule.dispatch import queue_keys


def judge(problem: Problem, assignments: Sequence[Assignment], dispatch: str | None = None) -> list[tuple[float, Assignment]]:
    """Simulated seconds of each assignment, and the assignment with the rule.

    An assignment over links that do not exist is mended first (see `mending.legal`).

    Args: dispatch: a rule, or `auto`: the fastest rule for each assignment. Among equals the first of `DISPATCH_RULES` wins. `order` is
      tried where the assignment has a priority or an order. None: that of the problem.
    """
    dispatch = dispatch or problem.dispatch
    assignments = [legal(problem.graph, problem.costs, a) for a in assignments]
    best = [(np.inf, a if dispatch == AUTO else replace(a, dispatch=dispatch)) for a in assignments]
    for rule in DISPATCH_RULES if dispatch == AUTO else (dispatch,):
        rows = [i for i, a in enumerate(assignments)
                if dispatch != AUTO or rule != "order" or a.order is not None or a.priority is not None]
        if rows:
            seconds = problem.simulator(rule).makespans_of([assignments[i] for i in rows]).tolist()
            for i, makespan_s in zip(rows, seconds, strict=True):
                if makespan_s < best[i][0]:
                    best[i] = makespan_s, replace(assignments[i], dispatch=rule)
    return best


def over_links(make: Callable) -> Callable:
    """The heuristic `make` with `legal` assignments."""

    @functools.wraps(make)
    def made(problem: Problem, rng: np.random.Generator) -> Assignment:
        return legal(problem.graph, problem.costs, make(problem, rng))

    return made


def fastest(judged: Sequence[tuple[float, Assignment]]) -> tuple[float, Assignment]:
    """The first of the fastest of assignments that were judged."""
    return min(judged, key=lambda pair: pair[0])


def judge_frugal(problem: Problem, assignment: Assignment, moves: bool = True) -> tuple[float, Assignment]:
    """For an assignment that runs out of memory: seconds, and the assignment in an order that fits; if none does and `moves`, the fastest
    of other assignments that fit (see `mending.frugal_orders`). Infinity and the assignment as it is if none fits."""
    if problem.never_fits is not None:
        return np.inf, assignment
    same, *others = frugal_orders(problem.graph, problem.costs, assignment)
    for tried in ([same], others if moves else []):
        makespan_s, best = fastest([*judge(problem, tried), (np.inf, assignment)])
        if np.isfinite(makespan_s):
            return makespan_s, best
    return np.inf, assignment


def static_priority(problem: Problem, assignment: Assignment) -> np.ndarray:
    """float64 [N]: a priority for the rule `order` that comes closest to the assignment's own rule.

    Under `fifo` it is the sequence of simulated starts. If links never wait and memory suffices, this gives the same schedule. An
    assignment that runs out of memory has no starts; it gets the b-levels.
    """
    graph, costs = problem.graph, problem.costs
    if assignment.dispatch != "fifo":
        return ranks(queue_keys(graph, costs, assignment, assignment.dispatch))
    starts_s = problem.simulator("fifo").starts_s(assignment)
    return ranks(queue_keys(graph, costs, assignment, "b_level") if starts_s is None else starts_s)


def by_order(problem: Problem, assignment: Assignment) -> Assignment:
    """The same devices for the rule `order`, with `static_priority`."""
    return replace(assignment, dispatch="order", priority=static_priority(problem, assignment))


def ranks(keys: np.ndarray) -> np.ndarray:
    """float64 [N]: how many vertices have a smaller key. Equal keys have equal ranks, so that the rules of time decide among them."""
    return np.searchsorted(np.sort(keys), keys).astype(np.float64)
