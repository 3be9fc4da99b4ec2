"""The fused driver: a TF-Agents driver that runs whole episodes of a batch in one compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.drivers import driver
from tf_agents.trajectories import Trajectory

from agents.episodes.environment import AssignmentEnvironment
from agents.policies.policy import EpisodePolicy
from agents.policies.trajectories import judged, trajectory_of


class FusedDriver(driver.Driver):
    """Replaces TF-Agents' own drivers for whole episodes of an `AssignmentEnvironment`.

    With the same seed it makes the choices that `DynamicEpisodeDriver` makes, many times faster: what a step costs does not depend on the
    number of vertices, and the environment is asked once, for the makespans. Observers are called once a run, with one compact
    `Trajectory` of outer dims [B, T] (see `trajectories.trajectory_of`).
    """

    def __init__(self, env: AssignmentEnvironment, policy: EpisodePolicy, observers: Sequence[Callable[[Trajectory], object]] = (),
                 greedy: np.ndarray | None = None):
        """Args: greedy: bool [B], rows that always take the most likely choices; None: no row does, unless the policy is greedy."""
        super().__init__(env, policy, list(observers))
        self._graph = tf.constant(env.graph, tf.int32)
        self._greedy = tf.constant((np.zeros(env.batch_size, bool) if greedy is None else greedy) | policy.greedy)

    def run(self, seed: tuple[int, int] | None = None) -> Trajectory:
        """One episode for each row of the environment, passed to the observers and returned.

        Args:
          seed: which random numbers; None: the policy's next ones.
        """
        seed = self.policy.seed.assign_add([0, 1]) if seed is None else seed
        episodes = self.policy.rollout.run(self.policy.graphs, self._graph, tf.convert_to_tensor(seed), self._greedy)
        experience = self.judged(trajectory_of(episodes, self.env.lengths[self.env.graph]))
        for observe in self.observers:
            observe(experience)
        return experience

    def replay(self, graph: np.ndarray, order: np.ndarray, device: np.ndarray) -> Trajectory:
        """Expert trajectories: given episodes with the observations the policy would have had; observers do not get them.

        Args:
          graph: int32 [E]; order, device: int32 [E, T], padded vertices and devices by step.
        """
        episodes = self.policy.rollout.replay(self.policy.graphs, *(tf.constant(each, tf.int32) for each in (graph, order, device)))
        return trajectory_of(episodes, self.env.lengths[graph])

    def judged(self, experience: Trajectory, makespan_s: np.ndarray | None = None) -> Trajectory:
        """The episodes of a run with new makespans and rewards.

        Args:
          makespan_s: float64 [B]; None: the environment's present makespans.
        """
        graph, action = self.env.graph, experience.action
        if makespan_s is None:
            makespan_s = self.env.makespans(graph, action["vertex"].numpy(), action["device"].numpy())
        return judged(experience, makespan_s, self.env.rewards(graph, makespan_s))

    def computation(self) -> tf.Graph:
        """The TensorFlow graph of a run."""
        given = self.policy.graphs, self._graph, tf.constant([0, 0]), self._greedy
        return self.policy.rollout.run.get_concrete_function(*given).graph
