"""Search that knows repetition: vertices that repeat each other share a device, in a graph with few repeats; then all are free."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.critical_path import CriticalPath
from doppler_tf.heuristics.judging import AUTO, judge, static_priority
from doppler_tf.heuristics.local_search import climb_and_kick
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.move_sets import units
from doppler_tf.heuristics.repetition import Repetition, find_repetition
from doppler_tf.heuristics.search import Budget, Found, Incumbent, default_budget
from doppler_tf.heuristics.shortened import Shortened, shorten
from doppler_tf.heuristics.starting_point import starting_point
from doppler_tf.heuristics.walker import Walker
from doppler_tf.schedule.assignment import Assignment

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


def tied_search(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """`search_tied` from the best of some heuristics, with the default budget."""
    return search_tied(graph, costs, rng).assignment


def search_tied(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget | None = None,
                start: Assignment | None = None, dispatch: str = "fifo", incumbent: Incumbent | None = None) -> Found:
    """Half of the budget for `place_tied`, if the graph repeats itself, then `climb_and_kick` with all vertices free; never worse than a
    start. A simulation of a shorter graph counts as its share of the whole."""
    started, budget, spent = time.perf_counter(), budget or default_budget(graph), 0
    repetition = find_repetition(graph, costs) if budget.most >= 2 * _LEAST else None
    if repetition is not None:
        half = replace(budget, simulations=None if budget.simulations is None else budget.simulations // 2,
                       seconds=None if budget.seconds is None else budget.seconds / 2)
        tied = place_tied(graph, costs, rng, half, start, dispatch, repetition)
        spent = tied.simulations
        start = starting_point(graph, costs, rng, dispatch) if start is None else start
        known_s = judge(graph, costs, [start], start.dispatch if dispatch == AUTO else dispatch)[0][0]
        start = tied.assignment if tied.makespan_s < known_s else start
    left = replace(budget, simulations=None if budget.simulations is None else max(1, budget.simulations - spent),
                   seconds=None if budget.seconds is None else max(0.0, budget.seconds - (time.perf_counter() - started)))
    walker = Walker(_NAME, graph, costs, rng, left, start, dispatch, incumbent)
    climb_and_kick(walker)
    found = walker.found()
    return replace(found, simulations=found.simulations + spent, seconds=time.perf_counter() - started)


def place_tied(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, budget: Budget, start: Assignment | None, dispatch: str,
               repetition: Repetition) -> Found:
    """The best assignment found that gives each chain, with the colocation groups of its vertices, one device.

    The search moves devices alone, in the shortest graph that ranks assignments as the whole does. It begins at the best of the given start
    and of some of the shorter graph, each tied. What it finds is judged on the whole.
    """
    started, rule = time.perf_counter(), "b_level" if dispatch == "order" else dispatch
    tied = units(graph, costs, repetition.chain).unit_of
    short = _short_enough(graph, costs, rng, repetition, tied, "b_level" if rule == AUTO else rule)
    label = tied[short.vertex]
    starts = [starting_point(short.graph, short.costs, rng, rule).device, *([] if start is None else [start.device[short.vertex]])]
    teacher = CriticalPath(short.graph, short.costs)
    starts += [teacher.sample(rng).device for _ in range(_STARTS)]
    first = min(judge(short.graph, short.costs, [Assignment(_alike(device, label, label)) for device in starts], rule),
                key=lambda pair: pair[0])[1]
    share = (short.graph.num_vertices + short.graph.num_edges) / (graph.num_vertices + graph.num_edges)
    left = Budget(None if budget.simulations is None else max(1, int((budget.simulations - 2 * _JUDGED) / share)),
                  None if budget.seconds is None else max(0.0, budget.seconds - (time.perf_counter() - started)))
    walker = Walker(_NAME, short.graph, short.costs, rng, left, first, first.dispatch, tied=label)
    climb_and_kick(walker)
    order = graph.topological_order[~graph.is_input[graph.topological_order]]
    last = [Assignment(_alike(better.device, label, tied), order, _NAME) for _, better in walker.found().improvements[-_JUDGED:]]
    makespan_s, best = min(judge(graph, costs, last, first.dispatch), key=lambda pair: pair[0])
    if dispatch == "order":
        makespan_s, best = judge(graph, costs, [replace(best, priority=static_priority(graph, costs, best))], dispatch)[0]
    return Found(best, makespan_s, 2 * _JUDGED + int(walker.steps * share), time.perf_counter() - started)


def _short_enough(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, repetition: Repetition, tied: np.ndarray,
                  rule: str) -> Shortened:
    """The shorter graph with the fewest copies in which tied assignments that fit in memory rank as in the whole, else the whole."""
    copies = _COPIES
    while (short := shorten(graph, costs, repetition, copies)) is not None:
        label = tied[short.vertex]
        devices = [_alike(a.device, label, tied) for a in spread_assignments(short.graph, short.costs, _JUDGED, rng)]
        whole_s = FastSimulator(graph, costs, rule).makespans(np.stack(devices))
        short_s = FastSimulator(short.graph, short.costs, rule).makespans(np.stack(devices)[:, short.vertex])
        fit = np.isfinite(whole_s) & np.isfinite(short_s)
        if _rank_correlation(whole_s[fit], short_s[fit]) >= _AGREES:
            return short
        copies *= 2
    return Shortened(graph, costs, np.arange(graph.num_vertices, dtype=np.int32))


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's; -1 if there are none or those of either are equal."""
    from scipy.stats import spearmanr  # here, as it takes long to import

    return float(spearmanr(a, b).statistic) if a.size and min(np.ptp(a), np.ptp(b)) > 0 else -1.0


def _alike(device: np.ndarray, label: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """int32 [len(onto)]: the device of the middle vertex with each label, -1 for the label -1. Args: device, label: of some vertices."""
    ordered = np.argsort(label, kind="stable")
    begin = np.searchsorted(label[ordered], onto)
    middle = ordered[(begin + np.searchsorted(label[ordered], onto, "right")) // 2 % len(ordered)]
    return np.where(onto < 0, -1, device[middle]).astype(np.int32)
