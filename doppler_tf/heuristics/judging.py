"""Assignments judged by simulation: under one dispatch rule, or each under the rule that suits it best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.mending import frugal_orders, legal
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES, Assignment
from doppler_tf.schedule.dispatch import queue_keys
from doppler_tf.schedule.memory import never_fits

# The shape of the noise under which assignments are judged where nobody says.
_NOISE = 0.01


def judge(graph: DataflowGraph, costs: CostModel, assignments: Sequence[Assignment], dispatch: str) -> list[tuple[float, Assignment]]:
    """Simulated seconds of each assignment, and the assignment with the rule.

    An assignment over links that do not exist is mended first (see `mending.legal`).

    Args: dispatch: a rule, or `auto`: the fastest rule for each assignment. Among equals the first of `DISPATCH_RULES` wins. `order` is
      tried where the assignment has a priority or an order.
    """
    assignments = [legal(graph, costs, a) for a in assignments]
    best = [(np.inf, a if dispatch == AUTO else replace(a, dispatch=dispatch)) for a in assignments]
    for rule in DISPATCH_RULES if dispatch == AUTO else (dispatch,):
        rows = [i for i, a in enumerate(assignments)
                if dispatch != AUTO or rule != "order" or a.order is not None or a.priority is not None]
        if rows:
            seconds = FastSimulator(graph, costs, rule).makespans_of([assignments[i] for i in rows]).tolist()
            for i, makespan_s in zip(rows, seconds, strict=True):
                if makespan_s < best[i][0]:
                    best[i] = makespan_s, replace(assignments[i], dispatch=rule)
    return best


def judge_frugal(graph: DataflowGraph, costs: CostModel, assignment: Assignment, dispatch: str,
                 moves: bool = True) -> tuple[float, Assignment]:
    """For an assignment that runs out of memory: seconds, and the assignment in an order that fits; if none does and `moves`, the fastest
    of other assignments that fit (see `mending.frugal_orders`). Infinity and the assignment as it is if none fits. Args: as of `judge`."""
    if never_fits(graph, costs) is not None:
        return np.inf, assignment
    same, *others = frugal_orders(graph, costs, assignment)
    for tried in ([same], others if moves else []):
        makespan_s, best = min(judge(graph, costs, tried, dispatch), key=lambda pair: pair[0], default=(np.inf, assignment))
        if np.isfinite(makespan_s):
            return makespan_s, best
    return np.inf, assignment


def noisy_means(graph: DataflowGraph, costs: CostModel, assignments: Sequence[Assignment], sigma: float, seed: int,
                draws: int = 20) -> list[float]:
    """The mean seconds of each assignment, by its own rule, over simulations with noise; every assignment meets the same noise.

    Args: sigma: see `costs.draw_noise`; seed: of the first draw, the others follow.
    """
    seconds = np.zeros((draws, len(assignments)))
    for row in range(draws):
        noise = draw_noise(graph.num_vertices, costs.num_devices, sigma, seed + row)
        for rule in {a.dispatch for a in assignments}:
            mine = [i for i, a in enumerate(assignments) if a.dispatch == rule]
            seconds[row, mine] = FastSimulator(graph, costs, rule, noise).makespans_of([assignments[i] for i in mine])
    return seconds.mean(axis=0).tolist()


class Steadiness:
    """Finds the steadiest of assignments: the least sum of makespan and mean under noise of 1%. All meet the same noise."""

    def __init__(self, graph: DataflowGraph, costs: CostModel, draws: int = 8, seed: int = 1_000_003):
        """Args: draws: of noise; seed: of the first draw, the others follow."""
        self._graph, self._costs, self._seeds = graph, costs, range(seed, seed + draws)
        self._least_s, self._simulators = np.inf, dict[str, list[FastSimulator]]()

    def offer(self, makespan_s: float, assignment: Assignment) -> bool:
        """Whether this is the steadiest so far. Args: makespan_s: its own, without noise."""
        if 2 * makespan_s >= self._least_s:  # as hardly any mean under noise is below the makespan without
            return False
        sum_s, draws = makespan_s, self._noisy(assignment.dispatch)
        for simulator in draws:
            sum_s += simulator.makespans_of([assignment])[0] / len(draws)
            if sum_s >= self._least_s:
                return False
        self._least_s = sum_s
        return True

    def _noisy(self, rule: str) -> list[FastSimulator]:
        if rule not in self._simulators:
            count, devices = self._graph.num_vertices, self._costs.num_devices
            self._simulators[rule] = [FastSimulator(self._graph, self._costs, rule, draw_noise(count, devices, _NOISE, seed))
                                      for seed in self._seeds]
        return self._simulators[rule]


def static_priority(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> np.ndarray:
    """float64 [N]: a priority for the rule `order` that comes closest to the assignment's own rule.

    Under `fifo` it is the sequence of simulated starts. If links never wait and memory suffices, this gives the same schedule. An
    assignment that runs out of memory has no starts; it gets the b-levels.
    """
    if assignment.dispatch != "fifo":
        return ranks(queue_keys(graph, costs, assignment, assignment.dispatch))
    starts_s = FastSimulator(graph, costs, "fifo").starts_s(assignment)
    return ranks(queue_keys(graph, costs, assignment, "b_level") if starts_s is None else starts_s)


def by_order(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Assignment:
    """The same devices for the rule `order`, with `static_priority`."""
    return replace(assignment, dispatch="order", priority=static_priority(graph, costs, assignment))


def ranks(keys: np.ndarray) -> np.ndarray:
    """float64 [N]: how many vertices have a smaller key. Equal keys have equal ranks, so that the rules of time decide among them."""
    return np.searchsorted(np.sort(keys), keys).astype(np.float64)
