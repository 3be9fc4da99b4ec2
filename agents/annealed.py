"""The annealed teacher: an annealed assignment that policies learn to repeat before stage II varies it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from agents.learner import MOST_REPEATED
from agents.stages import Training
from agents.trajectories import seconds_of
from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import Budget, anneal
from doppler_tf.heuristics.search import ROUNDING, Found, default_budget

# The annealing's length beside `place`'s for every two devices, the first of the updates' random numbers, updates on each batch, and
# their learning rate beside a stage's: to follow one teacher bears more, and takes a fourth of the updates.
_LENGTH, _FIRST_STEP, _UPDATES_A_BATCH, _FASTER = 5, 1 << 20, 4, 4.0
Teacher = Callable[[DataflowGraph, CostModel, int, float], Found]


def annealing(graph: DataflowGraph, costs: CostModel, seed: int, target_s: float, most: int | None = None) -> Found:
    """One annealing of _LENGTH times the simulations of `place --method annealing` for every two devices, above four once more for every
    four, or until one reaches `target_s`; most: simulations of `place`, its own if None."""
    most = default_budget(graph).most if most is None else most
    simulations = _LENGTH * costs.num_devices * most // 2 * math.ceil(costs.num_devices / 4)
    return anneal(graph, costs, np.random.default_rng(seed), Budget(simulations, target_s=target_s), None, "fifo")


def learn_annealed(training: Training, teacher: Teacher = annealing, most_updates: int = MOST_REPEATED) -> list[int]:
    """Takes annealed assignments as the best episodes, and learns to repeat them; returns how many simulations each took.

    The policies with the fastest greedy episodes go on. If no greedy episode fitted in memory, the last ones do.
    """
    task, learner, best = training.task, training.learner, training.best
    seed, simulations = task.config.seed, []
    for g, (graph, costs) in enumerate(zip(task.graphs, task.costs, strict=True)):
        found = teacher(graph, costs, seed, task.bounds_s[g])
        simulations.append(found.simulations)
        best.episodes[g] = task.as_episode(g, Assignment(found.assignment.device, graph.work_vertices, "policy"), found.makespan_s)
    learner.agent.set_learning_rate(_FASTER * task.config.learning_rate)
    for step in range(0, most_updates if task.config.elite else 0, _UPDATES_A_BATCH):
        experience = training.driver.run((seed, _FIRST_STEP + step))
        best(experience)
        best.require_memory(experience)
        if np.all(seconds_of(experience)[task.is_greedy] <= (1 + ROUNDING) * np.array([each.makespan_s for each in best.episodes])):
            break  # the greedy episodes repeat it
        elite = training.elite.trajectories(experience)
        for _ in range(_UPDATES_A_BATCH):
            learner.agent.train(experience, tf.zeros(len(task.graph)), entropy=0.0, elite=elite, elite_weight=1.0)
    learner.agent.set_learning_rate(task.config.learning_rate)
    if np.isfinite(best.greedy_s).all():
        learner.copy(learner.best_network, learner.network)
    else:
        learner.copy(learner.network, learner.best_network)
    return simulations
