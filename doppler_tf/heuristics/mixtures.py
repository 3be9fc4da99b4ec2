"""Mixtures of good and bad assignments, on which a cost model can be judged."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.critical_path import CriticalPath
from doppler_tf.heuristics.mending import legal
from doppler_tf.heuristics.simple import one_device, random
from doppler_tf.schedule.assignment import Assignment

ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH = "one device to random", "one device to critical path"
CRITICAL_PATH_TO_RANDOM = "critical path to random"
FAMILIES = (ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH, CRITICAL_PATH_TO_RANDOM)


def spread_assignments(graph: DataflowGraph, costs: CostModel, count: int, rng: np.random.Generator) -> list[Assignment]:
    """`count` assignments between three corners: one device, critical path and random.

    A mixture takes each vertex, or each colocation group as a whole, from one of two corners. The shares of the corners are evenly spaced.
    Corners honour pins and groups, and so do mixtures. `method` names the two corners. The first assignment is on one device.
    """
    teacher = CriticalPath(graph, costs)
    corners = {ONE_TO_RANDOM: (lambda: one_device(graph, costs, rng), lambda: random(graph, costs, rng)),
               ONE_TO_CRITICAL_PATH: (lambda: one_device(graph, costs, rng), lambda: teacher.sample(rng)),
               CRITICAL_PATH_TO_RANDOM: (lambda: teacher.sample(rng), lambda: random(graph, costs, rng))}
    steps = math.ceil(count / len(FAMILIES))
    made = []
    for i in range(count):
        family, step = FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)
        # Only the first family starts at its corner, because the corners of the families coincide.
        share = step / max(steps - 1, 1) if family == ONE_TO_RANDOM else (step + 1) / steps
        start, end = (corner().device for corner in corners[family])
        device = np.where(_random_subset(graph, costs, share, rng), end, start).astype(np.int32)
        made.append(legal(graph, costs, Assignment(device, None, family)))
    return made


def _random_subset(graph: DataflowGraph, costs: CostModel, share: float, rng: np.random.Generator) -> np.ndarray:
    """bool [N]: a random `share` of the vertices, with whole colocation groups."""
    by_group = rng.random(len(graph.groups) + 1)[costs.colocate]
    return np.where(costs.colocate >= 0, by_group, rng.random(graph.num_vertices)) < share
