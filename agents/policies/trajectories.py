"""Whole episodes as TF-Agents trajectories with outer dims [B, T], and back."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import StepType, Trajectory

from agents.policies.rollout import Episodes


def trajectory_of(episodes: Episodes, length: np.ndarray) -> Trajectory:
    """Recorded episodes as one compact trajectory with rewards of zero, as they are not simulated yet.

    Observations are `graph` (int32, which graph an episode is of) and `makespan_s` (float64, NaN where it is not known), both the same at
    every step. After the end of an episode steps are of type LAST and hold the null vertex.

    Args:
      length: int [B], steps of each episode.
    """
    shape, step = episodes.order.shape, np.arange(episodes.order.shape[1])[None]
    kind = np.where(step >= length[:, None], StepType.LAST, np.where(step == 0, StepType.FIRST, StepType.MID)).astype(np.int32)
    over = step + 1 >= length[:, None]
    return Trajectory(
        step_type=tf.constant(kind), next_step_type=tf.constant(np.where(over, StepType.LAST, StepType.MID).astype(np.int32)),
        observation={"graph": tf.constant(np.repeat(episodes.graph.numpy()[:, None], shape[1], axis=1)),
                     "makespan_s": tf.constant(np.full(shape, np.nan))},
        action={"vertex": episodes.order, "device": episodes.device},
        policy_info={"features": episodes.features, "mask": episodes.mask},
        reward=tf.zeros(shape), discount=tf.constant(1 - over.astype(np.float32)))


def judged(experience: Trajectory, makespan_s: np.ndarray, reward: np.ndarray) -> Trajectory:
    """The same episodes with their seconds (float64 [B]), and rewards (float32 [B]) at their last steps."""
    last = (experience.step_type.numpy() != StepType.LAST) & (experience.next_step_type.numpy() == StepType.LAST)
    seconds = np.repeat(makespan_s[:, None], last.shape[1], axis=1)
    return experience._replace(observation={**experience.observation, "makespan_s": tf.constant(seconds)},
                               reward=tf.constant(np.where(last, reward[:, None], np.float32(0))))


def seconds_of(experience: Trajectory) -> np.ndarray:
    """float64 [B]: makespans of the episodes of the fused driver, in seconds."""
    return experience.observation["makespan_s"].numpy()[:, 0]


def compact(experience: Trajectory) -> Trajectory:
    """The part of a trajectory (or of its spec) that an update needs: choices, rewards, PLC's features and mask, and the graph.

    Observers hand this to replay buffers made for `agent.training_data_spec`: observations are a hundred times as large.
    """
    info = experience.policy_info
    return experience._replace(observation={"graph": experience.observation["graph"]},
                               policy_info={"features": info["features"], "mask": info["mask"]})


def episodes_of(experience: Trajectory, num_vertices: int) -> Episodes:
    """The record of trajectories [B, T] that begin with an episode each; steps beyond its end are dropped, missing ones padded.

    Args:
      num_vertices: N, padding included; a record has N - 1 steps.
    """
    steps = num_vertices - 1

    def fit(value: tf.Tensor, fill) -> tf.Tensor:
        if value.shape[1] == steps:
            return value
        value = value[:, :steps]
        padding = [[0, 0], [0, steps - value.shape[1]]] + [[0, 0]] * (value.shape.rank - 2)
        return tf.pad(value, padding, constant_values=fill)

    info, inside = experience.policy_info, _inside(experience)
    return Episodes(experience.observation["graph"][:, 0], fit(tf.where(inside, experience.action["vertex"], steps), steps),
                    fit(tf.where(inside, experience.action["device"], 0), 0),
                    fit(info["features"], 0.0), fit(info["mask"], True))


def check_whole(experience: Trajectory) -> None:
    """Raises InvalidArgumentError unless there are rows, each begins with an episode and holds its end, and no reward is NaN. Works in a
    graph, too."""
    whole = (experience.step_type[:, 0] == StepType.FIRST) & tf.reduce_any(experience.next_step_type == StepType.LAST, axis=1)
    message = ("train: experience: expected rows that begin with an episode and hold its end, where its reward is, got others; replay "
               "whole episodes, one a row; rows")
    tf.debugging.Assert(tf.reduce_all(whole), [message, tf.where(~whole)[:, 0]])
    known = ~tf.reduce_any(tf.math.is_nan(experience.reward), axis=1)
    tf.debugging.Assert(tf.reduce_all(known) & (tf.shape(known)[0] > 0), [
        "train: experience: expected at least one row, and rewards that are no NaN, got others; rows", tf.where(~known)[:, 0]])


def returns_of(experience: Trajectory) -> tf.Tensor:
    """float32 [B]: the return of the episode with which each row begins."""
    return tf.reduce_sum(tf.where(_inside(experience), experience.reward, 0.0), axis=1)


def _inside(experience: Trajectory) -> tf.Tensor:
    """bool [B, T]: the steps of the episode with which each row begins. Drivers may begin others after a short one."""
    return tf.cumsum(tf.cast(experience.next_step_type == StepType.LAST, tf.int32), axis=1, exclusive=True) == 0
