"""The joint policy against sums by hand, against PLC's view of each pair, and against a gradient taken in one go."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from agents.baselines.joint import JointNetwork, by_episode, choose_pair, joint_episodes, joint_log_probability
from agents.baselines.pairs import nothing_seen, pair_features, pair_mask, paired_graphs, place_pair
from agents.episodes.episode import candidates, device_options, initial_state
from agents.episodes.features import graph_arrays, padded_sizes
from agents.policies.losses import masked_log_probability
from agents.policies.rollout import Episodes
from doppler_tf.errors import ConfigError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal


def made(graphs, topology, features="relational"):
    sizes = padded_sizes(graphs)
    return paired_graphs([graph_arrays(g, build_costs(g, topology), sizes) for g in graphs]), JointNetwork(16, 2, features, 1)


@pytest.fixture
def three():
    """Vertex 2 waits for 0; 1 is pinned to device 1."""
    nodes = [{"id": 0, "exec_s": 1.0}, {"id": 1, "exec_s": 1.0, "pin": 1}, {"id": 2, "exec_s": 1.0}]
    return made([graph_from_records(nodes, [{"source": 0, "target": 2, "transfer_s": 1.0}], {"name": "three"})], ideal(2))


def test_mask_and_normaliser_by_hand(three):
    encoded, _ = three
    size = encoded.padded.num_vertices
    number = tf.zeros([1], tf.int32)
    state, seen = initial_state(encoded.padded, number), nothing_seen(encoded, number)
    assert pair_mask(encoded, state, seen)[0, :3].numpy().tolist() == [[True, True], [False, True], [False, False]]
    assert not pair_mask(encoded, state, seen)[0, 3:].numpy().any()
    state, seen = place_pair(encoded, state, seen, tf.constant([0]), tf.constant([1]))
    assert pair_mask(encoded, state, seen)[0, :3].numpy().tolist() == [[False, False], [False, True], [True, True]]
    logit = np.zeros((1, size, 2), np.float32)
    logit[0, :3] = np.log([[1.0, 2.0], [64.0, 5.0], [3.0, 4.0]])

    class Fixed(JointNetwork):
        def logits(self, *_):
            return tf.constant(logit)

    order, device = np.full((1, size - 1), size - 1), np.zeros((1, size - 1), np.int32)
    order[0, :3], device[0, :3] = [0, 2, 1], [1, 0, 1]
    episodes = Episodes(tf.zeros([1], tf.int32), tf.constant(order, tf.int32), tf.constant(device), None, None)
    sel, joint, valid = joint_log_probability(Fixed(hidden=16, rounds=2), encoded, episodes)
    # Of 1 + 2 + 5 the pair (0, 1) has 2; of 5 + 3 + 4 then (2, 0) has 3; (1, 1) is all that is left.
    np.testing.assert_allclose(joint.chosen[0, :3], np.log([2 / 8, 3 / 12, 1.0]), atol=1e-6)
    entropy = [-sum(p * np.log(p) for p in (np.array(w) / sum(w)).tolist()) for w in ((1, 2, 5), (5, 3, 4), (1,))]
    np.testing.assert_allclose(joint.entropy[0, :3], entropy, atol=1e-6)
    assert valid.numpy().sum() == 3
    assert not np.any(joint.chosen[0, 3:])
    assert not np.any(sel.chosen)
    mask = pair_mask(encoded, state, seen)
    chosen = [choose_pair(encoded, state, tf.constant(logit), mask, tf.constant([0, 0]), tf.constant([True]))]
    assert [int(part[0]) for part in chosen[0]] == [1, 1]


def test_greedy_takes_the_likeliest_pair_not_the_likeliest_vertex(three):
    encoded, _ = three
    number = tf.zeros([1], tf.int32)
    state, seen = initial_state(encoded.padded, number), nothing_seen(encoded, number)
    logit = np.zeros((1, encoded.padded.num_vertices, 2), np.float32)
    logit[0, :2] = np.log([[3.0, 3.0], [1.0, 4.0]])  # vertex 0 has 6 of 10, but the pair (1, 1) is likelier than any of its own
    mask = pair_mask(encoded, state, seen)
    vertex, device = choose_pair(encoded, state, tf.constant(logit), mask, tf.constant([0, 0]), tf.constant([True]))
    assert (int(vertex[0]), int(device[0])) == (1, 1)


@pytest.mark.parametrize("hub", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_every_pair_is_seen_as_plc_sees_it(random_graph, hub):
    topology = Topology.from_json({"devices": [{"name": "a", "memory_bytes": 45}, {"name": "b"}, {"name": "c"}],
                                   "links": {"latency_s": 0.1, "bandwidth_bytes_per_s": [[20, 20, 20], [20, 20, 20], [None, 20, 20]]},
                                   "link_slots": None})
    graphs = [random_graph(18, 0, hub=hub, colocate=lambda v: "g" if v in (1, 5) else None), random_graph(9, 1)]
    encoded, _ = made(graphs, topology)
    number, rng = tf.constant([0, 1]), np.random.default_rng(0)
    state, seen = initial_state(encoded.padded, number), nothing_seen(encoded, number)
    for _ in range(9):
        open_vertices, mask = candidates(state).numpy(), pair_mask(encoded, state, seen).numpy()
        features = tf.stack(pair_features(encoded, state, seen), axis=3).numpy()
        for v in range(encoded.padded.num_vertices - 1):
            options = device_options(encoded.padded, state, tf.constant([v, v]))
            for b in np.flatnonzero(open_vertices[:, v]):
                np.testing.assert_allclose(features[b, v, :, :-1], options.features[b], atol=1e-5)
                np.testing.assert_array_equal(mask[b, v], options.mask[b])
        assert not mask[~open_vertices].any()
        pick = [rng.choice(np.argwhere(mask[b])) for b in range(2)]
        state, seen = place_pair(encoded, state, seen, *(tf.constant([int(p[i]) for p in pick]) for i in (0, 1)))


@pytest.mark.parametrize("features", ["relational", pytest.param("paper", marks=pytest.mark.thorough)])
def test_the_gradient_by_steps_is_that_of_the_whole(random_graph, features):
    encoded, network = made([random_graph(6, 3), random_graph(4, 4)], ideal(2), features)
    episodes = joint_episodes(network, encoded, tf.constant([0, 1, 0]), tf.constant([0, 0]), tf.zeros([3], tf.bool))
    weight = tf.constant(np.random.default_rng(0).normal(size=(2, *episodes.order.shape)), tf.float32)
    variables = network.trainable_variables
    with tf.GradientTape() as tape:
        _, joint, valid = joint_log_probability(network, encoded, episodes)
        total = tf.reduce_sum(weight * tf.stack(joint))
    found = tape.gradient(total, variables)
    with tf.GradientTape() as tape:
        tables, expected = by_episode(network.encode(encoded), episodes.graph), 0.0
        state, seen = initial_state(encoded.padded, episodes.graph), nothing_seen(encoded, episodes.graph)
        for t in range(6):
            logits, mask = network.logits(encoded, tables, state, seen), pair_mask(encoded, state, seen)
            flat = [tf.reshape(part, [3, -1]) for part in (logits, mask)]
            step = masked_log_probability(*flat, episodes.order[:, t] * 2 + episodes.device[:, t])
            expected += tf.reduce_sum(tf.where(valid[:, t], weight[0, :, t] * step.chosen + weight[1, :, t] * step.entropy, 0.0))
            state, seen = place_pair(encoded, state, seen, episodes.order[:, t], episodes.device[:, t])
    assert float(total) == pytest.approx(float(expected), abs=1e-4)
    for variable, a, b in zip(variables, found, tape.gradient(expected, variables), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=variable.name)
    assert sum(float(tf.reduce_max(tf.abs(gradient))) > 0 for gradient in found) > 0.8 * len(found)


def test_graphs_beyond_its_size_are_refused(random_graph):
    with pytest.raises(ConfigError, match=r"joint: graph random0: expected at most 2,048 vertices.*got 2,049; choose another method"):
        made([random_graph(2049, 0)], ideal(2))
