"""GDP: all vertices in one pass, segments that see themselves and the one before, padding that nobody sees."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from agents.baselines.gdp import GdpNetwork, _Attention
from agents.baselines.ordered import topological_graphs
from agents.episodes.features import graph_arrays, padded_sizes
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal


def test_a_segment_sees_itself_and_the_one_before(random_graph):
    layer = _Attention(8, itertools.count())
    given = tf.constant(np.random.default_rng(0).normal(size=(1, 3, 4, 8)), tf.float32)
    real = tf.ones([1, 3, 4], tf.bool)
    whole = layer(given, real)

    def changed(segment):
        delta = np.zeros((1, 3, 4, 8), np.float32)
        delta[0, segment, 0, 0] = 1.0
        return np.abs(layer(given + delta, real) - whole).max(axis=(0, 2, 3)) > 1e-6

    assert changed(0).tolist() == [True, True, False]
    assert changed(1).tolist() == [False, True, True]
    assert changed(2).tolist() == [False, False, True]
    with tf.GradientTape() as tape:
        tape.watch(given)
        last = tf.reduce_sum(layer(given, real)[0, 1, :, 0])
    reached = np.abs(tape.gradient(last, given)).max(axis=(0, 2, 3)) > 0
    assert reached.tolist() == [False, True, False]


def test_padding_changes_nothing(random_graph):
    graphs = [random_graph(9, 0), random_graph(30, 1)]
    network = GdpNetwork(16, 2, 0)
    batches = [topological_graphs([graph_arrays(g, build_costs(g, ideal(3)), padded_sizes(group)) for g in group])
               for group in (graphs[:1], graphs)]
    alone, together = (network.encode(encoded).logits for encoded in batches)
    assert alone.shape[1] == 3
    np.testing.assert_allclose(alone[:9], together[:9], atol=1e-5)
    assert np.std(alone[:9]) > 0


def test_devices_differ_by_their_code(random_graph):
    graph = random_graph(9, 0)
    logits = GdpNetwork(16, 2, 0).encode(topological_graphs([graph_arrays(graph, build_costs(graph, ideal(8)))])).logits[:9].numpy()
    assert min(np.abs(logits[:, a] - logits[:, b]).max() for a in range(8) for b in range(a)) > 1e-6
