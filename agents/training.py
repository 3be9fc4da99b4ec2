"""A training run from start to end: teacher dataset, the three stages, checkpoints, resuming, the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from agents import summaries
from agents.checkpoints import checkpoint_folders, read_state, restore_variables, save_checkpoint
from agents.config import TrainConfig
from agents.progress import bar, status
from agents.random_numbers import deterministic_operations
from agents.real import RealStage
from agents.reuse import learner_for
from agents.run_folder import open_run
from agents.stages import STAGES, Best, Learner
from agents.summaries import Summaries
from data.imitation_dataset import read_episodes, write_episodes
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import ConfigError
from doppler_tf.executor import Executor
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import file_name, held, write_json
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import CriticalPath
from doppler_tf.report.gantt import gantt_png
from doppler_tf.report.utilisation import device_utilisation
from doppler_tf.simulator import Simulator
from doppler_tf.topology import Topology

_PICTURES, _MOST_DRAWN = 4, 5_000  # a stage; vertices, as more of them take minutes and show nothing
_NO_MATTER = ("checkpoint_every", "keep")  # settings on which no outcome depends
Update = Callable[[int], dict[str, dict[str, float]]]


def train(graphs: Sequence[DataflowGraph], topology: Topology, run_dir: str | Path, config: TrainConfig | None = None,
          executor: Executor | None = None, resume: bool = False, progress: bool = True, init: str | Path | None = None,
          pictures: bool = True) -> dict[str, dict]:
    """Trains the two policies on `graphs` through the three stages and leaves a run folder; keeps what it compiled in memory for the next.

    Args:
      graphs: one or more, of different names.
      executor: what stage III runs on; needed where `config.real` > 0.
      resume: go on from the last complete checkpoint of `run_dir`, with the settings stored there.
      progress: show progress bars on stderr.
      init: a run folder or checkpoint, of any graphs and devices, whose best policies are where learning starts.
      pictures: show TensorBoard how greedy episodes look as training goes on, which takes about half a second each (of graphs
        of up to 5,000 vertices).

    Returns:
      By graph name: `greedy_makespan_s` and `best_makespan_s` (simulated with the costs of `topology`), `lower_bound_s`, `episodes`,
      `seconds`, with an annealed teacher `annealing_simulations`, and after stage III `measured` (see `RealStage.choose`).

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
        return _train(run_dir, graphs, costs, open_run(run_dir, graphs, costs, config, resume), executor, resume, progress, init, pictures)


def _train(run_dir: Path, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig, executor: Executor | None,
           resume: bool, progress: bool, init: str | Path | None, pictures: bool) -> dict[str, dict]:
    # Equal seeds must give equal runs, so that a resumed run ends like an uninterrupted one.
    with deterministic_operations(), learner_for(graphs, costs, config) as learner:
        run = _Run(run_dir, learner, executor, pictures)
        if resume:
            run.restore()
        elif init is not None:
            learner.start_from(init)
            run.save()  # what goes on after an interruption begins with them, too
        try:
            run.complete(progress)
        except KeyboardInterrupt:
            kept = next((path.name for path in reversed(checkpoint_folders(run_dir / "checkpoints"))), "none yet")
            raise KeyboardInterrupt(f"{run_dir}: the last checkpoint is {kept}; go on with --resume") from None
        return run.outcome()


def _check_graphs(graphs: Sequence[DataflowGraph]) -> None:
    """At least one graph, and names that differ as file names too."""
    if isinstance(graphs, DataflowGraph) or not graphs:
        raise ConfigError(f"train: graphs: expected a list of at least one graph, got {type(graphs).__name__}; pass [graph]")
    names = [file_name(graph.name) for graph in graphs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"train: graphs: expected different names, got {name!r} twice; rename one")


