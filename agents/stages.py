"""What learns, one update at a time: imitation of the teacher, and REINFORCE on seconds from a simulator or from runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from agents import summaries
from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import TrainConfig, stored_config
from agents.driver import Episodes
from agents.features import GraphArrays, graph_arrays, padded_sizes
from agents.methods import METHODS
from agents.updates import UpdateInfo
from doppler_tf.assignment import Assignment
from doppler_tf.bounds import lower_bounds
from doppler_tf.costs import CostModel
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import Budget, anneal
from doppler_tf.heuristics.search import ROUNDING, Found, default_budget
from doppler_tf.simulator import Simulator

STAGES = ("imitation", "simulated", "real")
# In how many orders the best assignment of a graph is learned at once, and updates between new ones, as replaying them takes time too.
_ORDERS, _REORDERED = 4, 4
# How fast temperatures move, and within which bounds; SEL's logits lie 20 apart at most, and `order_log_probability` bears no more.
_TEMPERING, _COLDEST, _HOTTEST = 0.2, (1.0, 0.05), 20.0
# The annealed teacher: its annealing's length beside `place`'s for every two devices, updates at most in which it is learned, the first of
# these's random numbers, and their learning rate beside a stage's: to follow one teacher bears more, and takes a fourth of the updates.
_ANNEALED, _REPEATED, _REPEATING, _FASTER = 5, 500, 1 << 20, 4.0
# Of a training, steps of batches of episodes (from which on they are compiled, and the updates too), and updates: fewer are done before
# the compiler is. An annealed teacher seldom takes more updates than the last.
_STEPS_WORTH_COMPILING, _UPDATES_WORTH_COMPILING, _USUALLY_REPEATED = (2000, 20_000), 100, 80
_variables: WeakKeyDictionary[tf.Module, tuple[tf.Variable, ...]] = WeakKeyDictionary()


@dataclass(eq=False)
class Best:
    """An episode of one graph: int32 [T] order and device by step (padded vertices), its simulated seconds, and what made it."""

    makespan_s: float
    order: np.ndarray
    device: np.ndarray
    method: str = "policy"


class Learner:
    """Everything that learns.

    Batches hold, for each graph, one greedy episode (watched, not learned from) and the same number of sampled ones.

    Attributes:
      network: the policies as they are; best_network: those with the fastest greedy episodes; earlier_network: the best of stage II, from
        the begin of stage III on.
      best: by graph the best episode seen; greedy_s: seconds of the greedy episodes of `best_network`.
      elite_order: int32 [G * elite_rows, T], the orders in which the best episodes are learned from.
    """

    def __init__(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig):
        sizes = padded_sizes(list(graphs))
        self.arrays: list[GraphArrays] = [graph_arrays(g, c, sizes, config.identity) for g, c in zip(graphs, costs, strict=True)]
        self.bounds_s = [lower_bounds(g, c).best_s for g, c in zip(graphs, costs, strict=True)]
        self._method = METHODS[config.method]
        self.batch = self._method.batch(self.arrays)
        self.network, self.best_network, self.earlier_network = (self._method.network(config) for _ in range(3))
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.rows = max(1, config.batch // len(graphs))
        compiles = worth_compiling(config, graphs)
        self.agent = self._method.agent(self.network, self.batch, config, self.updates, jit_compile=compiles.updates)
        self._optimizer_start = [v.numpy() for v in self._optimizer_variables()]
        self.driver = self._method.driver(self.network, jit_compile=compiles.episodes)
        each = self.rows + 1
        self.graph = tf.constant(np.repeat(np.arange(len(graphs)), each), tf.int32)
        self._is_greedy = np.tile(np.arange(each) == 0, len(graphs))
        self.elite_rows = 1 if self._method.repeats_order else min(_ORDERS, each)
        self._begin(graphs, costs, config)

    def _begin(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig) -> None:
        self.config, self.graphs, self.costs = config, tuple(graphs), tuple(costs)
        self.simulators = [FastSimulator(g, c) for g, c in zip(graphs, costs, strict=True)]
        self.best = [Best(np.inf, *np.zeros((2, self.batch.num_vertices - 1), np.int32)) for _ in graphs]
        self.greedy_s = [np.inf] * len(graphs)
        self.elite_order: np.ndarray | None = None
        self._elite_record: Episodes | None = None

    def begin_anew(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig) -> None:
        """As made anew, but for what is compiled: for graphs and costs equal to its own, and settings that compiled code does not hold."""
        fresh = self._method.network(config)
        for network in (self.network, self.best_network, self.earlier_network):
            copy_variables(fresh, network)
        for variable, value in zip(self._optimizer_variables(), self._optimizer_start, strict=True):
            variable.assign(value)
        self.updates.assign(0)
        self._begin(graphs, costs, config)

    def _optimizer_variables(self) -> list[tf.Variable]:
        return [v for optimizer in self.agent.optimizers for v in optimizer.variables]

    @property
    def checkpointed(self) -> dict:
        """What a checkpoint holds, for `tf.train.Checkpoint`."""
        return {"network": self.network, "best_network": self.best_network, "earlier_network": self.earlier_network,
                "sel_optimizer": self.agent.optimizers[0], "plc_optimizer": self.agent.optimizers[1], "updates": self.updates}

    def start_from(self, path: str | Path) -> None:
        """Takes the best policies of another run (its folder or a checkpoint). Raises CheckpointError, ConfigError: of another kind."""
        checkpoint = policy_checkpoint(path)
        theirs = stored_config(checkpoint.parent.parent)
        for name in ("method", "hidden", "rounds", "features"):
            if getattr(theirs, name) != getattr(self.config, name):
                raise field_error(ConfigError, str(path), "", name, f"{getattr(self.config, name)!r}, as this run's", getattr(theirs, name))
        restore_variables(checkpoint, {"best_network": self.best_network}, partial=True)
        copy_variables(self.best_network, self.network)

    def imitate(self, episodes: Episodes) -> dict[str, dict[str, float]]:
        """One update of stage I on recorded teacher episodes, as many as a batch; where a greedy one stands, it is not learned from."""
        info = self.agent.imitate(episodes, self._counted(), self._stand_in(episodes))
        copy_variables(self.network, self.best_network)
        return {graph.name: {summaries.AGREEMENT: -float(info.loss), **_scalars(info)} for graph in self.graphs}

    def anneal(self) -> list[int]:
        """Takes annealed assignments as the best episodes, and learns to repeat them before they are varied; returns how many simulations
        each took."""
        simulations = []
        for g, (graph, costs) in enumerate(zip(self.graphs, self.costs, strict=True)):
            found = _annealed(graph, costs, self.config.seed, self.bounds_s[g])
            simulations.append(found.simulations)
            self.best[g] = self.as_episode(g, Assignment(found.assignment.device, graph.work_vertices, "policy"), found.makespan_s)
        self.agent.set_learning_rate(_FASTER * self.config.learning_rate)
        for step in range(0, _repeated(self.config), _REORDERED):
            episodes = self._run(self.config.seed, _REPEATING + step)
            makespan_s = self.simulated_s(episodes)
            self.keep_best(episodes, makespan_s)
            self._require_memory(episodes)
            if np.all(makespan_s[self._is_greedy] <= (1 + ROUNDING) * np.array([best.makespan_s for best in self.best])):
                break  # the greedy episodes repeat it
            elite = self._elite(episodes)
            for _ in range(_REORDERED):
                nothing = tf.zeros_like(self._counted())
                self.agent.reinforce(episodes, nothing, nothing, tf.constant(0.0), elite, tf.constant(1.0), tf.constant(0.0))
        self.agent.set_learning_rate(self.config.learning_rate)
        if np.isfinite(self.greedy_s).all():
            copy_variables(self.best_network, self.network)
        else:  # no greedy episodes fitted in memory, so that none is known to be better than the last
            copy_variables(self.network, self.best_network)
        return simulations

    def teacher_episodes(self, orders: list[np.ndarray], devices: list[np.ndarray]) -> Episodes:
        """Replays teacher episodes: by graph, int [n, M] vertices in the order chosen and devices by step."""
        steps = self.batch.num_vertices - 1
        rows = [(np.full((len(o), steps), steps, np.int32), np.zeros((len(o), steps), np.int32)) for o in orders]
        for (padded_order, padded_device), arrays, order, device in zip(rows, self.arrays, orders, devices, strict=True):
            padded_order[:, :arrays.num_work] = np.searchsorted(arrays.graph.work_vertices, order)
            padded_device[:, :arrays.num_work] = device
        graph = np.repeat(np.arange(len(orders)), [len(o) for o in orders])
        order, device = (tf.constant(np.concatenate(column)) for column in zip(*rows, strict=True))
        return self.driver.replay(self.batch, tf.constant(graph, tf.int32), order, device)

    def simulate(self, seed: int, step: int, progress: float) -> dict[str, dict[str, float]]:
        """One update on simulated seconds.

        Args:
          seed, step: which random numbers; progress: 0 at the stage's start, 1 at its end.
        """
        started = time.perf_counter()
        episodes, makespan_s = self.rollout(seed, step)
        self.keep_best(episodes, makespan_s)
        self._require_memory(episodes)
        report = self.learn(episodes, makespan_s, progress)
        rate = self.rows * len(self.graphs) / (time.perf_counter() - started)
        return {name: {**scalars, summaries.RATE: rate} for name, scalars in report.items()}

    def rollout(self, seed: int, step: int) -> tuple[Episodes, np.ndarray]:
        """A batch of episodes with their simulated seconds (float64 [B])."""
        episodes = self._run(seed, step)
        return episodes, self.simulated_s(episodes)

    def _run(self, seed: int, step: int) -> Episodes:
        return self.driver.run(self.batch, self.graph, tf.constant([seed, step]), tf.constant(self._is_greedy))

    def simulated_s(self, episodes: Episodes) -> np.ndarray:
        """float64 [B]: seconds of a batch of episodes."""
        makespan_s = np.empty(len(self.graph))
        for rows, arrays, simulator in zip(self.rows_by_graph(), self.arrays, self.simulators, strict=True):
            makespan_s[rows] = simulator.makespans(*arrays.to_devices(episodes.order[rows], episodes.device[rows]))
        return makespan_s

    def learn(self, episodes: Episodes, seconds: np.ndarray, progress: float) -> dict[str, dict[str, float]]:
        """One update on the sampled episodes of a batch and what they take (float64 [B])."""
        elite = self._elite(episodes)
        scale = np.repeat([a.scale_s for a in self.arrays], self.rows + 1)
        tempered = self.config.mutations > 0
        info = self.agent.reinforce(episodes, tf.constant(-seconds / scale, tf.float32), self._counted(),
                                    tf.constant(0.0 if tempered else self.config.entropy * (1 - progress), tf.float32),
                                    elite or self._stand_in(episodes),
                                    tf.constant(self.config.elite ** (1 - progress) if elite else 0.0, tf.float32), tf.constant(0.0))
        if tempered:
            self._temper(info, progress)
        return self._report(seconds, info)

    def _counted(self) -> tf.Tensor:
        """float32 [B]: 0 for the greedy episodes of a batch, 1 for those that are learned from."""
        return tf.constant(~self._is_greedy, tf.float32)

    def _stand_in(self, episodes: Episodes) -> Episodes:
        """Episodes of the elite's shape, where there is none."""
        return Episodes(*(value[:len(self.graphs) * self.elite_rows] for value in episodes))

    def _temper(self, info: UpdateInfo, progress: float) -> None:
        """Moves the temperatures towards those at which an episode differs from the greedy one in so many choices as are wanted now.

        So the samples search near the best that is known, ever nearer, whatever the sizes of logits, graph and topology (as the
        target entropy of Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, here for the temperature itself).
        """
        choices = float(np.mean([a.num_work for a in self.arrays]))
        wanted = min(self.config.mutations, choices / 2) ** (1 - progress)
        entropy = wanted / choices * (1 + np.log(choices * max(self.batch.num_devices - 1, 1) / wanted))
        seen = np.array([float(info.sel_entropy), float(info.plc_entropy)])
        step = _TEMPERING * np.clip(np.log(entropy / np.maximum(seen, 1e-6)), -1, 1) * (seen > 0)  # 0: a method that does not choose it
        self.network.temperature.assign(np.clip(self.network.temperature.numpy() * np.exp(step), _COLDEST, _HOTTEST))

    def begin_again(self) -> None:
        """From the best policy, which is remembered as the earlier one."""
        copy_variables(self.best_network, self.network)
        copy_variables(self.best_network, self.earlier_network)

    def believe(self, costs: Sequence[CostModel]) -> None:
        """From now on these costs are simulated, and what was best is judged by them; what the policies see stays."""
        self.simulators = [FastSimulator(g, c) for g, c in zip(self.graphs, costs, strict=True)]
        for g, best in enumerate(self.best):
            if np.isfinite(best.makespan_s):  # else no episode has been simulated yet
                best.makespan_s = float(self.simulators[g].makespans(*self.arrays[g].to_devices(best.order[None], best.device[None]))[0])
        self.greedy_s = [best.makespan_s for best in self.greedy(self.best_network)]

    def greedy(self, network: tf.Module) -> list[Best]:
        """By graph the greedy episode of other policies."""
        present = [v.value() for v in _listed(self.network)]
        copy_variables(network, self.network)
        episodes, makespan_s = self.rollout(self.config.seed, 0)
        for variable, value in zip(_listed(self.network), present, strict=True):
            variable.assign(value)
        return [self.episode(episodes, rows.start, makespan_s) for rows in self.rows_by_graph()]

    def computation(self) -> tf.Graph:
        """Of a batch of episodes, as TensorFlow runs it."""
        return self.driver.run.get_concrete_function(self.batch, self.graph, tf.constant([0, 0]), tf.constant(self._is_greedy)).graph

    def final(self, seed: int, chosen: bool) -> list[tuple[float, Best]]:
        """With the best policy: by graph its greedy seconds, and the best of all that was seen; of fresh samples too, unless runs have
        `chosen`."""
        copy_variables(self.best_network, self.network)
        episodes, makespan_s = self.rollout(seed, (1 << 16) - 1)
        if not chosen:
            self.keep_best(episodes, makespan_s)
        self._require_memory(episodes)
        return [(float(makespan_s[rows.start]), best) for rows, best in zip(self.rows_by_graph(), self.best, strict=True)]

    def rows_by_graph(self) -> list[slice]:
        """The rows of a batch that are a graph's, its greedy episode first."""
        each = self.rows + 1
        return [slice(g * each, (g + 1) * each) for g in range(len(self.graphs))]

    def assignment(self, g: int, episode: Best) -> Assignment:
        """An episode of graph g as an executor takes it."""
        device, order = self.arrays[g].to_devices(episode.order[None], episode.device[None])
        return Assignment(device[0], order[0], episode.method)

    def as_episode(self, g: int, assignment: Assignment, makespan_s: float) -> Best:
        """An assignment of graph g, with an order, as if it were an episode; makespan_s: simulated."""
        arrays, steps = self.arrays[g], self.batch.num_vertices - 1
        order, device = np.full(steps, steps, np.int32), np.zeros(steps, np.int32)
        order[:arrays.num_work] = np.searchsorted(arrays.graph.work_vertices, assignment.order)
        device[:arrays.num_work] = assignment.device[assignment.order]
        return Best(makespan_s, order, device, assignment.method)

    def episode(self, episodes: Episodes, row: int, makespan_s: np.ndarray) -> Best:
        """One of a batch, with its seconds."""
        return Best(float(makespan_s[row]), episodes.order[row].numpy(), episodes.device[row].numpy())

    def _require_memory(self, episodes: Episodes) -> None:
        """Raises DeadlockError for a graph of which no episode has ever fitted in memory."""
        for g, (rows, best) in enumerate(zip(self.rows_by_graph(), self.best, strict=True)):
            if not np.isfinite(best.makespan_s):
                never = self.assignment(g, self.episode(episodes, rows.start, np.full(rows.stop, np.inf)))
                Simulator().execute(self.graphs[g], self.costs[g], never)

    def keep_best(self, episodes: Episodes, makespan_s: np.ndarray) -> None:
        """Remembers better episodes, and the policy itself where its greedy episodes are better than any policy's before."""
        for g, rows in enumerate(self.rows_by_graph()):
            b = rows.start + int(np.argmin(makespan_s[rows]))
            if makespan_s[b] < self.best[g].makespan_s:
                self.best[g] = self.episode(episodes, b, makespan_s)
        now = [float(makespan_s[rows.start]) for rows in self.rows_by_graph()]
        units = [bound or 1.0 for bound in self.bounds_s]
        if sum(s / u for s, u in zip(now, units, strict=True)) < sum(s / u for s, u in zip(self.greedy_s, units, strict=True)):
            self.greedy_s = now
            copy_variables(self.network, self.best_network)

    def _elite(self, episodes: Episodes) -> Episodes | None:
        """The best assignment so far of each graph, in the orders of some present episodes, the greedy one first; None where there is none.

        SEL cannot learn an order in which vertices that look alike happened to be drawn, and PLC is to send a vertex to its device whatever
        came before it. Where the order is all that is learned (`repeats_order`), it is the best episode's own.
        """
        if self.config.elite == 0 or not all(np.isfinite(best.makespan_s) for best in self.best):
            return None
        graph = np.repeat(np.arange(len(self.best)), self.elite_rows)
        if self._method.repeats_order:
            self.elite_order = np.stack([best.order for best in self.best])
        elif self.elite_order is None or int(self.updates) % _REORDERED == 0:
            rows = [rows.start + i for rows in self.rows_by_graph() for i in range(self.elite_rows)]
            self.elite_order = tf.gather(episodes.order, rows).numpy()
        by_vertex = np.zeros((len(self.best), self.batch.num_vertices), np.int32)
        for g, best in enumerate(self.best):
            by_vertex[g, best.order] = best.device
        actions = np.stack([self.elite_order, np.take_along_axis(by_vertex[graph], self.elite_order, axis=1)])
        if self._elite_record is None or not np.array_equal(actions, self._elite_actions):
            self._elite_actions = actions
            self._elite_record = self.driver.replay(self.batch, tf.constant(graph, tf.int32), *map(tf.constant, actions))
        return self._elite_record

    def _report(self, makespan_s: np.ndarray, info: UpdateInfo) -> dict[str, dict[str, float]]:
        report = {}
        for g, rows in enumerate(self.rows_by_graph()):
            greedy = float(makespan_s[rows.start])
            report[self.graphs[g].name] = {
                summaries.GREEDY: greedy, summaries.SAMPLED: float(makespan_s[rows][1:].mean()), summaries.BEST: self.best[g].makespan_s,
                summaries.OVER_BOUND: greedy / self.bounds_s[g] - 1 if self.bounds_s[g] else 0.0, **_scalars(info)}
        return report


