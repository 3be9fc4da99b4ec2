"""Placeto's groups by hand, and its choices one by one against those of the one-pass formula."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from agents.baselines.ordered import device_log_probability, ordered_episodes
from agents.baselines.placeto import CHILDREN, PARALLEL, PARENTS, PlacetoNetwork, placeto_graphs, relatives
from agents.episodes.episode import device_options, initial_state, place_vertex
from agents.episodes.features import graph_arrays, padded_sizes
from agents.policies.losses import masked_log_probability
from doppler_tf.errors import ConfigError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal


def made(graphs, devices=2):
    sizes = padded_sizes(graphs)
    return placeto_graphs([graph_arrays(g, build_costs(g, ideal(devices)), sizes) for g in graphs]), PlacetoNetwork(16, 2, 1)


def test_groups_by_hand():
    """An input before a diamond 0 -> (1, 2) -> 3, and 4 by itself."""
    nodes = [{"id": "x", "input": True}] + [{"id": v, "exec_s": 1.0} for v in range(5)]
    edges = [{"source": u, "target": v, "transfer_s": 1.0} for u, v in (("x", 0), ("x", 2), (0, 1), (0, 2), (1, 3), (2, 3))]
    graph = graph_from_records(nodes, edges, {"name": "diamond"})
    found = relatives(graph_arrays(graph, build_costs(graph, ideal(2))))
    members = [[np.flatnonzero(found[v, group]).tolist() for v in range(5)] for group in (PARENTS, PARALLEL, CHILDREN)]
    assert members[0] == [[], [0], [0], [0, 1, 2], []]
    assert members[1] == [[4], [2, 4], [1, 4], [4], [0, 1, 2, 3]]
    assert members[2] == [[1, 2, 3], [3], [3], [], []]
    assert not found[5:].any()


def test_order_is_topological_and_the_same_for_all_episodes(random_graph):
    graph = random_graph(12, 3)
    encoded, network = made([graph])
    episodes = ordered_episodes(network, encoded, tf.zeros([4], tf.int32), tf.constant([0, 0]), tf.zeros([4], tf.bool))
    assert (episodes.order.numpy() == episodes.order.numpy()[0]).all()
    depth = {v: level for level, members in enumerate(graph.levels) for v in members.tolist()}
    levels = [depth[int(graph.work_vertices[v])] for v in episodes.order[0, :12].numpy()]
    assert levels == sorted(levels)


def test_one_pass_gives_the_log_probabilities_of_the_steps(random_graph):
    encoded, network = made([random_graph(9, 1), random_graph(6, 2)], devices=3)
    number = tf.constant([0, 1, 0])
    episodes = ordered_episodes(network, encoded, number, tf.constant([2, 0]), tf.zeros([3], tf.bool))
    for variable in network.trainable_variables:
        variable.assign(variable * 2.0)
    _, plc, valid = device_log_probability(network, encoded, episodes)
    state, tables = initial_state(encoded.padded, number), network.encode(encoded)
    for t in range(9):
        vertex, device = episodes.order[:, t], episodes.device[:, t]
        options = device_options(encoded.padded, state, vertex)
        step = masked_log_probability(network.device_logits(encoded, tables, state, vertex), episodes.mask[:, t], device)
        real = valid[:, t].numpy()
        np.testing.assert_allclose(plc.chosen[:, t].numpy()[real], step.chosen.numpy()[real], atol=1e-5)
        np.testing.assert_allclose(plc.entropy[:, t].numpy()[real], step.entropy.numpy()[real], atol=1e-5)
        state = place_vertex(encoded.padded, state, vertex, device, options.start_s)
    assert np.std(plc.chosen.numpy()[valid.numpy()]) > 1e-3


def test_it_sees_where_its_relatives_are(random_graph):
    """Moving a parent changes the logits of a vertex; but for their identities devices are alike."""
    encoded, network = made([random_graph(9, 1)], devices=3)
    encoded = encoded._replace(padded=encoded.padded._replace(device_identity=tf.zeros_like(encoded.padded.device_identity)))
    tables, start = network.encode(encoded), initial_state(encoded.padded, tf.zeros([1], tf.int32))
    parent = np.flatnonzero(encoded.groups[:, PARENTS].numpy().any(axis=1))[0]
    child = tf.constant([int(parent)])
    first = int(np.flatnonzero(encoded.groups[int(parent), PARENTS].numpy())[0])
    logits = []
    for d in range(3):
        device = tf.tensor_scatter_nd_update(start.device, [[0, first]], [d])
        logits.append(network.device_logits(encoded, tables, start._replace(device=device), child)[0].numpy())
    assert logits[0][0] != logits[0][1]
    np.testing.assert_allclose(logits[0][[0, 1, 2]], logits[1][[1, 0, 2]], atol=1e-6)
    np.testing.assert_allclose(logits[0][[0, 1, 2]], logits[2][[2, 1, 0]], atol=1e-6)


def test_graphs_beyond_its_size_are_refused(random_graph):
    with pytest.raises(ConfigError, match=r"placeto: graph random0: expected at most 4,096 vertices.*got 4,097; choose another method"):
        made([random_graph(4097, 0)])
