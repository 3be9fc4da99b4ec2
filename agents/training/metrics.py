"""What a stage shows of its updates: metrics of TF-Agents that observe the batches of the fused driver, or the losses of an agent."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf
from tf_agents.agents.tf_agent import LossInfo
from tf_agents.metrics import tf_metric
from tf_agents.trajectories import Trajectory

from agents.policies.agent import UpdateInfo
from agents.policies.trajectories import seconds_of
from agents.training import summaries
from agents.training.task import Task


class EagerMetric(tf_metric.TFStepMetric):
    """A metric that runs op by op: to trace a function for each takes longer than a short training."""

    def __call__(self, observed: Trajectory | LossInfo) -> None:
        self.call(observed)


class Makespans(EagerMetric):
    """float64 [G, 2]: by graph the seconds of the greedy episode of the last batch, and the mean of the sampled ones."""

    def __init__(self, task: Task, name: str = "Makespans"):
        super().__init__(name)
        self._rows = task.rows_by_graph
        self._seconds = tf.Variable(np.full((len(task.graphs), 2), np.inf), trainable=False)

    def call(self, experience: Trajectory) -> None:
        seconds = seconds_of(experience)
        self._seconds.assign([[seconds[rows.start], seconds[rows][1:].mean()] for rows in self._rows])

    def result(self) -> tf.Tensor:
        return self._seconds.value()

    def reset(self) -> None:
        self._seconds.assign(tf.fill(self._seconds.shape, tf.constant(np.inf, tf.float64)))


class EpisodeRate(EagerMetric):
    """float64: sampled episodes a second since the last reset."""

    def __init__(self, task: Task, name: str = "EpisodeRate"):
        super().__init__(name)
        self._sampled = int(task.weights.sum())
        self._episodes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._started_s = time.perf_counter()

    def call(self, experience: Trajectory) -> None:
        self._episodes.assign_add(self._sampled)

    def result(self) -> tf.Tensor:
        return tf.constant(float(self._episodes) / (time.perf_counter() - self._started_s), tf.float64)

    def reset(self) -> None:
        self._started_s = time.perf_counter()
        self._episodes.assign(0)


class Agreement(EagerMetric):
    """float32: the mean log-likelihood of a teacher's choice, by the loss of the last update."""

    def __init__(self, name: str = "Agreement"):
        super().__init__(name)
        self._log_likelihood = tf.Variable(-np.inf, dtype=tf.float32, trainable=False)

    def call(self, loss: LossInfo) -> None:
        self._log_likelihood.assign(-loss.loss)

    def result(self) -> tf.Tensor:
        return self._log_likelihood.value()

    def reset(self) -> None:
        self._log_likelihood.assign(-np.inf)


def update_scalars(info: UpdateInfo) -> dict[str, float]:
    """Of one update, by tag."""
    tags = (summaries.LOSS, summaries.SEL_ENTROPY, summaries.PLC_ENTROPY, summaries.SEL_GRADIENT, summaries.PLC_GRADIENT)
    return {tag: float(value) for tag, value in zip(tags, info, strict=True)}
