"""Costs by hand: what is explicit is used as given, the rest follows from the machine."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from doppler_tf.errors import CostError
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from tests.messages import assert_says, refusal


@pytest.fixture
def machine():
    devices = [{"name": "p", "flops_per_s": 10, "mem_bytes_per_s": 4, "launch_s": 0.5, "memory_bytes": 10.9},
               {"name": "q", "flops_per_s": 5}]
    return Topology.from_json({"devices": devices, "links": {"bandwidth_bytes_per_s": [[1, 2], [4, 1]], "latency_s": [[0, 1], [3, 0]]}})


def test_the_roofline_counts_inputs_and_output(machine):
    """v reads 8 bytes from the input and 4 from u, and writes 4: 16 bytes at 4 a second; or 30 flops at 10 (5) a second."""
    nodes = [{"id": "x", "input": True, "output_bytes": 8}, {"id": "u", "exec_s": [1, 2], "output_bytes": 4},
             {"id": "v", "flops": 30, "output_bytes": 4}, {"id": "w", "flops": 50, "exec_s": 0}]
    edges = [{"source": "x", "target": "v"}, {"source": "u", "target": "v"}]
    costs = build_costs(graph_from_records(nodes, edges), machine)
    assert costs.exec_s.tolist() == [[0, 0], [1, 2], [0.5 + 4, 6], [0, 0]]
    assert costs.mean_exec_s.tolist() == [0, 1.5, 5.25, 0]


def test_transfers_are_explicit_or_latency_plus_bytes_over_bandwidth(machine):
    nodes = [{"id": "u", "exec_s": 1, "output_bytes": 8}, *({"id": v, "exec_s": 1} for v in "abc")]
    edges = [{"source": "u", "target": "a"}, {"source": "u", "target": "b", "bytes": 4},
             {"source": "u", "target": "c", "transfer_s": 9, "bytes": 1}]
    costs = build_costs(graph_from_records(nodes, edges), machine)
    there, back = costs.transfer_s(np.arange(3), 0, 1), costs.transfer_s(np.arange(3), 1, 0)
    assert there.tolist() == [1 + 8 / 2, 1 + 4 / 2, 9]
    assert back.tolist() == [3 + 8 / 4, 3 + 4 / 4, 9]
    assert costs.transfer_s(np.arange(3), 1, 1).tolist() == [0, 0, 0]
    assert costs.mean_transfer_s.tolist() == [2 + 8 * 0.375, 2 + 4 * 0.375, 9]


def test_bytes_are_whole_outwards_and_inwards(machine):
    """Fractions would add up inexactly: tensors are rounded up, capacities down."""
    nodes = [{"id": 0, "exec_s": 1, "output_bytes": 2.1}, {"id": 1, "exec_s": 1}]
    costs = build_costs(graph_from_records(nodes, [{"source": 0, "target": 1, "bytes": 1}]), machine)
    assert costs.output_bytes.tolist() == [3, 0]
    assert costs.memory_bytes.tolist() == [10, math.inf]


def test_without_output_bytes_the_largest_edge_counts(machine):
    nodes = [{"id": v, "exec_s": 1} for v in range(3)]
    graph = graph_from_records(nodes, [{"source": 0, "target": 1, "bytes": 7}, {"source": 0, "target": 2, "bytes": 3}])
    assert build_costs(graph, machine).output_bytes.tolist() == [7, 0, 0]


@pytest.mark.parametrize(("nodes", "words"), [
    ([{"id": "v", "flops": 1e308}], "vertex 'v': exec_s, transfer_s: expected figures whose sum over the graph is finite"),
    ([{"id": v, "exec_s": 1e308} for v in "uv"], "vertex 'u': exec_s, transfer_s: expected figures whose sum over the graph is finite"),
    ([{"id": v, "exec_s": 1, "output_bytes": 1e308} for v in "uv"], "vertex 'u': output_bytes: expected figures whose sum"),
])
def test_sums_beyond_float64_are_refused(nodes, words):
    slow = Topology.from_json({"devices": [{"name": "p", "flops_per_s": 0.1}, {"name": "q", "flops_per_s": 0.1}]})
    assert_says(refusal(CostError, build_costs, graph_from_records(nodes, []), slow), words)


def test_noise_is_drawn_beforehand_and_has_mean_one():
    noise, again = draw_noise(20_000, 2, 0.5, 3), draw_noise(20_000, 2, 0.5, 3)
    assert (noise.vertex.shape, noise.transfer.shape) == ((20_000,), (20_000, 2))
    assert noise.vertex.tobytes() + noise.transfer.tobytes() == again.vertex.tobytes() + again.transfer.tobytes()
    assert abs(noise.vertex.mean() - 1) < 4 * math.sqrt(math.expm1(0.25) / 20_000)
    assert math.isclose(np.log(noise.transfer).std(), 0.5, rel_tol=0.02)
    assert draw_noise(3, 2, 0.0, 1).vertex.tolist() == [1, 1, 1]


def test_a_link_is_named_by_its_topology():
    graph = graph_from_records([{"id": 0, "exec_s": 1}], [])
    first, second = ideal(2), dataclasses.replace(ideal(2), link_slots=1)
    assert build_costs(graph, first).topology.topology_hash != build_costs(graph, second).topology.topology_hash
