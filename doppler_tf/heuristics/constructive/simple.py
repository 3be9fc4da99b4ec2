"""The teacher, and baselines that ignore transfers: one device, round robin, random. They honour pins and colocation groups."""

from __future__ import annotations

import numpy as np

from doppler_tf.heuristics.judging import over_links
from doppler_tf.heuristics.mending import first_allowed, legal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment


def critical_path(problem: Problem, rng: np.random.Generator) -> Assignment:
    """One randomised critical-path assignment."""
    return problem.teacher.sample(rng)


def one_device(problem: Problem, rng: np.random.Generator) -> Assignment:
    """All vertices on the device that can run most of them, with the least total exec; others, and pinned ones, where they may go."""
    costs, work = problem.costs, problem.graph.work_vertices
    return all_on(problem, int(np.lexsort((costs.exec_s[work].sum(axis=0), (~costs.eligible[work]).sum(axis=0)))[0]))


def all_on(problem: Problem, device: int) -> Assignment:
    """All vertices on `device`; those that may not go there on the next device where they may."""
    graph, costs = problem.graph, problem.costs
    ranked = np.tile(np.roll(np.arange(costs.num_devices), -device), (graph.num_vertices, 1))
    return legal(graph, costs, Assignment(first_allowed(graph, costs, ranked), problem.order, "one_device"))


@over_links
def round_robin(problem: Problem, rng: np.random.Generator) -> Assignment:
    """Vertices in topological order, on one device after another."""
    graph, costs, order = problem.graph, problem.costs, problem.order
    turn = np.zeros(graph.num_vertices, np.int64)
    turn[order] = np.arange(order.size)
    ranked = (turn[:, None] + np.arange(costs.num_devices)) % costs.num_devices
    return Assignment(first_allowed(graph, costs, ranked), order, "round_robin")


@over_links
def random(problem: Problem, rng: np.random.Generator) -> Assignment:
    """Each vertex on a permitted device drawn uniformly."""
    graph, costs = problem.graph, problem.costs
    ranked = np.argsort(rng.random((graph.num_vertices, costs.num_devices)), axis=1)
    return Assignment(first_allowed(graph, costs, ranked), problem.order, "random")
