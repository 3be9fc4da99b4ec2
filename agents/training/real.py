"""Stage III: runs on an executor correct the costs, the policies learn with these, and repeated runs choose the kept policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tf_agents.trajectories import Trajectory

from agents.policies.trajectories import seconds_of
from agents.training import summaries
from agents.training.measuring import Executors, Measured, RunBudget
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.task import Episode
from doppler_tf.fastsim import FastSimulator
from doppler_tf.finalists import Choice, baselines, choose, clearly_faster, median_s
from doppler_tf.heuristics import Problem

# The share of the budget for the choice; the rest is for learning.
_CHOOSING = 0.3
# Candidates of the choice: the baselines, the greedy assignments of both policies, and others up to so many, if each can be run about
# 4 times.
_CANDIDATES, _EACH = 16, 4
_BEFORE, _AFTER = "greedy before", "greedy"


class RealStage:
    """`begin`, rounds of measuring and learning (`round`), then the choice (`choose`).

    A round runs the greedy episode and the most promising sampled ones, and refits the costs to all runs. One update learns from the batch,
    with measured seconds where there are any, otherwise with simulated ones. Then `real_updates` updates follow in the simulator of the
    refitted costs. The policies' features keep the caller's costs, as later requests have these.
    """

    def __init__(self, training: Training, executor: Executors, first_step: int):
        """Args: executor: as `train`'s; first_step: number of the random numbers, as in `SimulatedStage.update`."""
        executor, self._chooser = executor if isinstance(executor, tuple) else (executor, None)
        self._training, self._simulated, self._first_step = training, SimulatedStage(training), first_step
        task, config = training.task, training.task.config
        self.budget = RunBudget(config.real * len(task.graphs), config.real_minutes)
        self.measured = [Measured(g, c, executor, self.budget) for g, c in zip(task.graphs, task.costs, strict=True)]
        self._given = [FastSimulator(g, c, task.config.rule) for g, c in zip(task.graphs, task.costs, strict=True)]
        self._pool: list[list[Episode]] = [[] for _ in task.graphs]
        self._earlier: list[Episode] = []  # the best of stage II, unless the stage is resumed

    def begin(self, number: int) -> None:
        """Starts the clock, before round `number`; the first begins from the best policy of stage II."""
        self.budget.start()
        if number == 0:
            learner = self._training.learner
            learner.copy(learner.best_network, learner.network)
            learner.copy(learner.best_network, learner.earlier_network)
            self._earlier = list(self._training.best.episodes)

    @property
    def runs(self) -> int:
        """Runs of each graph in the next round; 0 when it is time to choose."""
        left = self.budget.left(1 - _CHOOSING) // len(self.measured)
        return min(left, self._training.task.config.real_batch, self._training.task.rows + 1)

    def round(self, number: int) -> dict[str, dict[str, float]]:
        """One round, where `runs` is not 0; returns scalars by graph name."""
        training, real_updates = self._training, self._training.task.config.real_updates
        step = self._first_step + number * (1 + real_updates)
        simulated = training.driver.run((training.task.config.seed, step))
        measured_s = self._run_promising(simulated)
        training.judge_by([measured.believed_costs() for measured in self.measured])
        refitted = training.driver.judged(simulated)
        self._keep_promising(refitted, measured_s)
        training.best(refitted)
        progress = min(self.budget.share / (1 - _CHOOSING), 1.0)
        mixed = training.driver.judged(simulated, self._mixed_s(seconds_of(refitted), measured_s))
        report = self._simulated.learn(mixed, progress)
        for i in range(1, real_updates + 1):
            report = self._simulated.update(step + i, progress)
        return {name: {**scalars, **self._compared(g, simulated, measured_s)} for g, (name, scalars) in enumerate(report.items())}

    def choose(self) -> dict[str, dict]:
        """Runs the candidates against each other, and keeps the policy and the assignments that win.

        The policy of stage III must win by more than twice the standard error of the difference, otherwise that of stage II stays. The
        baselines (`finalists.baselines`) are run as often as the policies, so that no kept assignment measures slower than they do.

        Returns:
          By graph name the medians `before_s` (greedy, the policy before stage III), `greedy_s` (the kept policy) and `best_s` (the kept
          assignment), None where no run succeeded; the numbers of runs that each is based on; `method`, what made the kept assignment;
          `baselines`, of each `median_s` and `runs`; all `runs`, those that `failed`, and how the last of them did.
        """
        task, learner, best = self._training.task, self._training.learner, self._training.best
        finals = [self._finals(g) for g in range(len(self.measured))]
        units = [bound or 1.0 for bound in task.bounds_s]
        before, after = ([np.divide(each.seconds(role), unit) for each, unit in zip(finals, units, strict=True)]
                         for role in (_BEFORE, _AFTER))
        better = clearly_faster(before, after)
        if not better:
            learner.copy(learner.earlier_network, learner.best_network)
        found = {}
        for g, (graph, measured, each) in enumerate(zip(task.graphs, self.measured, finals, strict=True)):
            if each.choice.chosen is not None:
                best.episodes[g] = each.candidates[each.choice.chosen]
            else:  # nothing is known that would speak for another than before
                best.episodes[g] = self._earlier[g] if self._earlier else each.candidates[each.name_of[_BEFORE]]
            chosen_s = () if each.choice.chosen is None else each.choice.finalists[each.choice.chosen].seconds
            kept = {"before": each.seconds(_BEFORE), "greedy": each.seconds(_AFTER if better else _BEFORE), "best": chosen_s}
            tried = {name: each.seconds(name) for name in each.name_of if name not in (_BEFORE, _AFTER)}
            found[graph.name] = {**{f"{key}_s": _median(runs) for key, runs in kept.items()},
                                 **{f"{key}_runs": len(runs) for key, runs in kept.items()}, "method": best.episodes[g].method,
                                 "baselines": {name: {"median_s": _median(runs), "runs": len(runs)} for name, runs in tried.items()},
                                 "runs": measured.runs, "failed": measured.failed, "last_error": measured.last_error}
        self._training.judge_by(task.costs)
        return found

    def _finals(self, g: int) -> _Finals:
        """Runs the candidates of graph g on its part of what is left of the budget."""
        measured, runs = self.measured[g], self.budget.left() // (len(self.measured) - g)
        candidates, name_of = self._candidates(g, runs // _EACH)
        assignments = {name: self._training.task.assignment(g, episode) for name, episode in candidates.items()}

        def run(name: str) -> float:
            """NaN also where there was no time left for it."""
            return measured.run(assignments[name], self._chooser) if self.budget.left() else np.nan

        always = list(dict.fromkeys(name_of.values()))
        return _Finals(candidates, name_of, choose({name: c.makespan_s for name, c in candidates.items()}, always, runs, run))

    def _run_promising(self, experience: Trajectory) -> np.ndarray:
        """float64 [B]: measured seconds of the greedy episode and the best sampled ones by simulation, NaN elsewhere.

        Each distinct assignment is run once, then again while the round has runs left.
        """
        task, runs, simulated_s, picked = self._training.task, self.runs, seconds_of(experience), []
        order, device = experience.action["vertex"].numpy(), experience.action["device"].numpy()
        for g, rows in enumerate(task.rows_by_graph):
            ranked = np.concatenate([[0], 1 + np.argsort(simulated_s[rows][1:], kind="stable")])
            ranked = ranked[np.isfinite(simulated_s[rows][ranked]) | (ranked == 0)]
            ranked = ranked[task.different(g, order[rows][ranked], device[rows][ranked])]
            picked.append((rows.start + ranked).tolist())
        seconds: dict[int, list[float]] = {}
        for turn in range(runs):
            for g, rows in enumerate(picked):
                if self.budget.left():
                    row = rows[turn % len(rows)]
                    measured_s = self.measured[g].run(task.assignment(g, task.episode(experience, row)))
                    seconds.setdefault(row, []).extend([] if np.isnan(measured_s) else [measured_s])
        return np.array([median_s(seconds[row]) if seconds.get(row) else np.nan for row in range(len(simulated_s))])

    def _keep_promising(self, refitted: Trajectory, measured_s: np.ndarray) -> None:
        """Adds the measured episodes to the pool, simulates the pool with the present costs, and keeps the best."""
        task = self._training.task
        for g, rows in enumerate(task.rows_by_graph):
            ran = rows.start + np.flatnonzero(~np.isnan(measured_s[rows]))
            pool = [*self._pool[g], *(task.episode(refitted, row) for row in ran.tolist())]
            if not pool:
                continue
            order, device = (np.stack([getattr(episode, name) for episode in pool]) for name in ("order", "device"))
            makespan_s = self._training.environment.makespans(np.full(len(pool), g), order, device)
            first = task.different(g, order, device)
            ranked = first[np.argsort(makespan_s[first], kind="stable")][:_CANDIDATES]
            self._pool[g] = [Episode(float(makespan_s[i]), order[i], device[i]) for i in ranked]

    def _mixed_s(self, refitted_s: np.ndarray, measured_s: np.ndarray) -> np.ndarray:
        """Measured seconds where there are any, else simulated ones, times what runs of this batch take over simulated seconds."""
        mixed_s = np.empty_like(refitted_s)
        for rows in self._training.task.rows_by_graph:
            ran = ~np.isnan(measured_s[rows])
            both = ran & np.isfinite(refitted_s[rows]) & (refitted_s[rows] > 0)
            ratio = np.median(measured_s[rows][both] / refitted_s[rows][both]) if both.any() else 1.0
            mixed_s[rows] = np.where(ran, measured_s[rows], ratio * refitted_s[rows])
        return mixed_s

    def _candidates(self, g: int, most: int) -> tuple[dict[str, Episode], dict[str, str]]:
        """The baselines, the greedy episodes before and after, the best by simulation, and others from the pool, as long as there is room.

        Returns:
          Different ones by name, and by what is always run (baselines, _BEFORE, _AFTER) the name of the one that is the same.
        """
        task, learner, best = self._training.task, self._training.learner, self._training.best.episodes[g]
        candidates: dict[str, Episode] = {}
        name_of: dict[str, str] = {}

        def same(episode: Episode) -> str | None:
            """The name of the candidate that an episode is."""
            return next((name for name, other in candidates.items() if len(task.different(
                g, np.stack([other.order, episode.order]), np.stack([other.device, episode.device]))) == 1), None)

        def add(name: str, episode: Episode) -> None:
            name_of[name] = same(episode) or name
            candidates[name_of[name]] = episode  # what a policy found as well counts as its own

        problem = Problem(task.graphs[g], task.costs[g], task.config.dispatch)
        for name, assignment in baselines(problem, task.config.seed).items():
            add(name, task.as_episode(g, assignment))
        for name, network in ((_BEFORE, learner.earlier_network), (_AFTER, learner.best_network)):
            add(name, self._training.greedy(network)[g])
        always, room = dict(name_of), min(max(most, len(candidates) + 1), _CANDIDATES)
        known = (best,) if np.isfinite(best.makespan_s) else ()
        for i, episode in enumerate((*known, *self._pool[g])):
            if len(candidates) < room or same(episode):
                add(f"found {i}", episode)
        return candidates, always

    def _compared(self, g: int, simulated: Trajectory, measured_s: np.ndarray) -> dict[str, float]:
        """Measured beside simulated, of the same episodes of graph g.

        Args:
          simulated: before these runs corrected the costs; measured_s: float64 [B], NaN where nothing was run.
        """
        task, measured, simulated_s = self._training.task, self.measured[g], seconds_of(simulated)
        rows = task.rows_by_graph[g]
        ran = rows.start + np.flatnonzero(~np.isnan(measured_s[rows]))
        found = {summaries.RUNS: measured.runs, summaries.FAILED: measured.failed}
        if ran.size:
            devices, orders = task.arrays[g].to_devices(simulated.action["vertex"].numpy()[ran], simulated.action["device"].numpy()[ran])
            given_s = self._given[g].makespans(devices, orders)
            found |= {summaries.MEASURED: measured_s[ran].mean(), summaries.SIMULATED: given_s.mean(),
                      summaries.REFITTED: simulated_s[ran].mean(), summaries.SIMULATED_ERROR: np.median(given_s / measured_s[ran]) - 1,
                      summaries.REFITTED_ERROR: np.median(simulated_s[ran] / measured_s[ran]) - 1}
        if not np.isnan(measured_s[rows.start]):
            found |= {summaries.MEASURED_GREEDY: measured_s[rows.start], summaries.GREEDY: simulated_s[rows.start]}
        return {tag: float(value) for tag, value in found.items()}


class _Finals(NamedTuple):
    """The outcome of the choice among the candidates of one graph.

    Attributes:
      candidates: different ones by name; name_of: by what is always run the name of the candidate that it is; choice: among them.
    """

    candidates: dict[str, Episode]
    name_of: dict[str, str]
    choice: Choice

    def seconds(self, role: str) -> tuple[float, ...]:
        """The runs of what is always run."""
        return self.choice.finalists[self.name_of[role]].seconds


def _median(runs: Sequence[float]) -> float | None:
    return median_s(runs) if runs else None
