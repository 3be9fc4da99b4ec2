"""Stage II in several processes: each makes a part of every batch and learns from it, one applies what all have learned.

An update sends the weights, gets choices and seconds back, sends advantages, and gets gradients back. Their sum is the gradient that one
process computes. What is large, the features of every step, stays in the process that made it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.agents.tf_agent import LossInfo
from tf_agents.drivers import driver
from tf_agents.trajectories import Trajectory

from agents.config import TrainConfig
from agents.deterministic import deterministic_operations
from agents.episodes.environment import AssignmentEnvironment
from agents.policies.agent import Gradients, Lesson
from agents.policies.driver import FusedDriver
from agents.policies.losses import rank_advantage
from agents.policies.rollout import Episodes
from agents.policies.trajectories import episodes_of, seconds_of, trajectory_of
from agents.training.learner import Compiled, Learner, worth_compiling
from agents.training.stages import Choices, Replay, Training
from agents.training.task import Task
from doppler_tf.errors import DopplerError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.tasks import OnRay

# So far apart are the seeds of two shards.
_APART = 1_000_003


class Setup(NamedTuple):
    """What a process must know before it can work on a shard."""

    graphs: tuple[DataflowGraph, ...]
    topology: Topology
    config: TrainConfig
    compiled: Compiled


class Request(NamedTuple):
    """What `work` is to do.

    Attributes:
      training: tells one training from another; shard, of: which of how many parts of a batch; seed: of its episodes.
      weights: float32 [P], of the policies; None: the process has them.
      lesson, elite: what to learn from the episodes, and whom to imitate; None: they are to be made.
      choices: those of the episodes to learn from; None: the process has made them.
      setup: None: the process has it.
    """

    training: str
    shard: int
    of: int
    seed: tuple[int, int]
    weights: np.ndarray | None = None
    lesson: Lesson | None = None
    elite: Choices | None = None
    choices: Choices | None = None
    setup: Setup | None = None


class Sampled(NamedTuple):
    """The episodes of a shard: int32 [B, T] padded vertices and devices by step, float64 [B] seconds."""

    order: np.ndarray
    device: np.ndarray
    makespan_s: np.ndarray


class Workers(NamedTuple):
    """Processes for shards, one for each.

    Attributes:
      tasks: gives them work; work: the function `work` of this module, or one that prepares the process and calls it.
    """

    tasks: OnRay
    work: Callable[[bytes], Sampled | Gradients | None]


class Shards(driver.Driver):
    """Driver and agent of stage II, which leave the work to other processes.

    `run` and `train` are those of `FusedDriver` and `ReinforceAgent`. Trajectories have no features, and elites are `Choices`.
    """

    def __init__(self, training: Training, workers: Workers, observers: Sequence[Callable[[Trajectory], object]]):
        task, learner = training.task, training.learner
        super().__init__(training.environment, learner.agent.collect_policy, list(observers))
        self._training, self._workers = training, workers
        self._setup = Setup(task.graphs, task.costs[0].topology, task.config, worth_compiling(task.config, task.graphs))
        self._name = "/".join((*(graph.graph_hash for graph in task.graphs), self._setup.topology.topology_hash, repr(task.config)))
        self._rows = rows_of(task, workers.tasks.workers)
        self._weights = np.zeros(0, np.float32)
        self._seed = (0, 0)
        self._made: list[Sampled] = []

    def run(self, seed: tuple[int, int]) -> Trajectory:
        """One batch of episodes by the present policies, passed to the observers and returned."""
        task = self._training.task
        self._weights, self._seed = self._training.learner.weights(), seed
        self._made = []
        self._made = self._ask([self._request(shard)._replace(weights=self._weights) for shard in range(len(self._rows))])
        order, device, makespan_s = (np.concatenate(parts) for parts in zip(*self._made, strict=True))
        nothing = tf.zeros([*order.shape, 0])
        episodes = Episodes(tf.constant(task.graph), tf.constant(order), tf.constant(device), nothing, tf.cast(nothing, tf.bool))
        experience = self._training.driver.judged(trajectory_of(episodes, self.env.lengths[task.graph]), makespan_s)
        for observe in self.observers:
            observe(experience)
        return experience

    def train(self, experience: Trajectory, weights: tf.Tensor, entropy: float, elite: Choices | None, elite_weight: float) -> LossInfo:
        """One update on the last batch."""
        graph = tf.constant(self._training.task.graph)
        advantage = rank_advantage(tf.reduce_sum(experience.reward, axis=1), graph, weights).numpy()
        weight, shards = weights.numpy(), len(self._rows)
        elites: list[Choices | None] = [None] * shards
        if elite is not None:
            elites = [Choices(*parts) for parts in zip(*(np.array_split(each, shards) for each in elite), strict=True)]
        steps = np.array([0 if each is None else self.env.lengths[each.graph].sum() for each in elites])
        requests = []
        for shard, (rows, its_elite) in enumerate(zip(self._rows, elites, strict=True)):
            numbers = entropy, elite_weight, weight[rows].sum() / max(weight.sum(), 1), steps[shard] / max(steps.sum(), 1)
            lesson = Lesson(advantage[rows], weight[rows], *(np.float32(number) for number in numbers))
            requests.append(self._request(shard)._replace(lesson=lesson, elite=its_elite))
        parts = self._ask(requests)
        info = self._training.learner.agent.apply(tf.nest.map_structure(lambda *values: tf.constant(np.sum(values, axis=0)), *parts))
        return LossInfo(info.loss, info)

    def _request(self, shard: int) -> Request:
        first, second = self._seed
        return Request(self._name, shard, len(self._rows), ((first + _APART * shard) % 2**31, second))

    def _ask(self, requests: Sequence[Request]) -> list[Any]:
        """What the processes answer, by shard. One that is new, as another was lost, is told everything."""
        tasks, work = self._workers
        names = [f"part {shard + 1} of {len(requests)} of a batch" for shard in range(len(requests))]
        waiting, answers = dict(enumerate(requests)), {}
        while len(answers) < len(requests):
            idle = tasks.idle()
            for worker in idle:
                if worker in waiting:  # each has a shard of its own, for which it has compiled
                    tasks.start(worker, names[worker], work, pickle.dumps(waiting.pop(worker)))
            if waiting and idle and not tasks.busy:  # the others have not started, and may never
                shard = min(waiting)
                tasks.start(idle[0], names[shard], work, pickle.dumps(waiting.pop(shard)))
            for name, answer, error in tasks.wait():
                shard = names.index(name)
                if error:
                    raise DopplerError(f"--jobs: {name} failed: {error}")
                if answer is None:
                    waiting[shard] = requests[shard]._replace(weights=self._weights, choices=self._choices(shard), setup=self._setup)
                else:
                    answers[shard] = answer
        return [answers[shard] for shard in range(len(requests))]

    def _choices(self, shard: int) -> Choices | None:
        """The episodes of a shard, if they have been made. Another machine might draw others."""
        return Choices(self._training.task.graph[self._rows[shard]], *self._made[shard][:2]) if self._made else None


def rows_of(task: Task, shards: int) -> list[np.ndarray]:
    """The rows of a batch that are each shard's."""
    return np.array_split(np.arange(len(task.graph)), shards)


