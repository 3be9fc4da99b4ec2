"""Mixtures of good and bad assignments, on which a cost model can be judged, and how alike two models rank them."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.heuristics.constructive.simple import critical_path, one_device, random
from doppler_tf.heuristics.mending import legal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH = "one device to random", "one device to critical path"
CRITICAL_PATH_TO_RANDOM = "critical path to random"
FAMILIES = (ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH, CRITICAL_PATH_TO_RANDOM)


def spread_assignments(problem: Problem, count: int, rng: np.random.Generator) -> list[Assignment]:
    """`count` assignments between three corners: one device, critical path and random.

    A mixture takes each vertex, or each colocation group as a whole, from one of two corners. The shares of the corners are evenly spaced.
    Corners honour pins and groups, and so do mixtures. `method` names the two corners. The first assignment is on one device.
    """
    corners = {ONE_TO_RANDOM: (one_device, random), ONE_TO_CRITICAL_PATH: (one_device, critical_path),
               CRITICAL_PATH_TO_RANDOM: (critical_path, random)}
    steps = math.ceil(count / len(FAMILIES))
    made = []
    for i in range(count):
        family, step = FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)
        # Only the first family starts at its corner, because the corners of the families coincide.
        share = step / max(steps - 1, 1) if family == ONE_TO_RANDOM else (step + 1) / steps
        start, end = (corner(problem, rng).device for corner in corners[family])
        device = np.where(_random_subset(problem, share, rng), end, start).astype(np.int32)
        made.append(legal(problem.graph, problem.costs, Assignment(device, None, family)))
    return made


def _random_subset(problem: Problem, share: float, rng: np.random.Generator) -> np.ndarray:
    """bool [N]: a random `share` of the vertices, with whole colocation groups."""
    graph, group = problem.graph, problem.costs.colocate
    return np.where(group >= 0, rng.random(len(graph.groups) + 1)[group], rng.random(graph.num_vertices)) < share


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation of ranks, where equal values share their mean rank; NaN of none, and if all of `x` or `y` are equal."""
    # By hand, as a search cannot wait for the import of scipy.stats: one to two seconds.
    ranks = [np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right")
             for values, ordered in ((x, np.sort(x)), (y, np.sort(y)))]
    return float(np.corrcoef(*ranks)[0, 1]) if x.size and min(np.ptp(x), np.ptp(y)) > 0 else math.nan
