"""Encodings by step: what stands in them, what they see, and DOPPLER's episodes and gradients where they see nothing."""

from __future__ import annotations

import shutil
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from agents.baselines.per_step import PLACEMENT_WIDTH, PerStepNetwork, by_episode, per_step_episodes, per_step_log_probability, placement
from agents.checkpoints import checkpoint_folders
from agents.config import TrainConfig
from agents.episodes.episode import candidates, device_options, initial_state, padded_graphs, place_vertex
from agents.episodes.features import IDENTITY, VERTEX_WIDTH, graph_arrays, padded_sizes
from agents.policies.losses import masked_log_probability
from agents.policies.networks import DualNetwork
from agents.policies.rollout import Rollout, log_probability
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from tests.quiet_training import train


def made(graphs, devices=3):
    sizes = padded_sizes(graphs)
    return padded_graphs([graph_arrays(g, build_costs(g, ideal(devices)), sizes) for g in graphs]), PerStepNetwork(16, 1, seed=1)


def placed(encoded, state, vertex, device):
    """`state` after vertices go to devices, int32 [B] or one number for all episodes."""
    vertex, device = (tf.zeros_like(state.graph) + number for number in (vertex, device))
    return place_vertex(encoded, state, vertex, device, device_options(encoded, state, vertex).start_s)


def test_placement_by_hand(chains):
    """Two chains 0 -> 2 -> 4 and 1 -> 3 -> 5 of unit vertices, a transfer takes 2 s; the unit of time is 6 s / 3."""
    encoded, _ = made([chains(2)])
    state = placed(encoded, placed(encoded, initial_state(encoded, tf.constant([0])), 0, 1), 2, 2)
    found = placement(by_episode(encoded, state.graph), state).numpy()
    assert found.shape == (encoded.padded.num_vertices, PLACEMENT_WIDTH) == (encoded.padded.num_vertices, 3 + IDENTITY)
    np.testing.assert_allclose(found[[0, 2], :3], [[1.0, 0.0, 0.5], [1.0, 1.5, 2.0]], atol=1e-6)
    np.testing.assert_allclose(found[[0, 2], 3:], encoded.device_identity.numpy()[0, [1, 2]], atol=1e-6)
    assert not found[[1, *range(3, encoded.padded.num_vertices)]].any()


def test_the_encoding_sees_where_an_earlier_vertex_went(random_graph):
    """In every vertex that messages bring it to, and in no other episode of the batch."""
    encoded, network = made([random_graph(9, 1, hub=True)])
    start = initial_state(encoded, tf.constant([0, 0, 0]))
    graphs = by_episode(encoded, start.graph)
    sel_logit, plc_vertex, sums = (part.numpy() for part in network.look(graphs, placed(encoded, start, 0, tf.constant([0, 1, 1]))))
    assert np.abs(sel_logit[0] - sel_logit[1])[1:9].min() > 0  # vertex 0 is but an input of these
    assert np.abs(plc_vertex[0] - plc_vertex[1])[1:9].max(axis=1).min() > 1e-4
    for part in (sel_logit, plc_vertex, sums):
        np.testing.assert_allclose(part[1], part[2], atol=1e-6)  # some processors add up the rows of a batch in different ways
    before = network.look(graphs, start)
    assert np.abs(before[1][0] - plc_vertex[0])[1:9].max(axis=1).min() > 1e-4
    np.testing.assert_allclose(before[2][0], network.plc_identity(encoded.device_identity)[0], atol=1e-6)


