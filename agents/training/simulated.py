"""Stage II: REINFORCE on simulated seconds, and climbs from samples; temperatures bring samples closer and closer to the greedy episode."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import Trajectory

from agents.policies.agent import UpdateInfo
from agents.policies.driver import FusedDriver
from agents.policies.trajectories import seconds_of
from agents.training import summaries
from agents.training.polishing import polish
from agents.training.shards import Shards, Workers
from agents.training.stages import Training
from agents.training.task import Task

# The rate and bounds of the temperatures. SEL's logits differ by at most 20, which is the limit of `order_log_probability`.
_TEMPERING, _COLDEST, _HOTTEST = 0.2, (1.0, 0.05), 20.0


class SimulatedStage:
    """Updates on batches of the fused driver, or of several processes."""

    def __init__(self, training: Training, workers: Workers | None = None):
        """Args: workers: which make the batches and learn from them; None: this process does."""
        self._training = training
        agent, observers = training.learner.agent, [training.best]
        if workers is None:
            self._driver = FusedDriver(training.environment, agent.collect_policy, observers, training.task.is_greedy)
            self._train, self._elite = agent.train, training.elite.trajectories
        else:
            self._driver = Shards(training, workers, observers)
            self._train, self._elite = self._driver.train, training.elite.choices

    def update(self, step: int, progress: float) -> dict[str, dict[str, float]]:
        """One update on simulated seconds; returns scalars by graph name.

        Args:
          step: which random numbers; progress: 0 at the stage's start, 1 at its end.
        """
        started = time.perf_counter()
        experience = self._driver.run((self._training.task.config.seed, step))
        self._training.best.require_memory(experience)
        polish(self._training, experience, step)
        report = self.learn(experience, progress)
        rate = float(self._training.task.weights.sum()) / (time.perf_counter() - started)
        return {name: {**scalars, summaries.RATE: rate} for name, scalars in report.items()}

    def learn(self, experience: Trajectory, progress: float) -> dict[str, dict[str, float]]:
        """One update on the sampled episodes of a batch; returns scalars by graph name."""
        task, learner = self._training.task, self._training.learner
        config, elite = task.config, self._elite(experience)
        tempered = config.mutations > 0
        info = self._train(experience, tf.constant(task.weights), entropy=0.0 if tempered else config.entropy * (1 - progress),
                           elite=elite, elite_weight=0.0 if elite is None else config.elite ** (1 - progress)).extra
        if tempered:
            temper(learner.network.temperature, task, info, progress)
        report, learned, seconds = {}, summaries.of_update(info), seconds_of(experience)
        for graph, rows, best, bound_s in zip(task.graphs, task.rows_by_graph, self._training.best.episodes, task.bounds_s, strict=True):
            greedy_s, sampled_s = float(seconds[rows.start]), float(seconds[rows][1:].mean())
            report[graph.name] = {summaries.GREEDY: greedy_s, summaries.SAMPLED: sampled_s, summaries.BEST: best.makespan_s,
                                  summaries.OVER_BOUND: greedy_s / bound_s - 1 if bound_s else 0.0, **learned}
        return report


def temper(temperature: tf.Variable, task: Task, info: UpdateInfo, progress: float) -> None:
    """Moves the temperatures so that an episode differs from the greedy one in the number of choices wanted at this progress.

    So the samples search closer and closer to the best known episode, whatever the sizes of logits, graph and topology. (A target entropy
    as in Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, here for the temperature itself.)

    Args:
      temperature: float32 [2], of SEL and PLC; info: of the last update, with the entropies that were seen.
    """
    choices = float(np.mean([a.num_work for a in task.arrays]))
    wanted = min(task.config.mutations, choices / 2) ** (1 - progress)
    entropy = wanted / choices * (1 + np.log(choices * max(task.costs[0].num_devices - 1, 1) / wanted))
    seen = np.array([float(info.sel_entropy), float(info.plc_entropy)])
    step = _TEMPERING * np.clip(np.log(entropy / np.maximum(seen, 1e-6)), -1, 1) * (seen > 0)  # 0: a method that does not choose it
    temperature.assign(np.clip(temperature.numpy() * np.exp(step), _COLDEST, _HOTTEST))
