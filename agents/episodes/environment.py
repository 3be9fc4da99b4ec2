"""Episodes as a batched TF-Agents environment; the policies' standard interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.environments import tf_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from agents.episodes.episode import (
    NEVER,
    EpisodeState,
    PaddedGraphs,
    candidates,
    device_options,
    finished,
    initial_state,
    padded_graphs,
    place_vertex,
)
from agents.episodes.features import GraphArrays
from agents.episodes.specs import fitting
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.schema import check_integer

Makespans = Callable[[np.ndarray, np.ndarray], np.ndarray]


def observation_spec(graphs: PaddedGraphs) -> dict[str, tf.TensorSpec]:
    """Specs of `EpisodeState`'s fields without the batch dimension; every index is bounded."""
    state = initial_state(graphs, tf.zeros([1], tf.int32))
    size, devices = graphs.num_vertices, graphs.num_devices
    bounds = {"graph": (0, graphs.num_work.shape[0] - 1), "step": (0, size), "missing": (-1, NEVER), "device": (-1, devices - 1),
              "group_device": (-1, devices - 1)}
    specs = {}
    for name, value in state._asdict().items():
        low, high = bounds.get(name, (-1e9, 1e9) if name == "memory_left" else (0.0, 1e9))
        specs[name] = tensor_spec.BoundedTensorSpec(value.shape[1:], value.dtype, low, high, name)
    return specs


def action_spec(graphs: PaddedGraphs) -> dict[str, tf.TensorSpec]:
    """`vertex` in [0, N) and `device` in [0, D)."""
    return {"vertex": tensor_spec.BoundedTensorSpec([], tf.int32, 0, graphs.num_vertices - 1, "vertex"),
            "device": tensor_spec.BoundedTensorSpec([], tf.int32, 0, graphs.num_devices - 1, "device")}


