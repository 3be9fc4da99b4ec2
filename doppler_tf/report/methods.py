"""The methods that a report of a training run compares: its own two assignments and the quick heuristics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import CONSTRUCTIVE, FAST, Problem
from doppler_tf.placement import place
from doppler_tf.stages import tried

BEST, GREEDY = "learned, best", "learned, greedy"
# Up to so many vertices all constructive heuristics run; above, those that take a second at most for 100,000 vertices.
MOST_FOR_ALL = 2_000


def compared_methods(graph: DataflowGraph, costs: CostModel, best_s: float, greedy_s: float, dispatch: str,
                     seed: int) -> list[dict[str, Any]]:
    """A row a method: `name`, `makespan_s` (None: out of memory), `samples` (None: not known), `learned`.

    Args: best_s, greedy_s: makespans of the learned assignments; dispatch, seed: of the heuristics, which run at their defaults.
    """
    rows = [{"name": BEST, "makespan_s": best_s, "samples": None, "learned": True},
            {"name": GREEDY, "makespan_s": greedy_s, "samples": 1, "learned": True}]
    problem = Problem(graph, costs, dispatch)
    for method in CONSTRUCTIVE if graph.num_vertices <= MOST_FOR_ALL else FAST:
        try:
            makespan_s = place(problem, method=method, seed=seed).makespan_s
        except DeadlockError:
            makespan_s = None
        rows.append({"name": method, "makespan_s": makespan_s, "samples": tried(method, graph, None), "learned": False})
    return rows


def fastest_baseline(measured: Mapping[str, Any]) -> tuple[str, float | None]:
    """The name and the median seconds of the fastest baseline that stage III has run; "none" and None where none has ended.

    Args: measured: of a graph in `result.json`.
    """
    medians_s = {name: row["median_s"] for name, row in measured.get("baselines", {}).items() if row["median_s"] is not None}
    return min(medians_s.items(), key=lambda item: item[1], default=("none", None))


def fastest_heuristic(makespans_s: Mapping[str, float | None]) -> str | None:
    """The name of the fastest method that is not learned; None where all ran out of memory."""
    known = {name: value for name, value in makespans_s.items() if name not in (BEST, GREEDY) and value is not None}
    return min(known, key=known.get, default=None)
