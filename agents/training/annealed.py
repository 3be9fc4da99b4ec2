"""The annealed teacher: an annealed assignment that policies learn to repeat before stage II varies it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import tensorflow as tf

from agents.policies.trajectories import seconds_of
from agents.training.learner import MOST_REPEATED
from agents.training.stages import Training
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import Budget, Pool, Problem, anneal
from doppler_tf.heuristics.search.budget import ROUNDING, Found, default_budget

# For every two devices, the annealing is this many times as long as that of `place`. Then come the step of the first random numbers, the
# updates on each batch, and the factor on the learning rate: a single teacher allows a larger rate, and a fourth of the updates suffices.
_LENGTH, _FIRST_STEP, _UPDATES_A_BATCH, _FASTER = 5, 1 << 20, 4, 4.0
Teacher = Callable[[DataflowGraph, CostModel, int, float, str], Found]


def annealing(graph: DataflowGraph, costs: CostModel, seed: int, target_s: float, dispatch: str,
              most: int | None = None) -> Found:
    """One annealing until it reaches `target_s` or has made its simulations.

    These are _LENGTH times those of `place --method annealing` for every two devices, times a fourth of the devices, rounded up.

    Args:
      most: simulations of `place`; None: its default.
    """
    most = default_budget(graph).most if most is None else most
    simulations = _LENGTH * costs.num_devices * most // 2 * math.ceil(costs.num_devices / 4)
    problem = Problem(graph, costs, dispatch)
    return anneal(problem, np.random.default_rng(seed), Budget(simulations), pool=Pool(problem, target_s))


def learn_annealed(training: Training, teacher: Teacher = annealing, most_updates: int = MOST_REPEATED) -> list[int]:
    """Takes annealed assignments as the best episodes, and learns to repeat them; returns how many simulations each took.

    Training continues with the policies of the fastest greedy episodes, or with the last ones if no greedy episode fitted in memory.
    """
    task, learner, best = training.task, training.learner, training.best
    seed, simulations = task.config.seed, []
    for g, (graph, costs) in enumerate(zip(task.graphs, task.costs, strict=True)):
        found = teacher(graph, costs, seed, task.bounds_s[g], task.config.rule)
        simulations.append(found.simulations)
        best.episodes[g] = task.as_episode(g, replace(found.assignment, method="policy, annealed"))
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
