"""The assignment from which searches start by default."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from doppler_tf.errors import CostError
from doppler_tf.heuristics.constructive.enumerative import enumerative
from doppler_tf.heuristics.constructive.list_schedulers import etf, heft
from doppler_tf.heuristics.constructive.partition import partition
from doppler_tf.heuristics.constructive.simple import critical_path
from doppler_tf.heuristics.judging import fastest, judge, judge_frugal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

# A larger graph gets only the first two heuristics, on all devices. They take a second for 100,000 vertices.
_MOST_VERTICES = 20_000
_CONSTRUCTORS = (critical_path, heft, etf, enumerative, partition)
# These heuristics never use a forbidden device, so that they can be restricted to fewer devices.
_ON_FEWER = (critical_path, heft, etf)


def starting_point(problem: Problem, rng: np.random.Generator, known: Assignment | None = None, seconds: float = math.inf) -> Assignment:
    """The fastest of some constructed assignments by `judge`; ties go to the first.

    They are one assignment each by critical path, HEFT, ETF, the enumerative optimizer and METIS, or `known` instead of the five; and the
    first three on fewer devices, which win if transfers are costly. Graphs above 20,000 vertices get critical path and HEFT only. If none
    fits in memory, `judge_frugal` looks for another one.

    Args: seconds: after so many, none is made on fewer devices.
    """
    started, small = time.perf_counter(), problem.graph.num_vertices <= _MOST_VERTICES
    found = [make(problem, rng) for make in _CONSTRUCTORS[:None if small else 2]] if known is None else [known]
    for fewer in _on_fewer_devices(problem) if small else ():
        for make in _ON_FEWER:
            if time.perf_counter() - started < seconds:
                with contextlib.suppress(CostError):  # what is linked with what may need more devices
                    found.append(make(fewer, rng))
    makespan_s, best = fastest(judge(problem, found))
    return best if math.isfinite(makespan_s) else judge_frugal(problem, best)[1]


def _on_fewer_devices(problem: Problem) -> Iterator[Problem]:
    """The same problem with only half of the devices permitted, a quarter, and so on to one. The devices are fast and close to each other.
    Vertices pinned elsewhere stay there."""
    costs, order = problem.costs, _by_proximity(problem)
    count = costs.num_devices // 2
    while count:
        group = np.zeros(costs.num_devices, bool)
        group[order[:count]] = True
        inside = costs.allowed & group
        yield Problem(problem.graph, replace(costs, allowed=np.where(inside.any(axis=1, keepdims=True), inside, costs.allowed)))
        count //= 2


def _by_proximity(problem: Problem) -> list[int]:
    """All devices. The fastest comes first, then always the one with the least time for a mean vertex plus a mean transfer to and from the
    devices before it."""
    costs, work = problem.costs, problem.graph.work_vertices
    work_s = costs.exec_s[work].sum(axis=0) / max(1, work.size)
    sent_bytes, link_s = costs.edge_bytes[np.isnan(costs.explicit_transfer_s)], np.zeros((costs.num_devices, costs.num_devices))
    if sent_bytes.size:
        bandwidth = np.where(costs.topology.linked, costs.topology.bandwidth_bytes_per_s, np.inf)
        link_s = costs.planned_latency_s + sent_bytes.mean() / bandwidth
    order, transfers_s = [int(np.argmin(work_s))], np.zeros(costs.num_devices)
    while len(order) < costs.num_devices:
        transfers_s += link_s[order[-1]] + link_s[:, order[-1]]
        total_s = work_s + transfers_s / len(order)
        total_s[order] = np.inf
        order.append(int(np.argmin(total_s)))
    return order