class _Run:
    """One run: what is done so far, and how to do the rest."""

    def __init__(self, folder: Path, learner: Learner, executor: Executor | None, pictures: bool):
        self.folder, self.learner, self.pictures = folder, learner, pictures
        self.config = learner.config
        self.done = 0
        self.seconds = 0.0
        self.summaries = Summaries(folder / "train")
        self.updates = {stage: -(-getattr(self.config, stage) // learner.rows) for stage in STAGES[:2]}
        self.real = RealStage(learner, executor, self.config, self.updates["simulated"]) if self.config.real else None
        self.annealed: list[int] = []  # the annealed teacher's simulations by graph, once there is one
        self.measured: dict[str, dict] | None = None  # what stage III has chosen, once it has

    def complete(self, progress: bool) -> None:
        """Does every update that is not done yet."""
        self.learner.agent.set_learning_rate(self.config.learning_rate)
        self.summaries.record(summaries.CONFIG_TEXT, self.config.to_json())
        self.summaries.table_of_graphs(self.learner.graphs, self.learner.costs, self.learner.bounds_s)
        first = 0
        for stage, update in zip(STAGES, (self._imitation, self._simulated), strict=False):
            total = self.updates[stage]
            begin = max(self.done - first, 0)
            if begin < total:
                self._stage(stage, begin, total, first, update(), progress)
            first += total
        if self.real is not None and self.measured is None:
            self._real(self.real, first, progress)
        if self.done == 0:
            self.save()  # no updates were asked for; what there is can still place
        self.summaries.flush()

    def _stage(self, stage: str, begin: int, total: int, first: int, update: Update, progress: bool) -> None:
        with bar(stage, begin, total, self.learner.rows, progress) as advance:
            for step in range(begin, total):
                report = self._timed(stage, first + step + 1, lambda step=step: update(step))
                advance(step + 1, status(report))
                if self.pictures and (step + 1) * _PICTURES // total > step * _PICTURES // total:
                    self._draw(stage)
                if self.done % self.config.checkpoint_every == 0 or step + 1 == total:
                    self.save()

    def _real(self, stage: RealStage, first: int, progress: bool) -> None:
        """Stage III: rounds while the budget lasts, each followed by a checkpoint, as its runs cannot be had again; then the choice."""
        if self.done == first:  # what is best without measuring, to compare with
            for g, best in enumerate(self.learner.best):
                if np.isfinite(best.makespan_s):
                    self._write(g, best, ".simulated.json")
        stage.begin(self.done - first)
        with bar("real", stage.budget.used, stage.budget.runs, 1, progress) as advance:
            while stage.batch:
                report = self._timed("real", self.done + 1, lambda: stage.round(self.done - first))
                advance(stage.budget.used, status(report))
                self.save()
            started = time.perf_counter()
            self.measured = stage.choose()
            self.seconds += time.perf_counter() - started
            advance(stage.budget.used, "chosen")
        self.summaries.record(summaries.REAL_TEXT, self.measured)
        if self.pictures:
            self._draw("real")
        self.save()

    def _draw(self, stage: str) -> None:
        """The greedy episode of each graph, as a picture."""
        for g, best in enumerate(self.learner.greedy(self.learner.network)):
            graph, costs = self.learner.graphs[g], self.learner.costs[g]
            if np.isfinite(best.makespan_s) and graph.work_vertices.size <= _MOST_DRAWN:
                trace = Simulator().execute(graph, costs, self.learner.assignment(g, best))
                png = gantt_png(graph, costs, trace, self.learner.bounds_s[g], "policy, greedy", card=True)
                self.summaries.picture(stage, file_name(graph.name), self.done, png, device_utilisation(costs, trace))

    def _timed(self, stage: str, done: int, update: Callable[[], dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
        """Makes the update after which `done` are done, and writes down what it reports."""
        started = time.perf_counter()
        report = update()
        self.done = done
        self.seconds += time.perf_counter() - started
        for graph, scalars in report.items():
            self.summaries.write(stage, file_name(graph), done, scalars)
        return report

    def _imitation(self) -> Update:
        teacher = [self._teacher_dataset(g) for g in range(len(self.learner.graphs))]
        rows = self.learner.rows

        def update(step: int) -> dict[str, dict[str, float]]:
            # One more than is learned from, as a batch has a greedy episode.
            picked = [np.arange(step * rows - 1, (step + 1) * rows) % len(orders) for orders, _ in teacher]
            episodes = self.learner.teacher_episodes([orders[p] for (orders, _), p in zip(teacher, picked, strict=True)],
                                                     [devices[p] for (_, devices), p in zip(teacher, picked, strict=True)])
            return self.learner.imitate(episodes)

        return update

    def _simulated(self) -> Update:
        total = self.updates["simulated"]
        if self.config.teacher == "annealing" and not self.annealed:
            self._timed("simulated", self.done, self._anneal)
        return lambda step: self.learner.simulate(self.config.seed, step, step / total)

    def _anneal(self) -> dict[str, dict[str, float]]:
        self.annealed = self.learner.anneal()
        return {}

    def _teacher_dataset(self, g: int) -> tuple[np.ndarray, np.ndarray]:
        """int32 [n, M] orders and devices of the teacher's episodes for graph g, from the dataset on disk, written if it is not there."""
        graph, costs = self.learner.graphs[g], self.learner.costs[g]
        folder = self.folder / "dataset" / f"{g}-{graph.graph_hash[:12]}"
        hashes = graph.graph_hash, costs.topology.topology_hash
        if self.done == 0 or not (folder / "dataset.json").exists():
            teacher, rng = CriticalPath(graph, costs), np.random.default_rng(self.config.seed)
            drawn = (teacher.sample(rng) for _ in range(self.config.imitation))
            write_episodes(folder, *hashes, costs.num_devices, ((a.order, a.device[a.order]) for a in drawn))
        rows = list(read_episodes(folder, *hashes).as_numpy_iterator())
        return np.stack([order for order, _ in rows]), np.stack([device for _, device in rows])

    def save(self) -> None:
        """Writes a checkpoint of all that the next update depends on."""
        best = [{"makespan_s": _finite(b.makespan_s), "order": b.order.tolist(), "device": b.device.tolist(), "method": b.method}
                for b in self.learner.best]
        real = self.real and {"used": self.real.budget.used, "spent_s": self.real.budget.spent_s, "measured": self.measured,
                              "runs": [[m.runs, m.failed] for m in self.real.measured]}
        order = self.learner.elite_order
        state = {"seconds": self.seconds, "best": best, "greedy_s": [_finite(s) for s in self.learner.greedy_s], "real": real,
                 "annealed": self.annealed, "elite_order": None if order is None else order.tolist()}
        save_checkpoint(self.folder / "checkpoints", self.done, self.learner.checkpointed, state, self.config.keep)

    def restore(self) -> None:
        """Takes up the last complete checkpoint; a run that never wrote one starts anew."""
        folders = checkpoint_folders(self.folder / "checkpoints")
        if not folders:
            return
        state = read_state(folders[-1])
        restore_variables(folders[-1], self.learner.checkpointed)
        self.done, self.seconds, self.annealed = state["step"], state["seconds"], state["annealed"]
        if self.real:
            self.real.budget.resume(state["real"]["used"], state["real"]["spent_s"])
            self.measured = state["real"]["measured"]
            for measured, (runs, failed) in zip(self.real.measured, state["real"]["runs"], strict=True):
                measured.runs, measured.failed = runs, failed
        self.learner.greedy_s = [np.inf if s is None else s for s in state["greedy_s"]]
        self.learner.best = [Best(np.inf if b["makespan_s"] is None else b["makespan_s"], np.array(b["order"], np.int32),
                                  np.array(b["device"], np.int32), b.get("method", "policy")) for b in state["best"]]
        if state["elite_order"] is not None:
            self.learner.elite_order = np.array(state["elite_order"], np.int32)

    def _write(self, g: int, best: Best, ending: str) -> None:
        """Writes an assignment of graph g."""
        graph = self.learner.graphs[g]
        write_assignment(self.folder / "assignments" / f"{file_name(graph.name)}{ending}", graph, self.learner.costs[g],
                         self.learner.assignment(g, best), best.makespan_s)

    def outcome(self) -> dict[str, dict]:
        """Writes the best assignment of each graph; returns the figures."""
        result = {}
        learned = sum(self.updates.values()) * self.learner.rows
        for g, (greedy_s, best) in enumerate(self.learner.final(self.config.seed, self.measured is not None)):
            graph, measured = self.learner.graphs[g], (self.measured or {}).get(self.learner.graphs[g].name)
            self._write(g, best, ".json")
            result[graph.name] = {"greedy_makespan_s": greedy_s, "best_makespan_s": best.makespan_s,
                                  "lower_bound_s": self.learner.bounds_s[g],
                                  "episodes": learned + (measured["runs"] if measured else 0), "seconds": round(self.seconds, 3),
                                  **({"annealing_simulations": self.annealed[g]} if self.annealed else {}),
                                  **({"measured": measured} if measured else {})}
        if self.pictures:
            self.summaries.policy(self.learner.computation())
        over = [[row[f"{which}_makespan_s"] / (row["lower_bound_s"] or 1.0) - 1 for row in result.values()] for which in ("greedy", "best")]
        settings = {name: value for name, value in self.config.to_json().items() if name not in _NO_MATTER}
        self.summaries.outcome(settings, {summaries.OUTCOME_GREEDY: np.mean(over[0]), summaries.OUTCOME_BEST: np.mean(over[1]),
                                          summaries.OUTCOME_SECONDS: self.seconds})
        self.summaries.flush()
        write_json(self.folder / "result.json", {"graphs": result}, indent=1)
        return result


def _finite(seconds: float) -> float | None:
    return seconds if np.isfinite(seconds) else None
