"""Networks, agents and compiled episodes of a training; a learner may serve one training after another."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import TrainConfig, stored_config
from agents.methods import METHODS
from agents.policies.agent import ImitationAgent, flat, parts_of
from agents.policies.rollout import STEPS_WORTH_COMPILING
from agents.training.task import Task
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph

# The number of orders in which the best assignment of a graph is learned in one update.
_ORDERS = 4
# The settings that a learner's compiled functions depend on.
_HELD = ("method", "batch", "clip", "hidden", "rounds", "features", "rule")
# Updates are compiled if a training has at least so many steps, or so many updates.
_STEPS_FOR_UPDATES, _UPDATES = 20_000, 100
# Updates in which an annealed teacher is learned: the most, and the usual number.
MOST_REPEATED, _USUALLY_REPEATED = 500, 80


class Compiled(NamedTuple):
    """Whether episodes and updates are compiled with XLA or run op by op."""

    episodes: bool
    updates: bool


def worth_compiling(config: TrainConfig, graphs: Sequence[DataflowGraph]) -> Compiled:
    """Compiles what runs longer than the compiler does."""
    rows = max(1, config.batch // len(graphs))
    rounds = math.ceil(config.real / min(config.real_batch, rows + 1))
    repeated = _USUALLY_REPEATED if config.teacher == "annealing" and config.elite > 0 else 0
    updates = (config.imitation + config.simulated) / rows + repeated + rounds * (1 + config.real_updates)
    steps = updates * max(graph.work_vertices.size for graph in graphs)
    return Compiled(steps >= STEPS_WORTH_COMPILING, updates >= _UPDATES or steps >= _STEPS_FOR_UPDATES)


class Learner:
    """All that is trained and all that is compiled.

    Attributes:
      network: the present policies; best_network: those with the fastest greedy episodes; earlier_network: the best of stage II, once
        stage III has begun.
      agent: reinforces; imitator: the agent that imitates before, of the same network and optimizers.
      repeats_order: whether the best episode is learned from in its own order, not in the present policy's.
      updates: int64, counts their updates; elite_rows: trajectories of the best of each graph that an update takes.
    """

    def __init__(self, task: Task, compiled: Compiled | None = None):
        """Args: compiled: None: what pays for this task."""
        config, method = task.config, METHODS[task.config.method]
        self.method, self._settings = method, _settings(task)
        compiled = compiled or worth_compiling(config, task.graphs)
        self.network, self.best_network, self.earlier_network = (method.network(config) for _ in range(3))
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.repeats_order = method.repeats_order or config.rule == "order"
        self.elite_rows = 1 if self.repeats_order else min(_ORDERS, task.rows + 1)
        self.agent = method.agent(self.network, method.graphs(task.arrays), config, self.updates, compiled.updates,
                                  elite_rows=len(task.graphs) * self.elite_rows, rollout=method.rollout(self.network, compiled.episodes))
        self.imitator = ImitationAgent(self.agent)
        self._variables: WeakKeyDictionary[tf.Module, tuple[tf.Variable, ...]] = WeakKeyDictionary()
        self._read = tf.function(lambda: flat(self._listed(self.network)), autograph=False)
        self._write = tf.function(lambda vector: [variable.assign(part) for variable, part in zip(
            self._listed(self.network), parts_of(vector, self._listed(self.network)), strict=True)], autograph=False)
        self._optimizer_start = [v.numpy() for v in self.optimizer_variables]

    def serves(self, task: Task) -> bool:
        """Whether its compiled functions serve this task, too: graphs and devices differ in numbers alone, not in padded shapes."""
        if _settings(task) != self._settings:
            return False
        mine, its = (tf.nest.flatten(graphs) for graphs in (self.agent.collect_policy.graphs, self.method.graphs(task.arrays)))
        return [(each.shape, each.dtype) for each in mine] == [(each.shape, each.dtype) for each in its]

    def begin(self, task: Task) -> None:
        """Takes a task that it serves, and resets all weights and optimizers; compiled functions stay."""
        config = task.config
        self.agent.act_on(self.method.graphs(task.arrays))
        fresh = self.method.network(config)
        for network in (self.network, self.best_network, self.earlier_network):
            self.copy(fresh, network)
        for variable, value in zip(self.optimizer_variables, self._optimizer_start, strict=True):
            variable.assign(value)
        self.updates.assign(0)
        self.agent.set_learning_rate(config.learning_rate)

    @property
    def optimizer_variables(self) -> list[tf.Variable]:
        """Moments, counters and learning rates of both optimizers."""
        return [v for optimizer in self.agent.optimizers for v in optimizer.variables]

    def weights(self) -> np.ndarray:
        """float32 [P]: all numbers of the present policies, temperatures too."""
        return self._read().numpy()

    def set_weights(self, weights: np.ndarray) -> None:
        """Gives the present policies what `weights` has returned."""
        self._write(tf.constant(weights))

    @property
    def checkpointed(self) -> dict:
        """What a checkpoint holds, for `tf.train.Checkpoint`."""
        return {"network": self.network, "best_network": self.best_network, "earlier_network": self.earlier_network,
                "sel_optimizer": self.agent.optimizers[0], "plc_optimizer": self.agent.optimizers[1], "updates": self.updates}

    def start_from(self, path: str | Path, config: TrainConfig) -> None:
        """Takes the best policies of another run (its folder or a checkpoint). Raises CheckpointError, ConfigError: of another kind."""
        checkpoint = policy_checkpoint(path)
        theirs = stored_config(checkpoint.parent.parent)
        for name in ("method", "hidden", "rounds", "features"):
            if getattr(theirs, name) != getattr(config, name):
                raise field_error(ConfigError, str(path), "", name, f"{getattr(config, name)!r}, as this run's", getattr(theirs, name))
        restore_variables(checkpoint, {"best_network": self.best_network}, partial=True)
        self.copy(self.best_network, self.network)

    def copy(self, source: tf.Module, target: tf.Module) -> None:
        """Gives `target` the weights of `source`."""
        for a, b in zip(self._listed(source), self._listed(target), strict=True):
            b.assign(a)

    @contextmanager
    def acting_as(self, network: tf.Module) -> Iterator[None]:
        """Within it, `self.network` has the weights of `network`."""
        present = [v.value() for v in self._listed(self.network)]
        self.copy(network, self.network)
        try:
            yield
        finally:
            for variable, value in zip(self._listed(self.network), present, strict=True):
                variable.assign(value)

    def _listed(self, network: tf.Module) -> tuple[tf.Variable, ...]:
        """Its variables, collected once, as walking through a module takes as long as an update."""
        if network not in self._variables:
            self._variables[network] = network.variables
        return self._variables[network]


def _settings(task: Task) -> tuple:
    """What compiled functions depend on beside the shapes of the graphs."""
    return worth_compiling(task.config, task.graphs), *(getattr(task.config, name) for name in _HELD)


class KeptLearner:
    """Keeps the last learner for the next training, as tracing and loading compiled functions can take longer than a training."""

    def __init__(self, make: Callable[[Task], Learner] = Learner):
        """Args: make: makes the learner of a task."""
        self._make, self._lock = make, threading.Lock()
        self._kept: Learner | None = None  # None while it is in use, too

    @contextmanager
    def lent(self, task: Task) -> Iterator[Learner]:
        """A learner for this task in its initial state: the last one where it serves, a new one otherwise.

        It is kept until the next call, however the training ends.
        """
        with self._lock:
            learner, self._kept = self._kept, None
        if learner is not None and learner.serves(task):
            learner.begin(task)
        else:
            learner = None  # before another one is made: two may not fit in memory
            learner = self._make(task)
        try:
            yield learner
        finally:
            with self._lock:
                self._kept = learner

    def forget(self) -> None:
        """Drops the learner."""
        with self._lock:
            self._kept = None
