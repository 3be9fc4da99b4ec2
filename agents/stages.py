"""What the stages of a training hand on to each other; each stage is a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from agents.best import Best, Elite
from agents.driver import FusedDriver
from agents.environment import AssignmentEnvironment
from agents.learner import Learner
from agents.task import Episode, Task
from doppler_tf.costs import CostModel
from doppler_tf.fastsim import FastSimulator

STAGES = ("imitation", "simulated", "real")


@dataclass(frozen=True, eq=False)
class Training:
    """One training: each part belongs to an object that says who changes it.

    Attributes:
      task: never changes.
      learner: its agents change the policies, `best` and stage III copy them.
      environment: gives episodes their seconds, of the task's costs; stage III judges by refitted ones meanwhile.
      driver: runs batches that nobody observes.
      best: changed by what observes with it, by an annealed teacher and by the choice of stage III; elite: by updates.
    """

    task: Task
    learner: Learner
    environment: AssignmentEnvironment
    driver: FusedDriver
    best: Best
    elite: Elite

    @staticmethod
    def of(task: Task, learner: Learner) -> Training:
        """One that has found nothing yet."""
        environment = AssignmentEnvironment(task.arrays, _makespans(task, task.costs), len(task.graph), task.graph)
        driver = FusedDriver(environment, learner.agent.collect_policy, greedy=task.is_greedy)
        best = Best(task, learner)
        return Training(task, learner, environment, driver, best, Elite(task, learner, best, driver))

    def greedy(self, network: tf.Module) -> list[Episode]:
        """By graph the greedy episode of any policies."""
        with self.learner.acting_as(network):
            experience = self.driver.run((self.task.config.seed, 0))
        return [self.task.episode(experience, rows.start) for rows in self.task.rows_by_graph]

    def judge_by(self, costs: Sequence[CostModel]) -> None:
        """From now on these costs are simulated, and what was best is judged by them; what the policies see stays."""
        self.environment.judge_by(_makespans(self.task, costs))
        self.best.judge(self.environment, [episode.makespan_s for episode in self.greedy(self.learner.best_network)])

    def final(self, chosen: bool) -> list[float]:
        """Greedy seconds of the best policies by graph; fresh samples count among what is best, unless runs have `chosen`."""
        self.learner.copy(self.learner.best_network, self.learner.network)
        experience = self.driver.run((self.task.config.seed, (1 << 16) - 1))
        if not chosen:
            self.best(experience)
        self.best.require_memory(experience)
        return [self.task.episode(experience, rows.start).makespan_s for rows in self.task.rows_by_graph]


def _makespans(task: Task, costs: Sequence[CostModel]) -> list:
    return [FastSimulator(graph, each).makespans for graph, each in zip(task.graphs, costs, strict=True)]
