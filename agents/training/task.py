"""The task of a training: graphs with costs, their arrays for the policies, and the layout of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tf_agents.trajectories import Trajectory

from agents.config import TrainConfig
from agents.episodes.features import GraphArrays, graph_arrays, padded_sizes
from agents.policies.trajectories import seconds_of
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.offload.planning import without_shortage
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.simulator import Simulator


@dataclass(frozen=True, eq=False)
class Episode:
    """An episode of one graph: int32 [T] order and device by step (padded vertices), its simulated seconds, and what made it."""

    makespan_s: float
    order: np.ndarray
    device: np.ndarray
    method: str = "policy"


@dataclass(frozen=True, eq=False)
class Task:
    """Graphs, costs and settings of one training; nothing in it changes.

    A batch holds for each graph one greedy episode, which is reported and not learned from, and then its sampled episodes.

    Attributes:
      costs: by graph. Where a host takes what does not fit in memory, they have no limits: the makespan without limits stands for that of
        a plan, which takes a thousand times as long to find and ranks assignments alike. Stage III keeps the limits, as it runs them.
      given: by graph, with the limits.
    """

    graphs: tuple[DataflowGraph, ...]
    costs: tuple[CostModel, ...]
    given: tuple[CostModel, ...]
    config: TrainConfig
    arrays: tuple[GraphArrays, ...]
    bounds_s: tuple[float, ...]

    @staticmethod
    def of(graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig) -> Task:
        """The task of learning `graphs` whose costs are known, by graph. Raises DeadlockError: a graph fits nowhere, even with the host."""
        sizes, given = padded_sizes(list(graphs)), tuple(costs)
        if not config.real:
            costs = [without_shortage(*each) for each in zip(graphs, given, strict=True)]
        arrays = tuple(graph_arrays(g, c, sizes, config.identity) for g, c in zip(graphs, costs, strict=True))
        bounds_s = tuple(lower_bounds(g, c).best_s for g, c in zip(graphs, costs, strict=True))
        return Task(tuple(graphs), tuple(costs), given, config, arrays, bounds_s)

    @property
    def rows(self) -> int:
        """Sampled episodes of each graph in a batch."""
        return max(1, self.config.batch // len(self.graphs))

    @property
    def num_vertices(self) -> int:
        """N, padding included; episodes have N - 1 steps."""
        return self.arrays[0].num_vertices

    @property
    def rows_by_graph(self) -> list[slice]:
        """The rows of a batch that are a graph's, its greedy episode first."""
        each = self.rows + 1
        return [slice(g * each, (g + 1) * each) for g in range(len(self.graphs))]

    @cached_property
    def graph(self) -> np.ndarray:
        """int32 [B]: which graph each episode of a batch is of."""
        return np.repeat(np.arange(len(self.graphs), dtype=np.int32), self.rows + 1)

    @cached_property
    def is_greedy(self) -> np.ndarray:
        """bool [B]: the greedy episodes of a batch."""
        return np.tile(np.arange(self.rows + 1) == 0, len(self.graphs))

    @cached_property
    def weights(self) -> np.ndarray:
        """float32 [B]: 0 for the greedy episodes of a batch, 1 for those that are learned from."""
        return (~self.is_greedy).astype(np.float32)

    def makespans(self, costs: Sequence[CostModel]) -> list[Callable[[np.ndarray, np.ndarray], np.ndarray]]:
        """By graph the seconds of episodes simulated with these costs, as `AssignmentEnvironment` takes them."""
        return [FastSimulator(graph, each, self.config.rule).makespans for graph, each in zip(self.graphs, costs, strict=True)]

    def over_bounds(self, seconds: Sequence[float]) -> float:
        """The sum over graphs of seconds over lower bounds, by which policies are compared."""
        return sum(s / (bound or 1.0) for s, bound in zip(seconds, self.bounds_s, strict=True))

    def episode(self, experience: Trajectory, row: int) -> Episode:
        """One episode of a batch."""
        order, device = (experience.action[name][row].numpy() for name in ("vertex", "device"))
        return Episode(float(seconds_of(experience)[row]), order, device)

    def greedy(self, experience: Trajectory) -> list[Episode]:
        """The greedy episode of each graph in a batch."""
        return [self.episode(experience, rows.start) for rows in self.rows_by_graph]

    def assignment(self, g: int, episode: Episode) -> Assignment:
        """An episode of graph g in the form that executors take."""
        device, order = self.arrays[g].to_devices(episode.order[None], episode.device[None])
        return Assignment(device[0], order[0], episode.method, self.config.rule)

    def padded(self, g: int, order: np.ndarray, device: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int32 [n, T] padded vertices and devices by step, of episodes of graph g: int [n, M] its vertices and devices by step."""
        arrays, steps = self.arrays[g], self.num_vertices - 1
        padded_order, padded_device = np.full((len(order), steps), steps, np.int32), np.zeros((len(order), steps), np.int32)
        padded_order[:, :arrays.num_work] = np.searchsorted(arrays.graph.work_vertices, order)
        padded_device[:, :arrays.num_work] = device
        return padded_order, padded_device

    def as_episode(self, g: int, assignment: Assignment, costs: CostModel | None = None) -> Episode:
        """An assignment of graph g as if it were an episode: in the order of its simulated starts if the order counts.

        Args: costs: to simulate with; None: the task's.
        """
        graph, costs, rule = self.graphs[g], costs or self.costs[g], self.config.rule
        order = _order_of_starts(graph, costs, assignment) if rule == "order" else assignment.order
        makespan_s = float(FastSimulator(graph, costs, rule).makespans(assignment.device[None], order[None])[0])
        padded_order, padded_device = self.padded(g, order[None], assignment.device[order][None])
        return Episode(makespan_s, padded_order[0], padded_device[0], assignment.method)

    def different(self, g: int, order: np.ndarray, device: np.ndarray) -> np.ndarray:
        """int: the first rows of different assignments among episodes of graph g, int32 [n, T]. Under `order` the order counts."""
        devices, orders = self.arrays[g].to_devices(order, device)
        told_apart = np.concatenate([devices, orders], axis=1) if self.config.rule == "order" else devices
        return np.sort(np.unique(told_apart, axis=0, return_index=True)[1])


def _order_of_starts(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> np.ndarray:
    """int32 [M]: the work vertices as a simulation by the assignment's own rule starts them."""
    trace = Simulator().execute(graph, costs, assignment)
    position = np.empty(graph.num_vertices, np.int64)
    position[graph.topological_order] = np.arange(graph.num_vertices)
    return trace.vertex[np.lexsort((position[trace.vertex], trace.start_s))].astype(np.int32)
