"""Static features: units cancel, padding changes nothing, clusters keep to their cap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from agents.episodes.episode import padded_graphs
from agents.episodes.features import bucket, graph_arrays, padded_sizes
from agents.policies.networks import DualNetwork, path_sums
from agents.policies.race import block_size
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal


def test_buckets_waste_a_fifth_at_most_and_divide_into_blocks():
    sizes = [bucket(n) for n in range(1, 3000)]
    assert all(n <= size <= max(1.25 * n, 8) for n, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 4 * 9
    assert all(size % block_size(size) == 0 for size in (bucket(n) for n in [*range(1, 3000), 99_999, 100_001]))


@pytest.mark.parametrize("hub", [False, True])
def test_rows_hold_every_neighbour_once(random_graph, hub):
    graph = random_graph(60, 0, hub=hub)
    arrays = graph_arrays(graph, build_costs(graph, ideal(3)))
    null, work = arrays.num_vertices - 1, graph.work_vertices
    for table, rows, ends, others in (("predecessor", "in_row", "targets", "sources"), ("successor", "out_row", "sources", "targets")):
        for local, v in enumerate(work):
            first, count = getattr(arrays, rows)[local]
            found = getattr(arrays, table)[first:first + count].ravel()
            edges = [e for e in graph.work_edges if getattr(graph, ends)[e] == v]
            assert sorted(found[found < null].tolist()) == sorted(np.searchsorted(work, getattr(graph, others)[edges]).tolist())
        assert (getattr(arrays, table)[-1] == null).all()
        assert (len(getattr(arrays, table)) > arrays.num_vertices) == hub


def test_a_star_of_many_leaves_takes_memory_by_its_edges():
    nodes = [{"id": v, "exec_s": 1.0} for v in range(5001)]
    graph = graph_from_records(nodes, [{"source": 0, "target": v, "transfer_s": 1.0} for v in range(1, 5001)], {"name": "star"})
    arrays = graph_arrays(graph, build_costs(graph, ideal(2)))
    assert arrays.successor.size < 20 * graph.num_vertices


def test_units_cancel(random_graph):
    graph = random_graph(12, 0)
    slow = dataclasses.replace(graph, exec_s=graph.exec_s * 1e12, transfer_s=graph.transfer_s * 1e12)
    a, b = (graph_arrays(g, build_costs(g, ideal(3))) for g in (graph, slow))
    for name in ("vertex", "edge", "exec_s", "fixed_s", "cluster", "cluster_s", "sibling"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-6, err_msg=name)


def test_vertices_that_look_alike_are_told_apart_where_that_is_wished(chains):
    graph = chains(4)
    costs = build_costs(graph, ideal(2))
    told, alike = (graph_arrays(graph, costs, identity=wish).vertex[:12] for wish in (True, False))
    assert len(np.unique(told, axis=0)) == 12
    assert len(np.unique(alike, axis=0)) == 3
    np.testing.assert_array_equal(told[:, :5], alike[:, :5])
    np.testing.assert_array_equal(told, graph_arrays(graph, costs).vertex[:12])


def test_devices_that_look_alike_are_told_apart_where_that_is_wished(chains):
    graph = chains(4)
    told, alike = (graph_arrays(graph, build_costs(graph, ideal(4)), identity=wish).device_identity for wish in (True, False))
    assert len(np.unique(told, axis=0)) == 4
    np.testing.assert_array_equal(alike, np.zeros_like(told))
    np.testing.assert_array_equal(told, graph_arrays(graph, build_costs(graph, ideal(8))).device_identity[:4])  # whatever their number


def test_padding_leaves_the_tables_of_real_vertices_alone(random_graph):
    graph, larger = random_graph(12, 0), random_graph(60, 1)
    costs = build_costs(graph, ideal(3))
    network = DualNetwork(hidden=16, rounds=3, seed=0)
    small, padded = graph_arrays(graph, costs), graph_arrays(graph, costs, padded_sizes([graph, larger]))
    assert padded.num_vertices > small.num_vertices
    for a, b in zip(network.encode(padded_graphs([small])), network.encode(padded_graphs([padded])), strict=True):
        np.testing.assert_allclose(a[:12], b[:12], rtol=1e-4, atol=1e-6)


def test_path_sums_against_a_slow_loop():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(20, 3)).astype(np.float32)
    hidden[-1] = 0
    following = np.array([rng.integers(v + 1, 20) for v in range(19)] + [19], np.int32)
    expected = np.zeros((20, 3))
    for v in range(20):
        u = v
        while u != 19:
            expected[v] += hidden[u]
            u = following[u]
    np.testing.assert_allclose(path_sums(tf.constant(hidden), tf.constant(following), 5), expected, rtol=1e-5, atol=1e-5)


def test_clusters_keep_to_their_share_and_find_the_chains(chains):
    graph = chains(4)
    arrays = graph_arrays(graph, build_costs(graph, ideal(4)))
    by_chain = [{int(arrays.cluster[v, 0]) for v in range(12) if graph.ids[v].startswith(f"{c}.")} for c in range(4)]
    assert all(len(members) == 1 for members in by_chain)
    assert len(set.union(*by_chain)) == 4
    # cluster_s is in units of a device's share of the work, and the second level may hold half of it.
    levels = arrays.cluster_s.reshape(3, -1)
    assert levels[0].max() == pytest.approx(1.0)
    assert levels[1].max() <= 0.5 + 1e-6
    np.testing.assert_allclose(levels.sum(axis=1), 4.0, rtol=1e-6)


def test_siblings_count_those_that_feed_the_same_consumer(random_graph):
    graph = random_graph(15, 3)
    arrays = graph_arrays(graph, build_costs(graph, ideal(2)))
    work = graph.work_vertices.tolist()
    feeders = {w: [u for u in work if any(graph.sources[e] == u and graph.targets[e] == w for e in range(graph.num_edges))] for w in work}
    for local, v in enumerate(work):
        others = [u for w in work if v in feeders[w] for u in feeders[w] if u != v]
        assert arrays.sibling[local, 0] == len(others)
        assert arrays.sibling[local, 1] == pytest.approx(sum(graph.exec_s[u, 0] for u in others) / arrays.scale_s, rel=1e-5)