class Compiled(NamedTuple):
    """What of a training is compiled with XLA; else it runs op by op."""

    episodes: bool
    updates: bool


def worth_compiling(config: TrainConfig, graphs: Sequence[DataflowGraph]) -> Compiled:
    """Whether there is so much to do that compiling it pays."""
    rows = max(1, config.batch // len(graphs))
    rounds = math.ceil(config.real / min(config.real_batch, rows + 1))
    updates = (config.imitation + config.simulated) / rows + min(_repeated(config), _USUALLY_REPEATED) + rounds * (1 + config.real_updates)
    steps = updates * max(graph.work_vertices.size for graph in graphs)
    for_episodes, for_updates = _STEPS_WORTH_COMPILING
    return Compiled(steps >= for_episodes, updates >= _UPDATES_WORTH_COMPILING or steps >= for_updates)


def _repeated(config: TrainConfig) -> int:
    """In how many updates at most an annealed assignment is learned before it is varied."""
    return _REPEATED if config.teacher == "annealing" and config.elite else 0


def _annealed(graph: DataflowGraph, costs: CostModel, seed: int, target_s: float) -> Found:
    """One annealing of _ANNEALED times the simulations of `place --method annealing` for every two devices, above four once more for every
    four, or until one reaches `target_s`."""
    simulations = _ANNEALED * costs.num_devices * default_budget(graph).most // 2 * math.ceil(costs.num_devices / 4)
    return anneal(graph, costs, np.random.default_rng(seed), Budget(simulations, target_s=target_s), None, "fifo")


def copy_variables(source: tf.Module, target: tf.Module) -> None:
    """Gives `target` the weights of `source`."""
    for a, b in zip(_listed(source), _listed(target), strict=True):
        b.assign(a)


def _listed(network: tf.Module) -> tuple[tf.Variable, ...]:
    """Its variables, looked for once: to walk through a module takes as long as an update."""
    if network not in _variables:
        _variables[network] = network.variables
    return _variables[network]


def _scalars(info: UpdateInfo) -> dict[str, float]:
    tags = (summaries.LOSS, summaries.SEL_ENTROPY, summaries.PLC_ENTROPY, summaries.SEL_GRADIENT, summaries.PLC_GRADIENT)
    return {tag: float(value) for tag, value in zip(tags, info, strict=True)}
