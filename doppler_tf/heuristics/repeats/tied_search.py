"""Search that knows repetition: vertices that repeat each other share a device, in a graph with few repeats; then all are free."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from doppler_tf.heuristics.judging import fastest, judge, static_priority
from doppler_tf.heuristics.mixtures import rank_correlation, spread_assignments
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.shortened import Shortened, shorten
from doppler_tf.heuristics.search.budget import Budget, Found, default_budget
from doppler_tf.heuristics.search.local_search import climb_and_kick
from doppler_tf.heuristics.search.move_sets import units
from doppler_tf.heuristics.search.starting_point import starting_point
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import AUTO, Assignment

_NAME = "tied_search"
# Critical-path assignments among which the tied search chooses its start. Tied, they differ by a tenth.
_STARTS = 50
# A shorter graph begins with so many copies, which are doubled until it ranks like the whole.
_COPIES = 2
# Assignments of all qualities by which rankings are compared, as many as improvements are judged on the whole; and the rank correlation
# that is enough.
_JUDGED, _AGREES = 24, 0.95
# A smaller half of a budget of simulations would mostly be spent on judging.
_LEAST = 4 * _JUDGED


def search_tied(problem: Problem, rng: np.random.Generator, budget: Budget | None = None, start: Assignment | None = None,
                pool: Pool | None = None) -> Found:
    """Half of the budget for `place_tied`, if the graph repeats itself, then `climb_and_kick` with all vertices free; never worse than a
    start. A simulation of a shorter graph counts as its share of the whole."""
    started, budget, spent = time.perf_counter(), budget or default_budget(problem.graph), 0
    if budget.most >= 2 * _LEAST and problem.repetition is not None:
        half = replace(budget, simulations=None if budget.simulations is None else budget.simulations // 2,
                       seconds=None if budget.seconds is None else budget.seconds / 2)
        tied = place_tied(problem, rng, half, start)
        spent = tied.simulations
        start = starting_point(problem, rng) if start is None else start
        known_s = judge(problem, [start], start.dispatch if problem.dispatch == AUTO else None)[0][0]
        start = tied.assignment if tied.makespan_s < known_s else start
    left = replace(budget, simulations=None if budget.simulations is None else max(1, budget.simulations - spent),
                   seconds=None if budget.seconds is None else max(0.0, budget.seconds - (time.perf_counter() - started)))
    walker = Walker(_NAME, problem, rng, left, start, pool)
    climb_and_kick(walker)
    found = walker.found()
    return replace(found, simulations=found.simulations + spent)


def place_tied(problem: Problem, rng: np.random.Generator, budget: Budget, start: Assignment | None = None) -> Found:
    """The best assignment found that gives each chain, with the colocation groups of its vertices, one device.

    The search moves devices alone, in the shortest graph that ranks assignments as the whole does. It begins at the best of the given start
    and of some of the shorter graph, each tied. What it finds is judged on the whole.
    """
    started, dispatch, repetition = time.perf_counter(), problem.dispatch, problem.repetition
    rule = "b_level" if dispatch == "order" else dispatch
    tied = units(problem.graph, problem.costs, repetition.chain).unit_of
    short, vertex = _short_enough(problem, rng, tied, "b_level" if rule == AUTO else rule)
    short, label = short.under(rule), tied[vertex]
    starts = [starting_point(short, rng).device, *([] if start is None else [start.device[vertex]])]
    starts += [short.teacher.sample(rng).device for _ in range(_STARTS)]
    first = fastest(judge(short, [Assignment(_alike(device, label, label)) for device in starts]))[1]
    share = short.size / problem.size
    left = Budget(None if budget.simulations is None else max(1, int((budget.simulations - 2 * _JUDGED) / share)),
                  None if budget.seconds is None else max(0.0, budget.seconds - (time.perf_counter() - started)))
    pool = Pool(short)
    walker = Walker(_NAME, short.under(first.dispatch), rng, left, first, pool, tied=label)
    climb_and_kick(walker)
    better = list(pool.improvements[_NAME])[-_JUDGED:]
    makespan_s, best = fastest(judge(
        problem, [Assignment(_alike(each.assignment.device, label, tied), problem.order, _NAME) for each in better], first.dispatch))
    if dispatch == "order":
        makespan_s, best = judge(problem, [replace(best, priority=static_priority(problem, best))])[0]
    return Found(best, makespan_s, 2 * _JUDGED + int(walker.steps * share))


def _short_enough(problem: Problem, rng: np.random.Generator, tied: np.ndarray, rule: str) -> Shortened:
    """The shorter graph with the fewest copies in which tied assignments that fit in memory rank as in the whole, else the whole."""
    copies = _COPIES
    while (short := shorten(problem, copies)) is not None:
        label = tied[short.vertex]
        devices = [_alike(a.device, label, tied) for a in spread_assignments(short.problem, _JUDGED, rng)]
        whole_s = problem.simulator(rule).makespans(np.stack(devices))
        short_s = short.problem.simulator(rule).makespans(np.stack(devices)[:, short.vertex])
        fit = np.isfinite(whole_s) & np.isfinite(short_s)
        if rank_correlation(whole_s[fit], short_s[fit]) >= _AGREES:
            return short
        copies *= 2
    return Shortened(problem, np.arange(problem.graph.num_vertices, dtype=np.int32))


def _alike(device: np.ndarray, label: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """int32 [len(onto)]: the device of the middle vertex with each label, -1 for the label -1. Args: device, label: of some vertices."""
    ordered = np.argsort(label, kind="stable")
    begin = np.searchsorted(label[ordered], onto)
    middle = ordered[(begin + np.searchsorted(label[ordered], onto, "right")) // 2 % len(ordered)]
    return np.where(onto < 0, -1, device[middle]).astype(np.int32)
