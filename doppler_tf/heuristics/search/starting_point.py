"""The assignment from which searches start by default."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.heuristics.constructive.enumerative import enumerative
from doppler_tf.heuristics.constructive.list_schedulers import etf, heft
from doppler_tf.heuristics.constructive.partition import partition
from doppler_tf.heuristics.constructive.simple import critical_path
from doppler_tf.heuristics.judging import fastest, judge, judge_frugal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

# A larger graph gets only the first two heuristics. They take a second for 100,000 vertices.
_MOST_VERTICES = 20_000
_CONSTRUCTORS = (critical_path, heft, etf, enumerative, partition)


def starting_point(problem: Problem, rng: np.random.Generator) -> Assignment:
    """The fastest by `judge` of one assignment each by critical path, HEFT, ETF, the enumerative optimizer and METIS; ties go to the first.

    Graphs above 20,000 vertices get critical path and HEFT only. If none fits in memory, `judge_frugal` looks for another one.
    """
    makers = _CONSTRUCTORS[:None if problem.graph.num_vertices <= _MOST_VERTICES else 2]
    makespan_s, best = fastest(judge(problem, [make(problem, rng) for make in makers]))
    return best if math.isfinite(makespan_s) else judge_frugal(problem, best)[1]
