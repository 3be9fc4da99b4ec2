"""Where searches begin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data.layered import Layered, layered_graph
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, preset
from doppler_tf.heuristics.constructive.enumerative import enumerative
from doppler_tf.heuristics.constructive.list_schedulers import etf, heft
from doppler_tf.heuristics.constructive.partition import partition
from doppler_tf.heuristics.constructive.simple import critical_path
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.starting_point import starting_point
from doppler_tf.schedule.assignment import Assignment


def test_where_transfers_are_costly_it_is_on_devices_that_are_close_and_beats_all_that_use_more():
    graph = layered_graph(Layered(110, 12, 2.0, 2, 6, 3e9, 8e6, 0.5), 0)
    costs = build_costs(graph, preset("v100x8"))
    start = starting_point(Problem(graph, costs), np.random.default_rng(0))
    used = set(start.device[graph.work_vertices].tolist())
    assert used <= {0, 1, 2, 3}  # joined by faster links than the others
    spread = [make(Problem(graph, costs), np.random.default_rng(0)) for make in (critical_path, heft, etf, enumerative, partition)]
    makespans = FastSimulator(graph, costs).makespans(np.stack([start.device, *(each.device for each in spread)]))
    assert makespans[0] < 0.95 * makespans[1:].min()


def test_of_unequal_devices_the_fastest_is_left():
    """Sixteen tasks of a second or less whose outputs, 8 s away, are joined in pairs: apart from the others only one device is worth it."""
    count = 16
    nodes = [{"id": v, "flops": 1e9, "output_bytes": 8e9} for v in range(2 * count - 1)]
    edges = [{"source": child, "target": count + i // 2} for i, child in enumerate(range(2 * count - 2))]
    devices = [{"name": f"d{d}", "flops_per_s": 1e9 * (1 + d)} for d in range(4)]
    topology = Topology.from_json({"name": "faster", "devices": devices, "links": {"bandwidth_bytes_per_s": 1e9}})
    graph = graph_from_records(nodes, edges)
    start = starting_point(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0))
    assert set(start.device[graph.work_vertices].tolist()) == {3}


def test_what_is_known_takes_part():
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(4)], [])
    topology = Topology.from_json({"devices": [{"name": f"d{d}"} for d in range(4)]})
    known = Assignment(np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32), "known")
    for order in (known.order, None):
        start = starting_point(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0), replace(known, order=order))
        assert start.method == "known"


def test_once_its_seconds_are_over_none_is_made_on_fewer_devices():
    graph = layered_graph(Layered(110, 12, 2.0, 2, 6, 3e9, 8e6, 0.5), 0)
    costs = build_costs(graph, preset("v100x8"))
    problem = Problem(graph, costs)
    known = heft(problem, np.random.default_rng(0))
    in_time, late = (starting_point(problem, np.random.default_rng(0), known, seconds) for seconds in (60.0, 0.0))
    assert late.device.tolist() == known.device.tolist() != in_time.device.tolist()
