"""List schedulers of the literature. Each sets a priority and a rule for the device; `by_priority` or `by_ready` makes the schedule."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.heuristics.constructive import by_priority, by_ready
from doppler_tf.heuristics.constructive.planning import planned
from doppler_tf.heuristics.judging import over_links
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

_NOTHING_EXTRA = np.zeros((1, 1))


@over_links
def heft(problem: Problem, rng: np.random.Generator) -> Assignment:
    """HEFT: vertices by upward rank (the b-level), each where it ends soonest. A vertex may fill a gap between earlier ones.

    (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1.)
    """
    made = by_priority.schedule(problem.planning, problem.b_levels.value_s, _NOTHING_EXTRA, _anywhere(problem), True, False)
    return planned(made, "heft")


@over_links
def cpop(problem: Problem, rng: np.random.Generator) -> Assignment:
    """CPoP: the critical path's vertices on the device that runs them fastest, every other vertex where it ends soonest.

    Priority is b-level plus t-level, and vertices may fill gaps. (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.2.)
    """
    costs, work, below, preferred = problem.costs, problem.graph.work_vertices, problem.b_levels, _anywhere(problem)
    path, v = [], int(work[np.argmax(below.value_s[work])])
    while v >= 0:
        path.append(v)
        v = int(below.next_vertex[v])
    # The device that pins permit for most of the path; ties go to the fastest device.
    forbidden = (~costs.allowed[path]).sum(axis=0)
    preferred[path] = np.lexsort((costs.exec_s[path].sum(axis=0), forbidden))[0]
    priority = below.value_s + problem.t_levels.value_s
    return planned(by_priority.schedule(problem.planning, priority, _NOTHING_EXTRA, preferred, True, False), "cpop")


@over_links
def peft(problem: Problem, rng: np.random.Generator) -> Assignment:
    """PEFT: vertices by mean optimistic cost, each where its end plus its optimistic cost is least. A vertex may fill a gap.

    (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014.)
    """
    table = optimistic_costs(problem)
    return planned(by_priority.schedule(problem.planning, table.mean(axis=1), table, _anywhere(problem), True, False), "peft")


@over_links
def fcp(problem: Problem, rng: np.random.Generator) -> Assignment:
    """FCP: vertices by b-level, each on the better of two devices: the one that sends its last input and the one that is free first.

    The better one is where the vertex ends first; on equal devices this is the paper's earliest start. If neither is permitted and has
    memory, all devices are compared.
    (Radulescu and van Gemund, "On the complexity of list scheduling algorithms for distributed-memory systems", ICS 1999.)
    """
    made = by_priority.schedule(problem.planning, problem.b_levels.value_s, _NOTHING_EXTRA, _anywhere(problem), False, True)
    return planned(made, "fcp")


@over_links
def etf(problem: Problem, rng: np.random.Generator) -> Assignment:
    """ETF: takes the pair of candidate and device that starts first; ties go to the larger b-level.

    (Hwang, Chow, Anger and Lee, SIAM J. Computing 18(2), 1989.)
    """
    name = _by_level(problem)
    return planned(by_ready.schedule(problem.planning, np.argsort(name), name, False), "etf")


@over_links
def min_min(problem: Problem, rng: np.random.Generator) -> Assignment:
    """Min-min: takes the pair of candidate and device that ends first; ties go to the larger b-level.

    (Ibarra and Kim, JACM 24(2), 1977, algorithm D for independent tasks; here it chooses among the candidates and counts transfers.)
    """
    name = _by_level(problem)
    return planned(by_ready.schedule(problem.planning, np.argsort(name), name, True), "min_min")


def _anywhere(problem: Problem) -> np.ndarray:
    """int32 [N]: no vertex prefers a device."""
    return np.full(problem.graph.num_vertices, -1, np.int32)


def _by_level(problem: Problem) -> np.ndarray:
    """int64 [N]: the vertices, largest b-level first."""
    return np.argsort(-problem.b_levels.value_s, kind="stable")


def optimistic_costs(problem: Problem) -> np.ndarray:
    """PEFT's table, float64 [N, D]: seconds that must follow a vertex on d, even if every successor finds its best device free."""
    graph, costs, out = problem.graph, problem.costs, problem.graph.successors
    return _table(graph.topological_order[::-1].copy(), out.ptr, out.vertex, costs.mean_transfer_s[out.edge], costs.exec_s, costs.allowed)


@compiled
def _table(order, ptr, consumer, transfer_s, exec_s, allowed):
    count, num_devices = exec_s.shape
    table = np.zeros((count, num_devices))
    for v in order:
        for i in range(ptr[v], ptr[v + 1]):
            w = consumer[i]
            elsewhere = np.inf
            for d in range(num_devices):
                if allowed[w, d]:
                    elsewhere = min(elsewhere, table[w, d] + exec_s[w, d])
            elsewhere += transfer_s[i]
            for d in range(num_devices):
                here = table[w, d] + exec_s[w, d] if allowed[w, d] else np.inf
                table[v, d] = max(table[v, d], min(here, elsewhere))
    return table
