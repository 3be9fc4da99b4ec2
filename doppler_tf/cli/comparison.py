"""The parts of `compare`: placing with each method and seed, and measuring the assignments in turn."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from doppler_tf.assignment import Assignment
from doppler_tf.bounds import lower_bounds
from doppler_tf.cli.inputs import load_assignment
from doppler_tf.cli.messages import bars_wanted
from doppler_tf.cli.side_by_side import measure_side_by_side
from doppler_tf.costs import CostModel
from doppler_tf.errors import ConfigError, DeadlockError
from doppler_tf.formats.files import file_name
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import SEARCHES
from doppler_tf.placement import learned_samples, place, tried
from doppler_tf.report.progress import progress_bar
from doppler_tf.simulator import Simulator

if TYPE_CHECKING:
    from doppler_tf.cli.inputs import Policy

GREEDY = "policy_greedy"
LEARNED_SIMULATED, LEARNED = "learned, before stage III", "learned"


class Compared(NamedTuple):
    """The results of all methods.

    Attributes:
      rows: by method; a makespan is infinite if the method ran out of memory.
      lower_bound_s: the largest bound that any method proved.
      best: the fastest assignment by method, without methods that ran out of memory.
    """

    rows: dict[str, dict[str, Any]]
    lower_bound_s: float
    best: dict[str, Assignment]


def compare_methods(graph: DataflowGraph, costs: CostModel, methods: Sequence[str], policy: Policy | None, seeds: Sequence[int],
                    samples: int | None, budget_s: float | None, dispatch: str) -> Compared:
    """Places with each method and seed. Args: policy: the method `policy`, compared as greedy and as the best of its samples."""
    learned = {} if policy is None else {GREEDY: policy, "policy": policy}
    members = [member for method in methods for member in (learned if method == "policy" else (method,))]
    for member in ("one_device", *members):  # loads or compiles code first, so that no method's time includes it
        if member not in learned:
            with contextlib.suppress(DeadlockError):
                place(graph, costs, member, samples=1)
    rows, best, bound_s = {}, {}, lower_bounds(graph, costs).best_s
    for member in members:
        wanted = samples
        if member in learned:
            wanted = 1 if member == GREEDY else samples or learned_samples(graph)
        makespans_s, seconds = [], []
        for seed in seeds:
            started = time.perf_counter()
            try:
                placed = place(graph, costs, member, wanted, seed, dispatch, budget_s, learned)
                if placed.makespan_s < min(makespans_s, default=math.inf):
                    best[member] = placed.assignment
                makespans_s.append(placed.makespan_s)
                bound_s = max(bound_s, placed.lower_bound_s)
            except DeadlockError:
                makespans_s.append(math.inf)
            seconds.append(time.perf_counter() - started)
        timed = member in SEARCHES and samples is None and budget_s is not None
        shown = None if timed else wanted if member in learned else tried(member, graph, wanted)
        rows[member] = {"samples": shown, "makespan_s": mean(makespans_s), "best_makespan_s": min(makespans_s), "seconds": mean(seconds)}
    return Compared(rows, bound_s, best)


def measure_found(graph_path: Path, graph: DataflowGraph, costs: CostModel, best: Mapping[str, Assignment], run: Path | None,
                  dispatch: str, turns: int) -> dict[str, dict[str, float | int | None]]:
    """Measures, in turn, the assignments found and those that the training run `run` wrote for this graph.

    The engine with barriers and TensorFlow's executor run one assignment: the last one learned, else the best by simulation.
    """
    found = {name: assignment for name, assignment in best.items() if name != GREEDY or "policy" not in best}
    leader = min(found, key=lambda name: Simulator(dispatch).execute(graph, costs, found[name]).makespan_s, default=None)
    for name, ending in ((LEARNED_SIMULATED, ".simulated.json"), (LEARNED, ".json")):
        path = None if run is None else run / "assignments" / f"{file_name(graph.name)}{ending}"
        if path is not None and path.exists():
            assignment, _ = load_assignment(path, graph, costs, dispatch)
            leader = name if assignment.method in ("", "policy") else f"{name} ({assignment.method})"
            found[leader] = assignment
    if leader is None:
        raise ConfigError("--measure: expected a method whose assignment fits in memory, got none; name others with --methods")
    with progress_bar("measuring", show=bars_wanted()) as move:
        return measure_side_by_side(graph_path, graph, costs, found, leader, dispatch, turns, move)
