"""Where searches begin."""

from __future__ import annotations

import numpy as np

from data.layered import Layered, layered_graph
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import preset
from doppler_tf.heuristics.constructive.enumerative import enumerative
from doppler_tf.heuristics.constructive.list_schedulers import etf, heft
from doppler_tf.heuristics.constructive.partition import partition
from doppler_tf.heuristics.constructive.simple import critical_path
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.starting_point import starting_point


def test_it_is_the_fastest_of_five():
    graph = layered_graph(Layered(110, 12, 2.0, 2, 6, 3e9, 8e6, 0.5), 0)
    costs, rng = build_costs(graph, preset("v100x8")), np.random.default_rng(0)
    problem = Problem(graph, costs)
    five = [make(problem, rng) for make in (critical_path, heft, etf, enumerative, partition)]
    makespans = FastSimulator(graph, costs).makespans(np.stack([each.device for each in five]))
    start = starting_point(problem, np.random.default_rng(0))
    assert start.method == five[int(makespans.argmin())].method
    assert FastSimulator(graph, costs).makespans(start.device[None])[0] == makespans.min()