def test_the_update_takes_the_log_probabilities_of_the_steps(random_graph):
    """Each episode by itself, so that a batch's graphs do not mix."""
    encoded, network = made([random_graph(6, 1), random_graph(4, 2)])
    episodes = Rollout(network, False, per_step_episodes).run(encoded, tf.constant([1, 0]), tf.constant([2, 0]), tf.zeros([2], tf.bool))
    for variable in network.trainable_variables:
        variable.assign(variable * 2.0)
    sel, plc, valid = per_step_log_probability(network, encoded, episodes)
    for b, steps in enumerate((4, 6)):
        assert valid[b].numpy().sum() == steps
        graph, order, device, features, mask = (value[b:b + 1] for value in episodes)
        graphs, state = by_episode(encoded, graph), initial_state(encoded, graph)
        for t in range(steps):
            sel_logit, plc_vertex, sums = network.look(graphs, state)
            logits = network.device_logits(tf.gather(plc_vertex, order[:, t], batch_dims=1), sums, features[:, t])
            for found, expected in ((sel, masked_log_probability(sel_logit, candidates(state), order[:, t])),
                                    (plc, masked_log_probability(logits, mask[:, t], device[:, t]))):
                np.testing.assert_allclose(found.chosen[b, t], expected.chosen[0], atol=1e-5)
                np.testing.assert_allclose(found.entropy[b, t], expected.entropy[0], atol=1e-5)
            state = placed(encoded, state, order[:, t], device[:, t])
    assert np.std(sel.chosen.numpy()[valid.numpy()]) > 1e-2


@pytest.mark.thorough
def test_without_the_placement_it_is_doppler(random_graph):
    """Where the encoder does not weigh the placement, greedy episodes, log-probabilities and gradients are DOPPLER's, made in one pass."""
    encoded, network = made([random_graph(6, 1), random_graph(4, 2)])
    plain = DualNetwork(16, 1, seed=1)
    pairs = list(zip(network.trainable_variables, plain.trainable_variables, strict=True))
    first = [ours.shape == theirs.shape for ours, theirs in pairs].index(False)
    for i, (ours, theirs) in enumerate(pairs):
        theirs.assign(2.0 * (ours[:VERTEX_WIDTH] if i == first else ours))
        ours.assign(tf.concat([theirs, tf.zeros([PLACEMENT_WIDTH, 16])], axis=0) if i == first else theirs)
    number, seed = tf.constant([0, 1, 1]), tf.constant([0, 0])
    ours, theirs = Rollout(network, False, per_step_episodes), Rollout(plain, False)
    greedy, expected = (rollout.run(encoded, number, seed, tf.ones([3], tf.bool)) for rollout in (ours, theirs))
    for field, a, b in zip(expected._fields, greedy, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=field)

    episodes = theirs.run(encoded, number, seed, tf.zeros([3], tf.bool))
    weight = tf.constant(np.random.default_rng(0).normal(size=(4, *episodes.order.shape)), tf.float32)

    @partial(tf.function, autograph=False)
    def values_and_gradients(function, net):
        with tf.GradientTape() as tape:
            sel, plc, valid = function(net, encoded, episodes)
            values = tf.where(valid, tf.stack([*sel, *plc]), 0.0)
            total = tf.reduce_sum(weight * values)
        return values, tape.gradient(total, net.trainable_variables)

    (found, gradients), (values, by_doppler) = (values_and_gradients(function, net) for function, net in
                                                ((per_step_log_probability, network), (log_probability, plain)))
    np.testing.assert_allclose(found, values, atol=1e-5)
    assert np.abs(gradients[first][VERTEX_WIDTH:]).max() > 1e-4  # what it learns besides
    for i, (a, b) in enumerate(zip(gradients, by_doppler, strict=True)):
        np.testing.assert_allclose(a[:VERTEX_WIDTH] if i == first else a, b, atol=1e-4, err_msg=pairs[i][0].name)


@pytest.mark.thorough
def test_it_learns_the_optimum_of_a_tiny_graph_and_resumes(tmp_path, chains):
    config = TrainConfig(method="per_step", imitation=32, simulated=400, polish=0, batch=16, hidden=16, rounds=1, checkpoint_every=10,
                         elite=0.5)
    result = train([chains(2)], ideal(2), tmp_path / "run", config)["chains"]
    assert result["greedy_makespan_s"] == result["best_makespan_s"] == result["lower_bound_s"] == 3.0
    shutil.rmtree(checkpoint_folders(tmp_path / "run" / "checkpoints")[-1])
    again = train([chains(2)], ideal(2), tmp_path / "run", resume=True)["chains"]
    assert {**again, "seconds": None} == {**result, "seconds": None}
