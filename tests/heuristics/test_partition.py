"""METIS's parts: balanced, cut where it costs least, matched to devices."""

from __future__ import annotations

import ctypes

import numpy as np

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import partition
from doppler_tf.heuristics.problem import Problem


def cliques(count: int = 4, size: int = 8):
    """As many dense parts as devices, in a ring of cheap edges."""
    nodes = [{"id": v, "exec_s": 1} for v in range(count * size)]
    edges = [{"source": c * size + u, "target": c * size + v, "transfer_s": 10}
             for c in range(count) for v in range(size) for u in range(v)]
    edges += [{"source": c * size, "target": (c + 1) * size + 1, "transfer_s": 1} for c in range(count - 1)]
    return graph_from_records(nodes, edges)


def test_dense_parts_stay_whole():
    graph = cliques()
    for seed in range(3):
        rows = partition(Problem(graph, build_costs(graph, ideal(4))), np.random.default_rng(seed)).device.reshape(4, 8)
        assert (rows == rows[:, :1]).all()
        assert sorted(rows[:, 0].tolist()) == [0, 1, 2, 3]


def test_parts_by_speed_on_the_device_that_suits():
    """The fast device, whichever it is, gets its three quarters of the vertices."""
    graph = graph_from_records([{"id": v, "flops": 6} for v in range(40)],
                               [{"source": v, "target": v + 1, "transfer_s": 1} for v in range(39)])
    for speeds in ((3, 1), (1, 3)):
        topology = Topology.from_json({"devices": [{"name": f"d{d}", "flops_per_s": s} for d, s in enumerate(speeds)]})
        counts = np.bincount(partition(Problem(graph, build_costs(graph, topology)), np.random.default_rng(0)).device, minlength=2)
        assert abs(counts[speeds.index(3)] - 30) <= 2


def test_a_part_goes_where_its_pin_is():
    graph = cliques(2)
    nodes = [{"id": v, "exec_s": 1, **({"pin": 1} if v == 3 else {})} for v in range(16)]
    edges = [{"source": int(u), "target": int(v), "transfer_s": float(s)}
             for u, v, s in zip(graph.sources, graph.targets, graph.transfer_s, strict=True)]
    pinned = graph_from_records(nodes, edges)
    for seed in range(3):
        assert partition(Problem(pinned, build_costs(pinned, ideal(2))), np.random.default_rng(seed)).device.tolist() == [1] * 8 + [0] * 8


def test_few_units_are_spread_by_share():
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in enumerate((1, 5, 3, 2))], [])
    costs = build_costs(graph, ideal(2))
    assert np.bincount(partition(Problem(graph, costs), np.random.default_rng(0)).device, costs.exec_s[:, 0]).tolist() == [6, 5]


def test_metis_never_complains_of_graphs_that_are_small_or_have_one_heavy_vertex(capfd):
    rng = np.random.default_rng(0)
    for devices, most in ((4, 5), (8, 60), (16, 80), (32, 110)):
        for count in rng.integers(1, most, 12).tolist():
            nodes = [{"id": v, "exec_s": float(rng.choice([0, 1, 1, 2, 100]))} for v in range(count)]
            edges = [{"source": u, "target": v, "transfer_s": 1} for v in range(count) for u in range(v) if rng.random() < 0.1]
            small = graph_from_records(nodes, edges)
            partition(Problem(small, build_costs(small, ideal(devices))), rng)
    ctypes.CDLL(None).fflush(None)  # METIS prints from C
    assert capfd.readouterr() == ("", "")