class _Shard:
    """A training in a process that works on shards of its batches."""

    def __init__(self, setup: Setup):
        costs = [build_costs(graph, setup.topology) for graph in setup.graphs]
        self.task = Task.of(setup.graphs, costs, setup.config)
        self.learner = Learner(self.task, setup.compiled)
        self._drivers: dict[tuple[int, int], tuple[FusedDriver, Replay]] = {}
        self._made: dict[tuple[int, int], tuple[tuple[int, int], Trajectory]] = {}

    def sample(self, request: Request) -> Sampled:
        """The episodes of a shard."""
        experience = self._driver(request)[0].run(request.seed)
        self._made[request.shard, request.of] = request.seed, experience
        return Sampled(experience.action["vertex"].numpy(), experience.action["device"].numpy(), seconds_of(experience))

    def episodes(self, request: Request) -> Trajectory | None:
        """What a request wants to be learned from; None: it is not here."""
        seed, experience = self._made.get((request.shard, request.of), (None, None))
        if seed != request.seed:
            experience = request.choices and self._driver(request)[0].replay(*request.choices)
        return experience

    def gradients(self, request: Request, experience: Trajectory) -> Gradients:
        """What episodes and the elite teach."""
        vertices = self.task.num_vertices
        episodes, choices = episodes_of(experience, vertices), request.elite
        if choices is None or not len(choices.graph):
            elite = Episodes(*(value[:0] for value in episodes))
        else:
            elite = episodes_of(self._driver(request)[1](choices), vertices)
        found = self.learner.agent.gradients(episodes, elite, Lesson(*(tf.constant(value) for value in request.lesson)))
        return tf.nest.map_structure(lambda value: value.numpy(), found)

    def _driver(self, request: Request) -> tuple[FusedDriver, Replay]:
        """Of a shard's episodes, and of its elite."""
        part = request.shard, request.of
        if part not in self._drivers:
            rows = rows_of(self.task, request.of)[request.shard]
            environment = AssignmentEnvironment(self.task.arrays, self.task.makespans(self.task.costs), len(rows), self.task.graph[rows])
            driver = FusedDriver(environment, self.learner.agent.collect_policy, greedy=self.task.is_greedy[rows])
            self._drivers[part] = driver, Replay(driver)
        return self._drivers[part]


_AT_WORK: dict[str, _Shard] = {}  # the last training of this process


def work(sent: bytes) -> Sampled | Gradients | None:
    """Does a pickled request in this process; None: it asks for what the process does not have."""
    request = pickle.loads(sent)
    with deterministic_operations():
        if request.training not in _AT_WORK:
            if request.setup is None:
                return None
            _AT_WORK.clear()
            _AT_WORK[request.training] = _Shard(request.setup)
        shard = _AT_WORK[request.training]
        if request.weights is not None:
            shard.learner.set_weights(request.weights)
        if request.lesson is None:
            return shard.sample(request)
        experience = shard.episodes(request)
        return None if experience is None else shard.gradients(request, experience)
