"""The fastest of all ways to run a function: candidates on the engine and on TensorFlow's executor, and TensorFlow alone, run in turn."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from doppler_tf.api.distribution.candidates import Candidate
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import CancelledError, DopplerError, ExecutionError, UserError
from doppler_tf.finalists import Finalist, narrowed, run_often
from doppler_tf.schedule.assignment import Assignment

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster
    from runtime.models.ways import Way

# Assignments of a cut that run on the engine, and how many times the best prediction all but the first may have.
_ASSIGNMENTS, _NEAR = 3, 1.25
# The engine is as fast as another way if it takes no more than this times as long.
_AS_FAST = 1.01


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
    """Runs the ways in turn, ever fewer of them."""
    ways = import_quietly("runtime.models.ways")
    made: dict[str, _Option] = {}
    near_s = _NEAR * min(min(each.predicted_s.values()) for each in found)
    for each in found:
        of = f", in {each.pieces} pieces" if each.pieces > 1 else ""
        names = [name for i, name in enumerate(list(each.patterns)[:_ASSIGNMENTS]) if i == 0 or each.predicted_s[name] <= near_s]
        if executor in (None, ways.ENGINE):
            for name in names:
                made[f"engine, {name}{of}"] = _Option(each, each.patterns[name], each.predicted_s[name], partial(
                    ways.EngineWay, each.program, each.graph, each.costs, each.patterns[name], in_flight, devices, cluster))
        if executor == ways.THEIRS or (executor is None and cluster is None and in_flight == 1 and each.predicted_s[names[0]] <= near_s):
            pattern = each.patterns[names[0]]
            made[f"TensorFlow's executor, {names[0]}{of}"] = _Option(each, pattern, each.predicted_s[names[0]], partial(
                ways.TheirWay, each.program, each.graph, each.costs, pattern[0], devices))
    first = found[0]
    if executor in (None, ways.ALONE):
        for mode in import_quietly("runtime.models.alone").modes(first.folder):
            made[f"TensorFlow alone, {mode}"] = _Option(first, next(iter(first.patterns.values())), None, partial(
                ways.LonelyWay, first.folder, mode, in_flight))
    running: dict[str, Way] = {}
    failed: list[DopplerError] = []
    calls = [first.program.tensors] * (1 if in_flight == 1 else 2 * in_flight)

    def timed(name: str) -> float:
        try:
            with made[name].candidate.blaming_values():
                if name not in running:
                    running[name] = made[name].make()
                    running[name].run(calls)
                running[name].run(calls)  # at the first run caches are full of another's tensors
                begun_s = perf_counter()
                running[name].run(calls)
                return (perf_counter() - begun_s) / len(calls)
        except (CancelledError, UserError):
            raise
        except DopplerError as error:
            failed.append(error)
        except Exception as error:  # XLA does not compile every operation, and TensorFlow's executor may run out of memory
            if name in running and running[name].executor == ways.ENGINE:
                raise
            failed.append(ExecutionError(f"{name}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"))
        return math.nan

    def drop(name: str) -> None:
        if name in running:
            running.pop(name).close()

    figures = {name: Finalist(made[name].predicted_s, seconds) for name, seconds in narrowed(list(made), timed, drop).items()}
    chosen = _chosen({name: figures[name] for name in running}, [name for name, way in running.items() if way.executor == ways.ENGINE])
    if chosen is None:
        raise failed[-1]
    for name in [name for name in running if name != chosen]:
        drop(name)
    running[chosen].variables = {name: first.program.value(name) for name in first.program.updates}
    _give_memory_back()
    return Outcome(made[chosen].candidate, running[chosen], chosen, figures, made[chosen].pattern)


def _chosen(figures: Mapping[str, Finalist], ours: Sequence[str]) -> str | None:
    """The fastest, but one of `ours` that is as fast; None where nothing has run."""
    often = run_often(figures)
    best = min(often, key=lambda name: figures[name].median_s, default=None)
    mine = min((name for name in often if name in ours), key=lambda name: figures[name].median_s, default=best)
    return mine if best is None or figures[mine].median_s <= _AS_FAST * figures[best].median_s else best


def _give_memory_back() -> None:
    """TensorFlow's functions refer to themselves, and the C library keeps what is freed: of ResNet50's ways that was half of 9 GB."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