class AssignmentEnvironment(tf_environment.TFEnvironment):
    """Assigns the vertices of graphs one by one; the reward, at the end only, is -makespan / scale_s.

    Observations are dicts of the fields of `EpisodeState`. Every action is legal. A vertex that is not a candidate is
    replaced by the next candidate after it (cyclically), a masked device by the next device that is allowed. After its last step an
    episode starts again at the next call of `step`, as TF-Agents expects.
    """

    def __init__(self, arrays: Sequence[GraphArrays], makespans: Sequence[Makespans], batch_size: int = 1,
                 graph: np.ndarray | None = None):
        """Args: arrays: G graphs of one padded shape; makespans: by graph, (devices [B, V], orders [B, M]) -> seconds [B], such as
        `FastSimulator.makespans`; batch_size: B; graph: int [B], which graph each episode is of; None: episode b is of graph b mod G.

        Raises ConfigError: no graphs, one without makespans, or no episodes.
        """
        where = type(self).__name__
        check_integer(batch_size, 1, where, "batch_size")
        if not arrays or not all(isinstance(each, GraphArrays) for each in arrays):
            raise field_error(ConfigError, where, "", "arrays", "at least one graph, as graph_arrays gives it", arrays)
        self.graphs = padded_graphs(arrays)
        self._arrays = tuple(arrays)
        self.judge_by(makespans)
        self.graph = np.arange(batch_size) % len(arrays) if graph is None else graph
        self.lengths = np.array([a.num_work for a in arrays])
        self._scale_s = np.array([a.scale_s for a in arrays])
        self._graph = tf.constant(self.graph, tf.int32)
        spec = ts.time_step_spec(observation_spec(self.graphs), tensor_spec.TensorSpec([], tf.float32, "reward"))
        super().__init__(spec, action_spec(self.graphs), batch_size)
        steps = self.graphs.num_vertices - 1
        start = initial_state(self.graphs, self._graph)
        self._state = EpisodeState(*(tf.Variable(value, trainable=False) for value in start))
        self._order = tf.Variable(tf.fill([batch_size, steps], steps), trainable=False)
        self._step_type = tf.Variable(tf.fill([batch_size], ts.StepType.FIRST), trainable=False)
        self._reward = tf.Variable(tf.zeros([batch_size]), trainable=False)

    def judge_by(self, makespans: Sequence[Makespans]) -> None:
        """From now on these functions give the makespans; the observations of the policies do not change.

        Raises ConfigError: not as many as graphs.
        """
        if len(makespans) != len(self._arrays):
            raise field_error(ConfigError, type(self).__name__, "", "makespans", f"a function for each of {len(self._arrays)} graphs",
                              makespans)
        self._makespans = tuple(makespans)

    def makespans(self, graph: np.ndarray, order: np.ndarray, device: np.ndarray) -> np.ndarray:
        """float64 [E]: seconds of whole episodes.

        Args:
          graph: int [E], which graph each is of.
          order, device: int [E, T], padded vertices and devices by step.
        """
        seconds = np.empty(len(graph))
        for g, (arrays, makespans) in enumerate(zip(self._arrays, self._makespans, strict=True)):
            rows = np.flatnonzero(graph == g)
            if rows.size:
                seconds[rows] = makespans(*arrays.to_devices(order[rows], device[rows]))
        return seconds

    def rewards(self, graph: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """float32 [E]: of episodes that take `seconds`."""
        return (-seconds / self._scale_s[graph]).astype(np.float32)

    def _current_time_step(self) -> ts.TimeStep:
        state = EpisodeState(*(tf.identity(value) for value in self._state))
        step_type = tf.identity(self._step_type)
        discount = tf.where(step_type == ts.StepType.LAST, 0.0, 1.0)
        return ts.TimeStep(step_type, tf.identity(self._reward), discount, state._asdict())

    def _reset(self) -> ts.TimeStep:
        self._store(initial_state(self.graphs, self._graph))
        self._step_type.assign(tf.fill([self.batch_size], ts.StepType.FIRST))
        self._reward.assign(tf.zeros([self.batch_size]))
        return self._current_time_step()

    def _step(self, action: dict[str, tf.Tensor]) -> ts.TimeStep:
        action = fitting(action, self.action_spec(), "step: action", self.batch_size)
        state = EpisodeState(*(tf.identity(value) for value in self._state))
        over = self._step_type == ts.StepType.LAST
        vertex = _next_true(candidates(state) | finished(self.graphs, state)[:, None], action["vertex"])
        options = device_options(self.graphs, state, vertex)
        device = _next_true(options.mask, action["device"])
        after = place_vertex(self.graphs, state, vertex, device, options.start_s)
        episode = tf.range(self.batch_size)
        at = tf.stack([episode, tf.minimum(state.step, self._order.shape[1] - 1)], axis=1)
        kept = tf.gather_nd(self._order, at)
        self._order.scatter_nd_update(at, tf.where(over, kept, vertex))
        fresh = initial_state(self.graphs, self._graph)
        state = EpisodeState(*(tf.where(tf.reshape(over, [-1] + [1] * (new.shape.rank - 1)), first, new)
                               for first, new in zip(fresh, after, strict=True)))
        self._store(state)
        ended = finished(self.graphs, state) & ~over
        self._step_type.assign(tf.where(over, ts.StepType.FIRST, tf.where(ended, ts.StepType.LAST, ts.StepType.MID)))
        reward = tf.cond(tf.reduce_any(ended), lambda: self._rewards(ended, state.device), lambda: tf.zeros([self.batch_size]))
        self._reward.assign(reward)
        return self._current_time_step()

    def _store(self, state: EpisodeState) -> None:
        for variable, value in zip(self._state, state, strict=True):
            variable.assign(value)

    def _rewards(self, ended: tf.Tensor, device: tf.Tensor) -> tf.Tensor:
        reward = tf.numpy_function(self._score, [ended, device, self._order, self._graph], tf.float32)
        return tf.ensure_shape(reward, [self.batch_size])

    def _score(self, ended: np.ndarray, device: np.ndarray, order: np.ndarray, graph: np.ndarray) -> np.ndarray:
        reward, rows = np.zeros(len(ended), np.float32), np.flatnonzero(ended)
        chosen = np.take_along_axis(device[rows], order[rows], axis=1)
        reward[rows] = self.rewards(graph[rows], self.makespans(graph[rows], order[rows], chosen))
        return reward


def _next_true(mask: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """int32 [B]: the first True entry of `mask` [B, K] at or cyclically after `wanted`."""
    size = mask.shape[1]
    distance = tf.math.floormod(tf.range(size)[None] - wanted[:, None], size)
    return tf.argmin(tf.where(mask, distance, size), axis=1, output_type=tf.int32)
