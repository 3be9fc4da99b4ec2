"""The state that the stages of a training share, and the best that they have found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import Trajectory

from agents.episodes.environment import AssignmentEnvironment
from agents.policies.driver import FusedDriver
from agents.policies.trajectories import seconds_of
from agents.training.learner import Learner
from agents.training.task import Episode, Task
from doppler_tf.graph.costs import CostModel
from doppler_tf.schedule.simulator import Simulator

# Updates between new orders of the elite, as replaying new orders takes time.
_REORDERED = 4


class Best:
    """Observes batches, and remembers better episodes and better policies (`Learner.best_network`).

    Attributes:
      episodes: by graph the best seen; greedy_s: by graph seconds of the greedy episodes of `best_network`.
    """

    def __init__(self, task: Task, learner: Learner):
        self._task, self._learner = task, learner
        self.episodes = [Episode(np.inf, *np.zeros((2, task.num_vertices - 1), np.int32)) for _ in task.graphs]
        self.greedy_s = [np.inf] * len(task.graphs)

    def __call__(self, experience: Trajectory) -> None:
        """Observes a batch."""
        task, seconds = self._task, seconds_of(experience)
        for g, rows in enumerate(task.rows_by_graph):
            self.offer(g, task.episode(experience, rows.start + int(np.argmin(seconds[rows]))))
        now = [float(seconds[rows.start]) for rows in task.rows_by_graph]
        if task.over_bounds(now) < task.over_bounds(self.greedy_s):
            self.greedy_s = now
            self._learner.copy(self._learner.network, self._learner.best_network)

    def offer(self, g: int, episode: Episode) -> None:
        """Remembers an episode of graph g if it is the best so far."""
        if episode.makespan_s < self.episodes[g].makespan_s:
            self.episodes[g] = episode

    def require_memory(self, experience: Trajectory) -> None:
        """Raises DeadlockError for a graph of which no episode has ever fitted in memory."""
        for g, (rows, best) in enumerate(zip(self._task.rows_by_graph, self.episodes, strict=True)):
            if not np.isfinite(best.makespan_s):
                never = self._task.assignment(g, self._task.episode(experience, rows.start))
                Simulator().execute(self._task.graphs[g], self._task.costs[g], never)

    def judge(self, environment: AssignmentEnvironment, greedy_s: list[float]) -> None:
        """Simulates the best episodes with the present costs of `environment`; greedy_s: of the best policy, with the same costs."""
        for g, best in enumerate(self.episodes):
            if np.isfinite(best.makespan_s):  # else no episode has been simulated yet
                makespan_s = environment.makespans(np.array([g]), best.order[None], best.device[None])[0]
                self.episodes[g] = replace(best, makespan_s=float(makespan_s))
        self.greedy_s = greedy_s


class Choices(NamedTuple):
    """Given episodes: int32 [E], which graph each is of; int32 [E, T] each, padded vertices and devices by step."""

    graph: np.ndarray
    order: np.ndarray
    device: np.ndarray


class Replay:
    """Given episodes as expert trajectories; those of the last call are kept, as replaying takes time."""

    def __init__(self, driver: FusedDriver):
        self._driver = driver
        self._choices: Choices | None = None
        self._trajectories: Trajectory | None = None

    def __call__(self, choices: Choices) -> Trajectory:
        if self._choices is None or not all(map(np.array_equal, choices, self._choices)):
            self._choices, self._trajectories = choices, self._driver.replay(*choices)
        return self._trajectories


class Elite:
    """The best episode of each graph, to imitate, in orders of present episodes.

    SEL cannot learn the random order of vertices with equal features, and PLC should place a vertex on its device after any order. A
    training in which the order counts (`Learner.repeats_order`) gets the best episode's own.

    Attributes:
      order: int32 [G * rows, T], the present orders; None before the first.
    """

    def __init__(self, task: Task, learner: Learner, best: Best, driver: FusedDriver):
        self._task, self._learner, self._best, self._replay = task, learner, best, Replay(driver)
        self._rows, self._repeats_order = learner.elite_rows, learner.repeats_order
        self.order: np.ndarray | None = None

    def choices(self, experience: Trajectory) -> Choices | None:
        """The episodes to learn from with a batch; None if there are none yet or `elite` is 0."""
        episodes = self._best.episodes
        if self._task.config.elite == 0 or not all(np.isfinite(best.makespan_s) for best in episodes):
            return None
        graph = np.repeat(np.arange(len(episodes), dtype=np.int32), self._rows)
        if self._repeats_order:
            self.order = np.stack([best.order for best in episodes])
        elif self.order is None or int(self._learner.updates) % _REORDERED == 0:
            rows = [rows.start + i for rows in self._task.rows_by_graph for i in range(self._rows)]
            self.order = tf.gather(experience.action["vertex"], rows).numpy()
        by_vertex = np.zeros((len(episodes), self._task.num_vertices), np.int32)
        for g, best in enumerate(episodes):
            by_vertex[g, best.order] = best.device
        return Choices(graph, self.order, np.take_along_axis(by_vertex[graph], self.order, axis=1))

    def trajectories(self, experience: Trajectory) -> Trajectory | None:
        """`choices` as expert trajectories."""
        choices = self.choices(experience)
        return None if choices is None else self._replay(choices)


@dataclass(frozen=True, eq=False)
class Training:
    """The parts of one training, and what changes each of them.

    Attributes:
      task: never changes.
      learner: its agents change the policies, `best` and stage III copy them.
      environment: simulates episodes with the task's costs, in stage III with refitted ones.
      driver: runs batches without observers.
      best: drivers, climbs, an annealed teacher and the choice of stage III change it; elite: updates change it.
      costs: by graph the costs that `environment` simulates with; climbed: by graph the simulations of climbs so far.
    """

    task: Task
    learner: Learner
    environment: AssignmentEnvironment
    driver: FusedDriver
    best: Best
    elite: Elite
    costs: list[CostModel]
    climbed: list[int]

    @staticmethod
    def of(task: Task, learner: Learner) -> Training:
        """A new training."""
        environment = AssignmentEnvironment(task.arrays, task.makespans(task.costs), len(task.graph), task.graph)
        driver = FusedDriver(environment, learner.agent.collect_policy, greedy=task.is_greedy)
        best = Best(task, learner)
        elite = Elite(task, learner, best, driver)
        return Training(task, learner, environment, driver, best, elite, list(task.costs), [0] * len(task.graphs))

    def greedy(self, network: tf.Module) -> list[Episode]:
        """The greedy episode of each graph by the policies of `network`."""
        with self.learner.acting_as(network):
            return self.task.greedy(self.driver.run((self.task.config.seed, 0)))

    def judge_by(self, costs: Sequence[CostModel]) -> None:
        """From now on simulates with these costs, the best episodes too; the policies' features do not change."""
        self.costs[:] = costs
        self.environment.judge_by(self.task.makespans(costs))
        self.best.judge(self.environment, [episode.makespan_s for episode in self.greedy(self.learner.best_network)])

    def final(self, chosen: bool) -> list[Episode]:
        """Greedy episodes of the best policies by graph; unless measured runs have `chosen`, new samples may become the best episodes."""
        self.learner.copy(self.learner.best_network, self.learner.network)
        experience = self.driver.run((self.task.config.seed, (1 << 16) - 1))
        if not chosen:
            self.best(experience)
        self.best.require_memory(experience)
        return self.task.greedy(experience)
