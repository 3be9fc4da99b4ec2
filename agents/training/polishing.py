"""Expert iteration: hill climbing improves what the policies sample, and they imitate what it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tf_agents.trajectories import Trajectory

from agents.policies.trajectories import seconds_of
from agents.training.stages import Training
from doppler_tf.heuristics import Budget, Pool, Problem, climb


def polish(training: Training, experience: Trajectory, step: int) -> None:
    """Climbs from the best sampled episode of each graph; where that beats the best episode so far, it takes its place.

    The climb does not start from the best episode: samples differ from it where the policies are unsure, so that each climb ends elsewhere.
    (Anthony, Tian and Barber, "Thinking Fast and Slow with Deep Learning and Tree Search", NeurIPS 2017, with hill climbing as the expert.)

    Args: experience: a batch that `Training.best` has observed; step: which random numbers.
    """
    task, seconds = training.task, seconds_of(experience)
    if not task.config.polish:
        return
    for g, (graph, costs, rows) in enumerate(zip(task.graphs, training.costs, task.rows_by_graph, strict=True)):
        b = rows.start + 1 + int(np.argmin(seconds[rows][1:]))
        problem = Problem(graph, costs, task.config.rule)
        pool = Pool(problem, task.bounds_s[g] if costs is task.costs[g] else 0.0)
        if not np.isfinite(seconds[b]) or pool.reached(training.best.episodes[g].makespan_s):
            continue  # no sample fits in memory, or nothing can be faster than the best
        rng, start = np.random.default_rng([task.config.seed, step, g]), task.assignment(g, task.episode(experience, b))
        found = climb(problem, rng, Budget(task.config.polish), start, pool)
        training.climbed[g] += found.simulations
        if found.makespan_s < training.best.episodes[g].makespan_s:
            training.best.offer(g, task.as_episode(g, replace(found.assignment, method="policy, climbed"), costs))
