"""Finalists: assignments that are run against each other. The simple placements are always among them, and the fastest is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import Problem
from doppler_tf.heuristics.constructive.simple import all_on
from doppler_tf.heuristics.judging import fastest, judge
from doppler_tf.placement import Placement, place
from doppler_tf.schedule.assignment import AUTO, Assignment, what_runs
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import Trace

# Turns, and how many times the fastest median may take what stays for the next ones. A single turn narrows after each run.
BRIEFLY = ((1, 2.0), (2, 1.3), (4, math.inf))
LONG = ((1, 2.0), (2, 1.3), (5, 1.1), (15, math.inf))
# The rounds after the first two end after so many seconds: long runs differ less from each other.
_ENOUGH_S = 5.0
# Before its runs count, what is timed runs so many times, or for so many seconds.
_WARM_RUNS, _WARM_S = 30, 0.5
# The most members of a portfolio that are measured.
_MEMBERS = 8


@dataclass(frozen=True)
class Finalist:
    """The figures of one finalist.

    Attributes:
      simulated_s: its simulated makespan; None where nothing is simulated.
      seconds: its runs, failed ones left out.
    """

    simulated_s: float | None
    seconds: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        """The median of its runs; infinity of none."""
        return median_s(self.seconds)

    def to_json(self) -> dict[str, float | int | None]:
        """`median_s`, the quartiles `low_s` and `high_s` (None of no run), `runs`, `simulated_s`."""
        low_s, middle_s, high_s = np.percentile(self.seconds, [25, 50, 75]).tolist() if self.seconds else (None, None, None)
        return {"median_s": middle_s, "low_s": low_s, "high_s": high_s, "runs": len(self.seconds), "simulated_s": self.simulated_s}


@dataclass(frozen=True)
class Choice:
    """The outcome of `choose`.

    Attributes:
      finalists: by name.
      chosen: the name of the fastest (see `choose`); None where nothing has run.
    """

    finalists: Mapping[str, Finalist]
    chosen: str | None


def baselines(problem: Problem, seed: int = 0) -> dict[str, Assignment]:
    """The simple placements that a user would try first, by method; only those that can run, without duplicates.

    They are `one_device` (the one that takes least by simulation), `round_robin`, `critical_path` (the best of 50), and the best of what
    `place` finds without a budget.
    """
    makespan_s, single = fastest(judge(problem, [all_on(problem, device) for device in range(problem.costs.num_devices)]))
    found = {"one_device": single} if math.isfinite(makespan_s) else {}
    try:
        placed = place(problem, seed=seed, offload="never")
    except DeadlockError:
        return found
    for name in ("round_robin", "critical_path", placed.assignment.method):
        if np.isfinite(placed.makespans_s[name]):
            found.setdefault(name, placed.assignments[name])
    return _different(found)


def batch_baselines(batches: Batches, seed: int = 0) -> dict[str, Assignment]:
    """As `baselines`, of batches in flight: all batches on one device."""
    single = baselines(Problem(batches.single, batches.single_costs, AUTO), seed)
    return {name: batches.assignment([single[name]], method=name) for name in ("one_device",) if name in single}


def finalists_of(placed: Placement, always: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """The assignments of `always`, and the best 8 others among the members of a placement, its winner first.

    A member that another assignment has the name of is called `NAME (placed)`.
    """
    ranked = sorted(placed.assignments, key=lambda name: (name != placed.assignment.method, placed.makespans_s[name]))
    members = {name if name not in always else f"{name} (placed)": placed.assignments[name] for name in ranked
               if np.isfinite(placed.makespans_s[name])}
    return dict(list(_different({**always, **members}).items())[:len(always) + _MEMBERS])


def simulated_makespans(graph: DataflowGraph, costs: CostModel, assignments: Mapping[str, Assignment]) -> dict[str, float]:
    """Simulated seconds by name, each under its own rule; infinite where memory runs out."""
    problem = Problem(graph, costs)
    return {name: judge(problem, [a], a.dispatch)[0][0] if a.offload is None else simulate(graph, costs, a).makespan_s
            for name, a in assignments.items()}


def _different(assignments: Mapping[str, Assignment]) -> dict[str, Assignment]:
    """The first of each set of assignments that run alike."""
    first: dict[tuple, str] = {}
    for name, a in assignments.items():
        first.setdefault(what_runs(a), name)
    return {name: assignments[name] for name in first.values()}


def choose(simulated_s: Mapping[str, float], always: Sequence[str], runs: int, run: Callable[[str], float]) -> Choice:
    """Runs finalists turn by turn, ever fewer of them, and chooses the fastest.

    A finalist with less than half as many runs as another cannot be chosen: it was dropped early, or failed. The one with the lowest
    median is chosen if it is one of `always`, or clearly faster than the fastest of these. Else that one is chosen: the lowest of many
    medians is often low by luck, and a later run would show it. So none of `always` has a lower median than the chosen one.

    Args:
      simulated_s: of every finalist, by name.
      always: the names of those that are run to the end, however slow; they come first where runs are fewer than finalists.
      runs: how many there may be; one run of several finalists compares nothing and is not made.
      run: one of a finalist, in seconds, NaN where it failed.
    """
    names = list(dict.fromkeys([*always, *simulated_s]))
    kept = names[:runs] if runs >= min(2, len(names)) else []
    lasting = range(min(len(always), len(kept)))
    seconds = dict(zip(kept, halve(len(kept), lasting, runs, lambda c: run(kept[c])), strict=True)) if kept else {}
    finalists = {name: Finalist(value, tuple(seconds.get(name, ()))) for name, value in simulated_s.items()}
    often = run_often(finalists)
    fastest = min(often, key=lambda name: finalists[name].median_s, default=None)
    simple = min((name for name in often if name in always), key=lambda name: finalists[name].median_s, default=fastest)
    if simple is not None and clearly_faster([finalists[simple].seconds], [finalists[fastest].seconds]):
        return Choice(finalists, fastest)
    return Choice(finalists, simple)


def run_often(finalists: Mapping[str, Finalist]) -> list[str]:
    """Those with at least half as many runs as another. Who was dropped early has fewer, and may look fast by luck."""
    most = max((len(f.seconds) for f in finalists.values()), default=0)
    return [name for name, f in finalists.items() if most and 2 * len(f.seconds) >= most]


def halve(count: int, always: Sequence[int], runs: int, run: Callable[[int], float]) -> list[list[float]]:
    """Sequential halving (Karnin, Koren, Somekh 2013): all candidates are run, the better half by median again, and so on, so that
    most runs are spent on those that are hard to tell apart.

    Args:
      count: candidates, numbered from 0; always: those that are run to the end, however slow.
      runs: how many there may be; run: one of a candidate, in seconds, NaN where it failed.

    Returns:
      By candidate its seconds, failed runs left out. Who was dropped early has fewer.
    """
    seconds: list[list[float]] = [[] for _ in range(count)]
    alive, rounds, left = list(range(count)), max(1, math.ceil(math.log2(max(count, 2)))), runs
    for r in range(rounds):
        members = sorted({*alive, *always})
        # While there are runs for all, none is dropped before it has run.
        turns = max(left // (rounds - r) // len(members), min(left // len(members), 1))
        # Turn by turn, so that other work on the machine slows all alike.
        for _ in range(turns):
            for c in members:
                seconds[c] += [value for value in (run(c),) if not math.isnan(value)]
            left -= len(members)
        alive = sorted(alive, key=lambda c: median_s(seconds[c]))[:max(1, len(alive) // 2)]
    return seconds


def narrowed(names: Sequence[str], run: Callable[[str], float], drop: Callable[[str], None],
             rounds: Sequence[tuple[int, float]] = LONG) -> dict[str, tuple[float, ...]]:
    """Runs all in turn, then those again that are nearly as fast as the fastest, and of these again the fastest.

    Turn by turn, so that other work on the machine slows all alike.

    Args:
      run: one of a name, in seconds, NaN where it failed.
      drop: told the name of what is not run again; in the first turn at once, as each may hold much memory.
      rounds: `LONG`, or `BRIEFLY` where it does not matter much which of those that are nearly as fast is taken.

    Returns:
      By name its seconds, failed runs left out.
    """
    seconds: dict[str, list[float]] = {name: [] for name in names}
    alive, ran = list(names), set[str]()

    def narrow(within: float) -> None:
        best_s = min((median_s(seconds[name]) for name in alive), default=math.inf)
        for name in [name for name in alive if name in ran and not (seconds[name] and median_s(seconds[name]) <= within * best_s)]:
            alive.remove(name)
            drop(name)

    ends_s = math.inf
    for r, (turns, within) in enumerate(rounds):
        if r == 2:
            ends_s = perf_counter() + _ENOUGH_S
        for _ in range(turns):
            if perf_counter() > ends_s:
                break
            for name in list(alive):
                if name in alive:
                    seconds[name] += [value for value in (run(name),) if not math.isnan(value)]
                    ran.add(name)
                if turns == 1:
                    narrow(within)
        narrow(within)
    return {name: tuple(values) for name, values in seconds.items()}


def warm_up(run: Callable[[], object]) -> None:
    """Runs until a run takes as long as later ones: TensorFlow learns in some ten runs which operations are worth another thread."""
    ends_s = perf_counter() + _WARM_S
    for _ in range(_WARM_RUNS):
        run()
        if perf_counter() > ends_s:
            break


def median_s(seconds: Sequence[float]) -> float:
    """The median; infinity of none."""
    return float(np.median(seconds)) if len(seconds) else math.inf


def clearly_faster(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> bool:
    """Whether `after` is faster by more than twice the standard error of the difference.

    Args:
      before, after: by graph the runs, in units that may be added up over graphs; fewer than two prove nothing.
    """
    if any(len(runs) < 2 for runs in (*before, *after)):
        return False
    gain = sum(map(median_s, before)) - sum(map(median_s, after))
    return gain > 2 * math.hypot(*(_error_s(runs) for runs in (*before, *after)))


def _error_s(runs: Sequence[float]) -> float:
    """Standard error of the median, from the median distance to it (of normal errors: sigma / 1.48, and the error 1.25 sigma / sqrt(n))."""
    return 1.25 * 1.48 * median_s(np.abs(np.asarray(runs) - median_s(runs))) / math.sqrt(len(runs))


class Spent(NamedTuple):
    """How the devices that ran a vertex spent the time of one run. The last three are means over these devices, and add up to the makespan.

    Attributes:
      devices: how many they are.
      vertices_s: seconds of all vertices, added up.
      busy_s: a vertex was running.
      waiting_s: the inputs of the next vertex were not all there, or there was none.
      overhead_s: they were there, and it had not started yet.
    """

    devices: float
    vertices_s: float
    busy_s: float
    waiting_s: float
    overhead_s: float


def spent(graph: DataflowGraph, trace: Trace) -> Spent:
    """How a run spent its time, from its complete trace."""
    device, end_s = np.full(graph.num_vertices, -1, np.int64), np.zeros(graph.num_vertices)
    device[trace.vertex], end_s[trace.vertex] = trace.device, trace.end_s
    count, used = int(device.max(initial=0)) + 1, np.unique(trace.device)
    arrived_s = end_s[graph.sources]
    crossing = np.flatnonzero(~graph.is_input[graph.sources] & (device[graph.sources] != device[graph.targets]))
    sent = trace.tensor(graph) * count + trace.destination
    row = np.argsort(sent, kind="stable")
    at = np.searchsorted(sent[row], graph.edge_tensor[crossing].astype(np.int64) * count + device[graph.targets[crossing]])
    arrived_s[crossing] = trace.transfer_end_s[row][at]
    ready_s = np.zeros(graph.num_vertices)
    np.maximum.at(ready_s, graph.targets, arrived_s)
    waiting_s = overhead_s = 0.0
    for d in used:
        rows = np.flatnonzero(trace.device == d)
        rows = rows[np.argsort(trace.start_s[rows], kind="stable")]
        latest_s = np.maximum.accumulate(trace.end_s[rows])
        free_s = np.concatenate([[0.0], latest_s[:-1]])
        gap_s = np.maximum(trace.start_s[rows] - free_s, 0.0)
        absent_s = np.clip(ready_s[trace.vertex[rows]] - free_s, 0.0, gap_s)
        waiting_s += absent_s.sum() + trace.makespan_s - latest_s[-1]
        overhead_s += (gap_s - absent_s).sum()
    waiting_s, overhead_s = float(waiting_s) / max(len(used), 1), float(overhead_s) / max(len(used), 1)
    return Spent(len(used), float((trace.end_s - trace.start_s).sum()), trace.makespan_s - waiting_s - overhead_s, waiting_s, overhead_s)


def why_one_device(chosen: str, runs: Mapping[str, Sequence[Spent]], finalists: Mapping[str, Finalist]) -> str | None:
    """Why one device is faster than several, in two sentences with medians; None where the chosen assignment uses several, or all use one.

    Args:
      runs: of each finalist, those that succeeded.
    """
    spread = [name for name, each in runs.items() if each and each[0].devices > 1]
    if not runs[chosen] or runs[chosen][0].devices > 1 or not spread:
        return None
    name = min(spread, key=lambda name: finalists[name].median_s)
    one, many = (Spent(*np.median(np.array(runs[each]), axis=0).tolist()) for each in (chosen, name))
    took = [_text(median_s([sum(run[2:]) for run in runs[each]])) for each in (chosen, name)]
    return (f"On one device the vertices ran in {took[0]}, on {many.devices:.0f} devices at best ({name}) in {took[1]}. Beside others a "
            f"vertex took {many.vertices_s / one.vertices_s:.2f} times as long, and each device waited {_text(many.waiting_s)} for "
            f"transfers and other devices and lost {_text(many.overhead_s)} between vertices ({_text(one.overhead_s)} on one device).")


def _text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
