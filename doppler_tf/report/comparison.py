"""Methods side by side on one graph: each places with every seed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from doppler_tf.assignment import Assignment
from doppler_tf.bounds import lower_bounds
from doppler_tf.costs import CostModel
from doppler_tf.errors import DeadlockError
from doppler_tf.graph import DataflowGraph
from doppler_tf.placement import learned_samples, made, place

Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]
GREEDY = "policy_greedy"


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
    """Places with each method and seed. Args: policy: a sampler, as `place` takes it; `policy` in `methods` becomes two rows, its greedy
    assignment and the best of its samples."""
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
        makespans_s, seconds, simulations = [], [], list[int]()
        for seed in seeds:
            started = time.perf_counter()
            try:
                placed = place(graph, costs, member, wanted, seed, dispatch, budget_s, learned)
                if placed.makespan_s < min(makespans_s, default=math.inf):
                    best[member] = placed.assignment
                makespans_s.append(placed.makespan_s)
                simulations.extend(placed.simulations.values())
                bound_s = max(bound_s, placed.lower_bound_s)
            except DeadlockError:
                makespans_s.append(math.inf)
            seconds.append(time.perf_counter() - started)
        tries = wanted if member in learned else made(member, graph, wanted, simulations)
        rows[member] = {"samples": tries, "dispatch": best[member].dispatch if member in best else None,
                        "makespan_s": mean(makespans_s), "best_makespan_s": min(makespans_s), "seconds": mean(seconds)}
    return Compared(rows, bound_s, best)
