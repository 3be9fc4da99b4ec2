"""Mixtures of good and bad assignments: a sample of all qualities, on which a cost model can be judged."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.critical_path import CriticalPath
from doppler_tf.heuristics.simple import one_device, random

ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH = "one device to random", "one device to critical path"
CRITICAL_PATH_TO_RANDOM = "critical path to random"
FAMILIES = (ONE_TO_RANDOM, ONE_TO_CRITICAL_PATH, CRITICAL_PATH_TO_RANDOM)


def spread_assignments(graph: DataflowGraph, costs: CostModel, count: int, rng: np.random.Generator) -> list[Assignment]:
    """`count` assignments on three lines: one device, critical path and random are the corners, what lies between is a mixture.

    A mixture takes each vertex (or colocation group as a whole) from one corner or the other, in shares that are evenly spaced; the
    corners honour pins and groups, and so do mixtures. `method` is the name of the line. The first is the one on a single device.
    """
    teacher = CriticalPath(graph, costs)
    corners = {ONE_TO_RANDOM: (lambda: one_device(graph, costs, rng), lambda: random(graph, costs, rng)),
               ONE_TO_CRITICAL_PATH: (lambda: one_device(graph, costs, rng), lambda: teacher.sample(rng)),
               CRITICAL_PATH_TO_RANDOM: (lambda: teacher.sample(rng), lambda: random(graph, costs, rng))}
    steps = math.ceil(count / len(FAMILIES))
    made = []
    for i in range(count):
        family, step = FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)
        # The ends of one line are the beginnings of others: only the first line starts at its corner.
        share = step / max(steps - 1, 1) if family == ONE_TO_RANDOM else (step + 1) / steps
        start, end = (corner().device for corner in corners[family])
        made.append(Assignment(np.where(_drawn(graph, costs, share, rng), end, start).astype(np.int32), None, family))
    return made


def _drawn(graph: DataflowGraph, costs: CostModel, share: float, rng: np.random.Generator) -> np.ndarray:
    """bool [N]: a random `share` of the vertices; a colocation group is in or out as a whole."""
    by_group = rng.random(len(graph.groups) + 1)[costs.colocate]
    return np.where(costs.colocate >= 0, by_group, rng.random(graph.num_vertices)) < share
