"""How assignments do when times differ from their models: means over simulations with noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

# The shape of the noise under which assignments are judged where nobody says.
_NOISE = 0.01


def noisy_means(problem: Problem, assignments: Sequence[Assignment], sigma: float, seed: int, draws: int = 20) -> list[float]:
    """The mean seconds of each assignment, by its own rule, over simulations with noise; every assignment meets the same noise.

    Args: sigma: see `costs.draw_noise`; seed: of the first draw, the others follow.
    """
    seconds = np.zeros((draws, len(assignments)))
    for row in range(draws):
        for rule in {a.dispatch for a in assignments}:
            mine = [i for i, a in enumerate(assignments) if a.dispatch == rule]
            seconds[row, mine] = problem.noisy_simulator(rule, sigma, seed + row).makespans_of([assignments[i] for i in mine])
    return seconds.mean(axis=0).tolist()


class Steadiness:
    """Finds the steadiest of assignments: the least sum of makespan and mean under noise of 1%. All meet the same noise."""

    def __init__(self, problem: Problem, draws: int = 8, seed: int = 1_000_003):
        """Args: draws: of noise; seed: of the first draw, the others follow."""
        self._problem, self._draws, self._seed, self._least_s = problem, draws, seed, np.inf

    def offer(self, makespan_s: float, assignment: Assignment) -> bool:
        """Whether this is the steadiest so far. Args: makespan_s: its own, without noise."""
        if 2 * makespan_s >= self._least_s:  # as hardly any mean under noise is below the makespan without
            return False
        sum_s = makespan_s
        for simulator in self._simulators(assignment.dispatch):
            sum_s += simulator.makespans_of([assignment])[0] / self._draws
            if sum_s >= self._least_s:
                return False
        self._least_s = sum_s
        return True

    def _simulators(self, rule: str) -> list[FastSimulator]:
        seeds = range(self._seed, self._seed + self._draws)
        return self._problem.once(("noisy", rule, seeds), lambda: [self._problem.noisy_simulator(rule, _NOISE, seed) for seed in seeds])
