"""Where searches begin if nobody says."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.critical_path import critical_path
from doppler_tf.heuristics.enumerative import enumerative
from doppler_tf.heuristics.etf import etf
from doppler_tf.heuristics.heft import heft
from doppler_tf.heuristics.partition import partition

# Above as many vertices only the first two are tried, which take a second at 100,000.
_MOST_VERTICES = 20_000
_TRIED = (critical_path, heft, etf, enumerative, partition)


def starting_point(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, dispatch: str) -> Assignment:
    """The fastest by simulation of one critical-path assignment, HEFT, ETF, the enumerative one and a partition; the first of equals."""
    found = [make(graph, costs, rng) for make in _TRIED[:None if graph.num_vertices <= _MOST_VERTICES else 2]]
    makespans = FastSimulator(graph, costs, dispatch).makespans(np.stack([a.device for a in found]), np.stack([a.order for a in found]))
    return found[int(np.argmin(makespans))]
