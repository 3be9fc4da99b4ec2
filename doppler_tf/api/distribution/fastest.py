"""The fastest of all ways to run a function: candidates on the engine and on TensorFlow's executor, and TensorFlow alone, run in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from doppler_tf.api.distribution.candidates import Candidate
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import CancelledError, DopplerError, ExecutionError, UserError
from doppler_tf.finalists import BRIEFLY, LONG, Finalist, narrowed, run_often, warm_up
from doppler_tf.report.progress import progress_bar
from doppler_tf.schedule.assignment import Assignment

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster
    from runtime.models.ways import Way

# Assignments of a cut that run on the engine. How many times the best prediction all but the first may have, and XLA the best time of
# TensorFlow alone without it, so that our calls are compiled, too.
_ASSIGNMENTS, _NEAR = 3, 1.25
# The engine is as fast as another way if it takes no more than this times as long.
_AS_FAST = 1.01

# What is timed runs for so long at a time: in single runs of a few milliseconds other work on the machine would tell which is faster.
_LONG_ENOUGH_S = 0.03


@dataclass(frozen=True, eq=False)
class _Option:
    """A way that may be measured, and what makes it."""

    candidate: Candidate
    pattern: list[Assignment]
    predicted_s: float | None
    make: Callable[[], Way]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The fastest way, and how it was found: the figures of each way, and the candidate that it comes from."""

    candidate: Candidate
    way: Way
    chosen: str
    ways: Mapping[str, Finalist]
    pattern: list[Assignment]


def fastest(found: Sequence[Candidate], in_flight: int, devices: Sequence[str], cluster: Cluster | None,
             executor: str | None) -> Outcome:
    """Runs the ways in turn: first ours, then the best of these against TensorFlow alone.

    The last ones are ours in calls that XLA compiles, if TensorFlow alone is about as fast so. With `executor="engine"`, where that is not
    tried, they always are.
    """
    ways, calls, first = import_quietly("runtime.models.ways"), import_quietly("runtime.calls"), found[0]
    ours = _ours(found, in_flight, devices, cluster, executor)
    contest = _Contest([first.program.tensors] * (1 if in_flight == 1 else 2 * in_flight))

    def run(options: Mapping[str, _Option], rounds: Sequence[tuple[int, float]]) -> None:
        """Each of them holds weights as its kernels order them. Where there is no memory for all, one runs after another."""
        fit = import_quietly("runtime.graph_calls").weights_fit(first.graph, 2 + len(options))
        for group in [options] if fit else [{name: option} for name, option in options.items()]:
            contest.add(group, rounds)

    run(ours, BRIEFLY)
    best, alone = contest.fastest, import_quietly("runtime.models.alone")
    modes = alone.modes(first.folder) if first.alone else ()
    run({_alone(mode): _Option(first, next(iter(first.patterns.values())), None, partial(ways.LonelyWay, first.folder, mode, in_flight))
         for mode in modes if executor in (None, ways.ALONE)}, LONG)
    others_s = min(contest.median_s(_alone(mode)) for mode in alone.MODES if mode != calls.XLA)
    compiles = contest.median_s(_alone(calls.XLA)) <= _NEAR * others_s if executor is None else executor == ways.ENGINE
    if best and compiles and calls.XLA in modes and cluster is None and not first.limited and not alone.is_checked(first.folder):
        run(_compiled(found, in_flight, devices), LONG)
    return contest.outcome()


def _ours(found: Sequence[Candidate], in_flight: int, devices: Sequence[str], cluster: Cluster | None,
          executor: str | None) -> dict[str, _Option]:
    """The assignments of each cut on the engine, and the best of a cut on TensorFlow's executor."""
    ways, made = import_quietly("runtime.models.ways"), dict[str, _Option]()
    near_s = _NEAR * min(min(each.predicted_s.values()) for each in found)
    for each in found:
        names = [name for i, name in enumerate(list(each.patterns)[:_ASSIGNMENTS]) if i == 0 or each.predicted_s[name] <= near_s]
        common = each.program, each.graph, each.costs
        for name in names if executor in (None, ways.ENGINE) else ():
            make = partial(ways.LimitedWay, *common, each.plans[name]) if each.limited else partial(
                ways.EngineWay, *common, each.patterns[name], in_flight, devices, cluster)
            made[f"engine, {name}{_pieces(each)}"] = _Option(each, each.patterns[name], each.predicted_s[name], make)
        if executor == ways.THEIRS or (executor is None and cluster is None and in_flight == 1 and each.predicted_s[names[0]] <= near_s):
            pattern = each.patterns[names[0]]
            made[f"TensorFlow's executor, {names[0]}{_pieces(each)}"] = _Option(each, pattern, each.predicted_s[names[0]], partial(
                ways.TheirWay, *common, pattern[0], devices))
    return made


