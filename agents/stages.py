"""The three stages, one update at a time: imitation of the teacher, REINFORCE in the simulator, REINFORCE on real runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from agents import summaries
from agents.agent import DopplerAgent, UpdateInfo
from agents.config import TrainConfig
from agents.driver import Episodes, FusedDriver
from agents.episode import graph_batch
from agents.features import GraphArrays, graph_arrays, padded_sizes
from agents.networks import DualNetwork
from doppler_tf.assignment import Assignment
from doppler_tf.bounds import lower_bounds
from doppler_tf.costs import CostModel
from doppler_tf.errors import CancelledError, DopplerError
from doppler_tf.executor import Executor
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.simulator import Simulator

STAGES = ("imitation", "simulated", "real")
_CLEARLY = 0.02
_WORTH_COMPILING = 100  # updates; fewer are done before the compiler is


@dataclass(eq=False)
class Best:
    """The best episode seen of one graph: int32 [T] order and device (padded vertices), simulated seconds; its record, [1, T] each,
    unless it comes from a checkpoint."""

    makespan_s: float
    order: np.ndarray
    device: np.ndarray
    record: Episodes | None = None


class Learner:
    """Everything that learns, and one method a stage that makes one update.

    Batches hold, for each graph, one greedy episode (watched, not learned from) and the same number of sampled ones.
    """

    def __init__(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig):
        self.config, self.graphs, self.costs = config, tuple(graphs), tuple(costs)
        sizes = padded_sizes(list(graphs))
        self.arrays: list[GraphArrays] = [graph_arrays(g, c, sizes) for g, c in zip(graphs, costs, strict=True)]
        self.simulators = [FastSimulator(g, c) for g, c in zip(graphs, costs, strict=True)]
        self.bounds_s = [lower_bounds(g, c).best_s for g, c in zip(graphs, costs, strict=True)]
        self.batch = graph_batch(self.arrays)
        self.network = DualNetwork(config.hidden, config.rounds, config.features, config.seed)
        self.best_network = DualNetwork(config.hidden, config.rounds, config.features, config.seed)
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.rows = max(1, config.batch // len(graphs))
        worthwhile = config.imitation + config.simulated >= _WORTH_COMPILING * self.rows
        self.agent = DopplerAgent(self.network, self.batch, config, self.updates, jit_compile=worthwhile)
        self.driver = FusedDriver(self.network)
        each = self.rows + 1
        self.graph = tf.constant(np.repeat(np.arange(len(graphs)), each), tf.int32)
        self._is_greedy = np.tile(np.arange(each) == 0, len(graphs))
        self.best = [Best(np.inf, *np.zeros((2, self.batch.num_vertices - 1), np.int32)) for _ in graphs]
        self.greedy_s = [np.inf] * len(graphs)
        self._elite: Episodes | None = None

    @property
    def checkpointed(self) -> dict:
        """What a checkpoint holds, for `tf.train.Checkpoint`."""
        return {"network": self.network, "best_network": self.best_network, "sel_optimizer": self.agent.optimizers[0],
                "plc_optimizer": self.agent.optimizers[1], "updates": self.updates}

    def imitate(self, episodes: Episodes) -> dict[str, dict[str, float]]:
        """One update of stage I on recorded teacher episodes."""
        info = self.agent.imitate(episodes)
        copy_variables(self.network, self.best_network)
        return {graph.name: {summaries.AGREEMENT: -float(info.loss), **_scalars(info)} for graph in self.graphs}

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
        """One update of stage II.

        Args:
          seed, step: which random numbers; progress: 0 at the stage's start, 1 at its end.
        """
        started = time.perf_counter()
        episodes, makespan_s = self.rollout(seed, step)
        self._keep_best(episodes, makespan_s)
        self._require_memory(episodes)
        info = self._reinforce(episodes, makespan_s, ~self._is_greedy, self.config.entropy * (1 - progress), self.config.elite)
        rate = self.rows * len(self.graphs) / (time.perf_counter() - started)
        return self._report(makespan_s, info, {summaries.RATE: rate})

    def rollout(self, seed: int, step: int) -> tuple[Episodes, np.ndarray]:
        """A batch of episodes with their simulated seconds (float64 [B])."""
        episodes = self.driver.run(self.batch, self.graph, tf.constant([seed, step]), tf.constant(self._is_greedy))
        makespan_s = np.empty(len(self.graph))
        for rows, arrays, simulator in zip(self._rows_by_graph(), self.arrays, self.simulators, strict=True):
            makespan_s[rows] = simulator.makespans(*arrays.to_devices(episodes.order[rows], episodes.device[rows]))
        return episodes, makespan_s

    def run_real(self, executor: Executor, seed: int, step: int) -> dict[str, dict[str, float]]:
        """One update of stage III: the first `real_batch` sampled episodes of each graph are run; failed runs do not count."""
        episodes, simulated_s = self.rollout(seed, step)
        measured_s = np.full(len(simulated_s), np.nan)
        for rows, arrays in zip(self._rows_by_graph(), self.arrays, strict=True):
            chosen = slice(rows.start, rows.start + 1 + min(self.rows, self.config.real_batch))
            for b, assignment in zip(range(chosen.start, chosen.stop), self._assignments(arrays, episodes, chosen), strict=True):
                measured_s[b] = measure(executor, arrays.graph, arrays.costs, assignment)
        counts = ~np.isnan(measured_s) & ~self._is_greedy
        self._keep_best(episodes, simulated_s, greedy=False)
        info = self._reinforce(episodes, np.where(counts, measured_s, 0.0), counts, 0.0, 0.0)
        extra = {summaries.MEASURED: float(np.mean(measured_s[counts])) if counts.any() else np.nan}
        return self._report(simulated_s, info, extra)

    def keep_policy_if_faster(self, executor: Executor, repeats: int) -> tuple[float, float]:
        """After stage III: measures the greedy assignments of the kept and of the present policy (median of `repeats`, summed over the
        graphs in units of each one's bound) and keeps the present one where it is better by 2%; returns both figures."""
        present = self._measured_greedy(executor, repeats)
        trained = [v.value() for v in self.network.trainable_variables]
        copy_variables(self.best_network, self.network)
        kept = self._measured_greedy(executor, repeats)
        # A run is noisy: the new policy must win clearly.
        if present < (1 - _CLEARLY) * kept:
            for variable, value in zip(self.network.trainable_variables, trained, strict=True):
                variable.assign(value)
            copy_variables(self.network, self.best_network)
        return kept, present

    def _measured_greedy(self, executor: Executor, repeats: int) -> float:
        episodes, _ = self.rollout(self.config.seed, 0)
        total = 0.0
        for rows, arrays, bound_s in zip(self._rows_by_graph(), self.arrays, self.bounds_s, strict=True):
            assignment = self._assignments(arrays, episodes, slice(rows.start, rows.start + 1))[0]
            runs = [measure(executor, arrays.graph, arrays.costs, assignment) for _ in range(repeats)]
            total += float(np.nanmedian(runs)) / (bound_s or 1.0) if not np.all(np.isnan(runs)) else np.inf
        return total

    def final(self, seed: int) -> list[tuple[float, Best]]:
        """With the best policy: by graph its greedy seconds, and the best of all that was seen and of fresh samples."""
        copy_variables(self.best_network, self.network)
        episodes, makespan_s = self.rollout(seed, (1 << 16) - 1)
        self._keep_best(episodes, makespan_s)
        self._require_memory(episodes)
        return [(float(makespan_s[rows.start]), best) for rows, best in zip(self._rows_by_graph(), self.best, strict=True)]

    def _rows_by_graph(self) -> list[slice]:
        each = self.rows + 1
        return [slice(g * each, (g + 1) * each) for g in range(len(self.graphs))]

    def _assignments(self, arrays: GraphArrays, episodes: Episodes, rows: slice) -> list[Assignment]:
        device, order = arrays.to_devices(episodes.order[rows], episodes.device[rows])
        return [Assignment(d, o, "policy") for d, o in zip(device, order, strict=True)]

    def _require_memory(self, episodes: Episodes) -> None:
        """Raises DeadlockError for a graph of which no episode has ever fitted in memory."""
        for rows, arrays, best in zip(self._rows_by_graph(), self.arrays, self.best, strict=True):
            if not np.isfinite(best.makespan_s):
                Simulator().execute(arrays.graph, arrays.costs, self._assignments(arrays, episodes, rows)[0])

    def _keep_best(self, episodes: Episodes, makespan_s: np.ndarray, greedy: bool = True) -> None:
        """Remembers better episodes, and the policy itself where its greedy episodes are better than any policy's before."""
        for g, rows in enumerate(self._rows_by_graph()):
            b = rows.start + int(np.argmin(makespan_s[rows]))
            if makespan_s[b] < self.best[g].makespan_s:
                record = Episodes(*(value[b:b + 1] for value in episodes))
                self.best[g] = Best(float(makespan_s[b]), episodes.order[b].numpy(), episodes.device[b].numpy(), record)
                self._elite = None
        if greedy:
            now = [float(makespan_s[rows.start]) for rows in self._rows_by_graph()]
            units = [bound or 1.0 for bound in self.bounds_s]
            if sum(s / u for s, u in zip(now, units, strict=True)) < sum(s / u for s, u in zip(self.greedy_s, units, strict=True)):
                self.greedy_s = now
                copy_variables(self.network, self.best_network)

    def _reinforce(self, episodes: Episodes, seconds: np.ndarray, counts: np.ndarray, entropy: float,
                   elite: float) -> UpdateInfo:
        if self._elite is None and all(np.isfinite(best.makespan_s) for best in self.best):
            records = [best.record or self._replayed(g, best) for g, best in enumerate(self.best)]
            self._elite = Episodes(*(tf.concat(column, axis=0) for column in zip(*records, strict=True)))
        if self._elite is None:  # a graph has no episode yet that is worth imitating
            elite = 0.0
        best = self._elite or Episodes(*(value[:len(self.graphs)] for value in episodes))
        scale = np.repeat([a.scale_s for a in self.arrays], self.rows + 1)
        return self.agent.reinforce(episodes, tf.constant(-seconds / scale, tf.float32), tf.constant(counts, tf.float32),
                                    tf.constant(entropy, tf.float32), best, tf.constant(elite, tf.float32))

    def _replayed(self, g: int, best: Best) -> Episodes:
        order, device = (tf.constant(column[None]) for column in (best.order, best.device))
        return self.driver.replay(self.batch, tf.constant([g]), order, device)

    def _report(self, makespan_s: np.ndarray, info: UpdateInfo, extra: dict[str, float]) -> dict[str, dict[str, float]]:
        report = {}
        for g, rows in enumerate(self._rows_by_graph()):
            greedy = float(makespan_s[rows.start])
            report[self.graphs[g].name] = {
                summaries.GREEDY: greedy, summaries.SAMPLED: float(makespan_s[rows][1:].mean()), summaries.BEST: self.best[g].makespan_s,
                summaries.OVER_BOUND: greedy / self.bounds_s[g] - 1 if self.bounds_s[g] else 0.0, **_scalars(info), **extra}
        return report


def measure(executor: Executor, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> float:
    """Seconds of one run; NaN if it failed (a failed run must not stop training; one that was cancelled must)."""
    try:
        return executor.execute(graph, costs, assignment).makespan_s
    except CancelledError:
        raise
    except DopplerError:
        return np.nan


def copy_variables(source: DualNetwork, target: DualNetwork) -> None:
    """Gives `target` the weights of `source`."""
    for a, b in zip(source.trainable_variables, target.trainable_variables, strict=True):
        b.assign(a)


def _scalars(info: UpdateInfo) -> dict[str, float]:
    tags = (summaries.LOSS, summaries.SEL_ENTROPY, summaries.PLC_ENTROPY, summaries.SEL_GRADIENT, summaries.PLC_GRADIENT)
    return {tag: float(value) for tag, value in zip(tags, info, strict=True)}
