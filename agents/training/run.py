"""A training run from start to end: teacher dataset, the three stages, checkpoints, resuming, the outcome."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import numpy as np
import tensorflow as tf

from agents.checkpoints import checkpoint_folders, open_run, read_state, restore_variables, save_checkpoint
from agents.config import TrainConfig
from agents.deterministic import deterministic_operations
from agents.training import summaries
from agents.training.annealed import learn_annealed
from agents.training.imitation import ImitationStage
from agents.training.learner import KeptLearner
from agents.training.measuring import Executors
from agents.training.progress import bar, status
from agents.training.real import RealStage
from agents.training.shards import Workers
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.summaries import Summaries
from agents.training.task import Episode, Task
from doppler_tf.errors import CheckpointError, ConfigError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import file_name, held, write_json
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.heuristics.judging import judge
from doppler_tf.heuristics.problem import Problem
from doppler_tf.offload.planning import fitted
from doppler_tf.report.gantt import gantt_png
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.simulator import Simulator

_PICTURES, _MOST_DRAWN = 4, 5_000  # a stage; vertices, as more of them take minutes and show nothing
_NO_EFFECT = ("checkpoint_every", "keep")  # settings without effect on the outcome
Update = Callable[[int], dict[str, dict[str, float]]]


@dataclass
class Progress:
    """The progress of a run; only `Run` changes it, and every checkpoint holds it.

    Attributes:
      updates: number of finished updates of all stages; seconds: their duration.
      annealed: the annealed teacher's simulations by graph, once there is one.
      measured: the choice of stage III, once it is made (see `RealStage.choose`).
    """

    updates: int = 0
    seconds: float = 0.0
    annealed: list[int] = field(default_factory=list)
    measured: dict[str, dict] | None = None


def train(graphs: Sequence[DataflowGraph], topology: Topology, run_dir: str | Path, config: TrainConfig | None = None,
          executor: Executors | None = None, resume: bool = False, progress: bool = True, init: str | Path | None = None,
          pictures: bool = True, kept: KeptLearner | None = None, workers: Workers | None = None) -> dict[str, dict]:
    """Trains the two policies on `graphs` through the three stages and writes a run folder.

    Args:
      graphs: one or more, of different names.
      executor: of stage III; needed if `config.real` > 0. Of two, the first one measures what policies learn from, vertex by vertex, and
        the second one runs the candidates of the choice, as they shall run later.
      resume: go on from the last complete checkpoint of `run_dir`, with the settings stored there.
      progress: show progress bars on stderr.
      init: a run folder or checkpoint, of any graphs and devices, whose best policies are where learning starts.
      pictures: write Gantt pictures of greedy episodes for TensorBoard during training, about half a second each (for graphs of up to
        5,000 vertices).
      kept: keeps compiled functions from one training to the next.
      workers: processes that share the work of stage II; None: this process does it.

    Returns:
      By graph name: `greedy_makespan_s` (infinite where it does not fit in memory and there is no host; null in result.json) and
      `best_makespan_s` (simulated with the costs of `topology`), `best_method` (`policy`, `policy, climbed`, `policy, annealed`, or what
      runs preferred), `lower_bound_s`, `episodes`, `search_simulations` (of an annealed teacher and of climbs), `seconds` (of all
      updates), and after stage III `measured` (see `RealStage.choose`).

    Raises:
      ConfigError, CheckpointError: the run folder is in use, or made for something else.
      KeyboardInterrupt: with the last checkpoint's name.
    """
    run_dir, config = Path(run_dir), config or TrainConfig()
    if config.real and executor is None:
        raise ConfigError(f"train: executor: expected one for {config.real} episodes of stage III, got none; pass one or set real to 0")
    _check_graphs(graphs)
    costs = [build_costs(graph, topology) for graph in graphs]
    with held(run_dir, "run folder"):
        config = open_run(run_dir, graphs, costs, config, resume)
        # Equal seeds must give equal runs, so that a resumed run ends like an uninterrupted one.
        task = Task.of(graphs, costs, config)
        with deterministic_operations(), (kept or KeptLearner()).lent(task) as learner:
            run = Run(run_dir, Training.of(task, learner), executor, pictures, workers)
            if resume:
                run.restore()
            elif init is not None:
                learner.start_from(init, config)
                run.save()  # what goes on after an interruption begins with them, too
            try:
                run.complete(progress)
            except KeyboardInterrupt:
                last = next((path.name for path in reversed(checkpoint_folders(run_dir / "checkpoints"))), "none yet")
                raise KeyboardInterrupt(f"{run_dir}: the last checkpoint is {last}; go on with --resume") from None
            return run.outcome()


def _check_graphs(graphs: Sequence[DataflowGraph]) -> None:
    """At least one graph, and names that differ as file names too."""
    if isinstance(graphs, DataflowGraph) or not graphs:
        raise ConfigError(f"train: graphs: expected a list of at least one graph, got {type(graphs).__name__}; pass [graph]")
    names = [file_name(graph.name) for graph in graphs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"train: graphs: expected different names, got {name!r} twice; rename one")


class Run:
    """One run in its folder: makes the remaining updates, and saves and restores its state."""

    def __init__(self, folder: Path, training: Training, executor: Executors | None, pictures: bool, workers: Workers | None):
        self.folder, self.training, self.pictures, self.workers = folder, training, pictures, workers
        self.task, self.config = training.task, training.task.config
        self.progress = Progress()
        self.summaries = Summaries(folder / "train")
        self.planned = {stage: -(-getattr(self.config, stage) // self.task.rows) for stage in ("imitation", "simulated")}
        self.real = RealStage(training, executor, self.planned["simulated"]) if self.config.real else None

    def complete(self, bars: bool) -> None:
        """Makes the remaining updates; bars: show progress bars."""
        with self._writing():
            self.summaries.record(summaries.CONFIG_TEXT, self.config.to_json())
            self.summaries.table_of_graphs(self.task.graphs, self.task.costs, self.task.bounds_s)
        first = 0
        for stage, total in self.planned.items():
            begin = max(self.progress.updates - first, 0)
            if begin < total:
                self._stage(stage, begin, total, first, self._update_of(stage), bars)
            first += total
        if self.real is not None and self.progress.measured is None:
            self._real(self.real, first, bars)
        if self.progress.updates == 0:
            self.save()  # no updates were asked for; what there is can still place
        with self._writing():
            self.summaries.flush()

    def _stage(self, stage: str, begin: int, total: int, first: int, update: Update, bars: bool) -> None:
        with bar(stage, begin, total, self.task.rows, bars) as advance:
            for step in range(begin, total):
                report = self._timed(stage, first + step + 1, lambda step=step: update(step))
                advance(step + 1, status(report))
                if self.pictures and (step + 1) * _PICTURES // total > step * _PICTURES // total:
                    self._draw(stage)
                if self.progress.updates % self.config.checkpoint_every == 0 or step + 1 == total:
                    self.save()

    def _real(self, stage: RealStage, first: int, bars: bool) -> None:
        """Stage III: rounds while the budget lasts, then the choice. A checkpoint follows each round, as its runs cannot be repeated."""
        done = self.progress
        if done.updates == first:  # what is best without measuring, to compare with
            for g, best in enumerate(self.training.best.episodes):
                if np.isfinite(best.makespan_s):
                    self._write(g, best, ".simulated.json")
        stage.begin(done.updates - first)
        with bar("real", stage.budget.used, stage.budget.runs, 1, bars) as advance:
            while stage.runs:
                report = self._timed("real", done.updates + 1, lambda: stage.round(done.updates - first))
                advance(stage.budget.used, status(report))
                self.save()
            started = time.perf_counter()
            done.measured = stage.choose()
            done.seconds += time.perf_counter() - started
            advance(stage.budget.used, "chosen")
        self.summaries.record(summaries.REAL_TEXT, done.measured)
        if self.pictures:
            self._draw("real")
        self.save()

    def _draw(self, stage: str) -> None:
        """The greedy episode of each graph, as a picture."""
        for g, best in enumerate(self.training.greedy(self.training.learner.network)):
            graph, costs = self.task.graphs[g], self.task.costs[g]
            if np.isfinite(best.makespan_s) and graph.work_vertices.size <= _MOST_DRAWN:
                trace = Simulator().execute(graph, costs, self.task.assignment(g, best))
                png = gantt_png(graph, costs, trace, self.task.bounds_s[g], "policy, greedy", card=True)
                self.summaries.picture(stage, file_name(graph.name), self.progress.updates, png, device_utilisation(costs, trace))

    def _timed(self, stage: str, done: int, update: Callable[[], dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
        """Makes one update, after which `done` are finished, and writes its scalars."""
        started = time.perf_counter()
        report = update()
        self.progress.updates = done
        self.progress.seconds += time.perf_counter() - started
        with self._writing():
            for graph, scalars in report.items():
                self.summaries.write(stage, file_name(graph), done, scalars)
        return report

    def _update_of(self, stage: str) -> Update:
        """The update function of a stage, whose preparation is done here."""
        if stage == "imitation":
            return ImitationStage(self.training, self.folder / "dataset", anew=self.progress.updates == 0).update
        if self.config.teacher == "annealing" and not self.progress.annealed:
            started = time.perf_counter()
            self.progress.annealed = learn_annealed(self.training)
            self.progress.seconds += time.perf_counter() - started
        simulated, total = SimulatedStage(self.training, self.workers), self.planned[stage]
        return lambda step: simulated.update(step, step / total)

    def save(self) -> None:
        """Writes a checkpoint with everything that the next update depends on."""
        best = [{"makespan_s": _finite(b.makespan_s), "order": b.order.tolist(), "device": b.device.tolist(), "method": b.method}
                for b in self.training.best.episodes]
        real = self.real and {"used": self.real.budget.used, "spent_s": self.real.budget.spent_s, "measured": self.progress.measured,
                              "runs": [[m.runs, m.failed] for m in self.real.measured]}
        order = self.training.elite.order
        state = {"seconds": self.progress.seconds, "best": best, "greedy_s": [_finite(s) for s in self.training.best.greedy_s],
                 "real": real, "annealed": self.progress.annealed, "climbed": self.training.climbed,
                 "elite_order": None if order is None else order.tolist()}
        with self._writing():
            save_checkpoint(self.folder / "checkpoints", self.progress.updates, self.training.learner.checkpointed, state, self.config.keep)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises CheckpointError where the run's folder cannot be written, as if a disk is full."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            reason = re.sub(r"\{\{.*?\}\} ", "", getattr(error, "strerror", None) or str(error)).splitlines()[0]
            raise CheckpointError(f"{self.folder}: expected room for checkpoints and summaries, got: {reason}; make room there, and go on "
                                  "with --resume") from None

    def restore(self) -> None:
        """Restores the last complete checkpoint; a run without one starts from the beginning."""
        folders = checkpoint_folders(self.folder / "checkpoints")
        if not folders:
            return
        state, best = read_state(folders[-1]), self.training.best
        restore_variables(folders[-1], self.training.learner.checkpointed)
        self.progress = Progress(state["step"], state["seconds"], state["annealed"], state["real"] and state["real"]["measured"])
        self.training.climbed[:] = state.get("climbed", self.training.climbed)  # runs of before have none
        if self.real:
            self.real.budget.resume(state["real"]["used"], state["real"]["spent_s"])
            for measured, (runs, failed) in zip(self.real.measured, state["real"]["runs"], strict=True):
                measured.runs, measured.failed = runs, failed
        best.greedy_s = [np.inf if s is None else s for s in state["greedy_s"]]
        best.episodes = [Episode(np.inf if b["makespan_s"] is None else b["makespan_s"], np.array(b["order"], np.int32),
                                 np.array(b["device"], np.int32), b.get("method", "policy")) for b in state["best"]]
        if state["elite_order"] is not None:
            self.training.elite.order = np.array(state["elite_order"], np.int32)

    def _write(self, g: int, best: Episode, ending: str) -> float:
        """Writes an assignment of graph g, under `auto` with its fastest rule unless runs have chosen it; returns its simulated seconds."""
        graph, makespan_s, assignment = self.task.graphs[g], best.makespan_s, self.task.assignment(g, best)
        if self.config.dispatch == AUTO and self.progress.measured is None:
            makespan_s, assignment = judge(Problem(graph, self.task.costs[g], AUTO), [assignment])[0]
        makespan_s, assignment = self._fitted(g, makespan_s, assignment)
        path = self.folder / "assignments" / f"{file_name(graph.name)}{ending}"
        write_assignment(path, graph, self.task.given[g], assignment, makespan_s)
        return makespan_s

    def _fitted(self, g: int, makespan_s: float, assignment: Assignment) -> tuple[float, Assignment]:
        """An assignment of graph g within the limits of memory that the task has left to the host."""
        costs = self.task.given[g]
        if costs is self.task.costs[g]:
            return makespan_s, assignment
        return fitted(Problem(self.task.graphs[g], costs, assignment.dispatch), makespan_s, assignment)

    def outcome(self) -> dict[str, dict]:
        """Writes the best assignment of each graph; returns the figures."""
        result, chosen = {}, self.progress.measured or {}
        searched = [sum(both) for both in zip_longest(self.progress.annealed, self.training.climbed, fillvalue=0)]
        learned = sum(self.planned.values()) * self.task.rows
        for g, greedy in enumerate(self.training.final(self.progress.measured is not None)):
            name, best = self.task.graphs[g].name, self.training.best.episodes[g]
            greedy_s, _ = self._fitted(g, greedy.makespan_s, self.task.assignment(g, greedy))
            best_s = self._write(g, best, ".json")
            result[name] = {"greedy_makespan_s": greedy_s, "best_makespan_s": best_s, "best_method": best.method,
                            "lower_bound_s": self.task.bounds_s[g],
                            "episodes": learned + (chosen[name]["runs"] if name in chosen else 0),
                            "search_simulations": searched[g], "seconds": round(self.progress.seconds, 3),
                            **({"measured": chosen[name]} if name in chosen else {})}
        if self.pictures:
            self.summaries.policy(self.training.driver.computation())
        over = [[row[f"{which}_makespan_s"] / (row["lower_bound_s"] or 1.0) - 1 for row in result.values()] for which in ("greedy", "best")]
        settings = {name: value for name, value in self.config.to_json().items() if name not in _NO_EFFECT}
        self.summaries.outcome(settings, {summaries.OUTCOME_GREEDY: np.mean(over[0]), summaries.OUTCOME_BEST: np.mean(over[1]),
                                          summaries.OUTCOME_SECONDS: self.progress.seconds})
        self.summaries.flush()
        stored = {name: {**row, "greedy_makespan_s": _finite(row["greedy_makespan_s"])} for name, row in result.items()}
        write_json(self.folder / "result.json", {"graphs": stored}, indent=1)
        return result


def _finite(seconds: float) -> float | None:
    return seconds if np.isfinite(seconds) else None