def _compiled(found: Sequence[Candidate], in_flight: int, devices: Sequence[str]) -> dict[str, _Option]:
    """The best assignment that uses several devices, in calls that XLA compiles: such a call uses one core."""
    ways, calls = import_quietly("runtime.models.ways"), import_quietly("runtime.calls")
    several = [(each, name) for each in found for name, pattern in each.patterns.items()
               if len({d for assignment in pattern for d in assignment.device.tolist()} - {-1}) > 1]
    if not several:
        return {}
    best, name = min(several, key=lambda pair: pair[0].predicted_s[pair[1]])
    make = partial(ways.EngineWay, best.program, best.graph, best.costs, best.patterns[name], in_flight, devices, build=calls.XLA)
    return {f"engine, {name}{_pieces(best)}, {calls.XLA}": _Option(best, best.patterns[name], None, make)}


def _alone(mode: str) -> str:
    return f"TensorFlow alone, {mode}"


def _pieces(candidate: Candidate) -> str:
    return f", in {candidate.pieces} pieces" if candidate.pieces > 1 else ""


class _Contest:
    """Ways that run against each other. The fastest stays, all others are closed.

    Attributes:
      fastest: the name of the one that stays; None where none has run.
    """

    def __init__(self, calls: list):
        self.fastest: str | None = None
        self._running: dict[str, Way] = {}
        self._calls, self._options = calls, dict[str, _Option]()
        self._figures, self._runs, self._failed = dict[str, Finalist](), 0, list[DopplerError]()

    def add(self, options: Mapping[str, _Option], rounds: Sequence[tuple[int, float]]) -> None:
        """Runs these and the fastest until now in turn."""
        if not options:
            return
        self._options |= options
        names = [*self._running, *options]
        with progress_bar("ways") as self._move:
            found = narrowed(names, self._timed, self._close, rounds if len(names) > 1 else BRIEFLY)
        figures = {name: Finalist(self._options[name].predicted_s, seconds) for name, seconds in found.items()}
        for name, seconds in found.items():
            before = self._figures[name].seconds if name in self._figures else ()
            self._figures[name] = replace(figures[name], seconds=(*before, *seconds))
        engine = import_quietly("runtime.models.ways").ENGINE
        self.fastest = _chosen({name: figures[name] for name in self._running},
                               [name for name, way in self._running.items() if way.executor == engine])
        for name in [name for name in self._running if name != self.fastest]:
            self._close(name)

    def median_s(self, name: str | None) -> float:
        """Of all runs of a way; infinity where there was none."""
        return self._figures[name].median_s if name in self._figures else math.inf

    def outcome(self) -> Outcome:
        """The fastest. Raises what the last one raised if all have failed."""
        if self.fastest is None:
            raise self._failed[-1]
        option, way = self._options[self.fastest], self._running[self.fastest]
        way.variables = {name: option.candidate.program.value(name) for name in option.candidate.program.updates}
        return Outcome(option.candidate, way, self.fastest, self._figures, option.pattern)

    def _close(self, name: str) -> None:
        if name in self._running:
            self._running.pop(name).close()
            import_quietly("runtime.process_memory").give_memory_back(self._options[name].candidate.graph.input_bytes)

    def _timed(self, name: str) -> float:
        running, option = self._running, self._options[name]
        self._runs += 1
        self._move(self._runs, status=name)
        try:
            with option.candidate.blaming_values():
                if name not in running:
                    running[name] = option.make()
                    warm_up(partial(running[name].run, self._calls))
                running[name].run(self._calls)  # at the first run caches are full of another's tensors
                begun_s, took_s, runs = perf_counter(), 0.0, 0
                while took_s < _LONG_ENOUGH_S:
                    running[name].run(self._calls)
                    took_s, runs = perf_counter() - begun_s, runs + 1
                return took_s / (runs * len(self._calls))
        except (CancelledError, UserError):
            raise
        except DopplerError as error:
            self._failed.append(error)
        except Exception as error:  # XLA does not compile every operation, and TensorFlow's executor may run out of memory
            if name in running and running[name].executor == import_quietly("runtime.models.ways").ENGINE:
                raise
            self._failed.append(ExecutionError(f"{name}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"))
        return math.nan


def _chosen(figures: Mapping[str, Finalist], ours: Sequence[str]) -> str | None:
    """The fastest, but one of `ours` that is as fast; None where nothing has run."""
    often = run_often(figures)
    best = min(often, key=lambda name: figures[name].median_s, default=None)
    mine = min((name for name in often if name in ours), key=lambda name: figures[name].median_s, default=best)
    return mine if best is None or figures[mine].median_s <= _AS_FAST * figures[best].median_s else best
