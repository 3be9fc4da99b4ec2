"""Losses with hand-computed numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from agents.policies.losses import (
    MASKED_LOGIT,
    LogProbability,
    imitation_loss,
    masked_log_probability,
    masked_log_softmax,
    order_log_probability,
    rank_advantage,
    reinforce_loss,
    sums_before,
)


def test_one_candidate_is_certain_whatever_its_logit():
    log_p = masked_log_softmax(tf.constant([[5.0, -300.0, 2.0]]), tf.constant([[False, True, False]]))
    np.testing.assert_array_equal(log_p, [[MASKED_LOGIT, 0.0, MASKED_LOGIT]])
    probability = masked_log_probability(tf.constant([[5.0, -300.0, 2.0]]), tf.constant([[False, True, False]]), tf.constant([1]))
    assert float(probability.chosen[0]) == 0.0
    assert float(probability.entropy[0]) == 0.0


def test_several_candidates_share_by_their_logits():
    logits, mask = tf.constant([[math.log(1.0), math.log(3.0), 50.0]]), tf.constant([[True, True, False]])
    np.testing.assert_allclose(tf.exp(masked_log_softmax(logits, mask)), [[0.25, 0.75, 0.0]], rtol=1e-6)
    probability = masked_log_probability(logits, mask, tf.constant([1]))
    assert float(probability.chosen[0]) == pytest.approx(math.log(0.75), rel=1e-6)
    assert float(probability.entropy[0]) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), rel=1e-6)


def test_padding_changes_neither_entropy_nor_gradient():
    logits = tf.Variable([[0.3, -0.7]])
    padded = tf.Variable([[0.3, -0.7, 4.0, 9.0]])
    with tf.GradientTape() as tape:
        plain = masked_log_probability(logits, tf.constant([[True, True]]), tf.constant([0]))
        value = plain.chosen[0] + plain.entropy[0]
    with tf.GradientTape() as padded_tape:
        wide = masked_log_probability(padded, tf.constant([[True, True, False, False]]), tf.constant([0]))
        wide_value = wide.chosen[0] + wide.entropy[0]
    assert float(value) == pytest.approx(float(wide_value), rel=1e-6)
    gradient = padded_tape.gradient(wide_value, padded).numpy()
    np.testing.assert_allclose(gradient[0, :2], tape.gradient(value, logits)[0], rtol=1e-5)
    np.testing.assert_array_equal(gradient[0, 2:], [0.0, 0.0])


def test_order_log_probability_is_the_masked_softmax_step_by_step():
    rng = np.random.default_rng(0)
    logits = rng.uniform(-10, 10, (2, 5)).astype(np.float32)
    # Episode 0: vertex 3 becomes a candidate at step 1, vertex 4 (padding) never. Episode 1 ends after three steps.
    order = np.array([[1, 3, 0, 2], [2, 0, 1, 4]])
    available = np.array([[0, 0, 0, 1, 1 << 20], [0, 0, 2, 1 << 20, 1 << 20]])
    available[1] = [1, 2, 0, 1 << 20, 1 << 20]
    valid = np.array([[True] * 4, [True, True, True, False]])
    got = order_log_probability(*(tf.constant(x) for x in (logits, order.astype(np.int32), available.astype(np.int32), valid)))
    for b in range(2):
        for t in range(4):
            if not valid[b, t]:
                assert got.chosen[b, t] == got.entropy[b, t] == 0
                continue
            chosen_before = order[b, :t].tolist()
            mask = np.array([available[b, v] <= t and v not in chosen_before for v in range(5)])
            expected = masked_log_probability(tf.constant(logits[b:b + 1]), tf.constant(mask[None]), tf.constant(order[b, t:t + 1]))
            assert float(got.chosen[b, t]) == pytest.approx(float(expected.chosen[0]), abs=1e-5)
            assert float(got.entropy[b, t]) == pytest.approx(float(expected.entropy[0]), abs=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_sums_before_each_step_and_their_gradient(jit_compile):
    amount = tf.constant([[[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]], [[-1.0, 0.5], [3.0, 0.0], [9.0, 9.0]]])
    weight = tf.constant([[[3.0, 1.0], [5.0, 1.0], [7.0, 2.0]], [[1.0, 1.0], [0.0, 2.0], [4.0, 8.0]]])

    @tf.function(jit_compile=jit_compile)
    def both():
        with tf.GradientTape() as tape:
            tape.watch(amount)
            sums = sums_before(amount)
            total = tf.reduce_sum(weight * sums)
        return sums, tape.gradient(total, amount)

    sums, gradient = both()
    np.testing.assert_array_equal(sums, [[[0, 0], [1, 10], [3, 30]], [[0, 0], [-1, 0.5], [2, 0.5]]])
    np.testing.assert_array_equal(gradient, [[[12, 3], [7, 2], [0, 0]], [[4, 10], [4, 8], [0, 0]]])


def test_advantage_ranks_the_episodes_of_each_graph_that_count():
    reward, graph = tf.constant([1.0, 3.0, 2.0, 100.0, -5.0, -5.0, 9.0]), tf.constant([0, 0, 0, 0, 1, 1, 1])
    weight = tf.constant([1.0, 1, 1, 0, 1, 1, 0])
    # Graph 0: the worst of three is below two of three, so -2/3 sqrt(3); the fourth does not count. Graph 1: equal rewards, no signal.
    edge = 2 / 3 * math.sqrt(3)
    np.testing.assert_allclose(rank_advantage(reward, graph, weight), [-edge, edge, 0, 0, 0, 0, 0], atol=1e-6)


def test_advantage_of_many_episodes_has_variance_one():
    advantage = rank_advantage(tf.range(1000.0) ** 3, tf.zeros([1000], tf.int32), tf.ones([1000])).numpy()
    assert advantage.mean() == pytest.approx(0, abs=1e-6)
    assert advantage.var() == pytest.approx(1, abs=1e-3)


def test_reinforce_loss_by_hand():
    log_p = LogProbability(tf.constant([[-1.0, -3.0, -9.0], [-2.0, -2.0, -2.0]]), tf.constant([[0.5, 0.1, 9.0], [1.0, 1.0, 1.0]]))
    valid = tf.constant([[True, True, False], [True, True, True]])
    # Episode 0: 2 * mean(-1, -3) + 0.1 * mean(0.5, 0.1) = -3.97; episode 1: -1 * -2 + 0.1 * 1 = 2.1.
    loss = reinforce_loss(log_p, tf.constant([2.0, -1.0]), valid, tf.constant([1.0, 1.0]), tf.constant(0.1))
    assert float(loss) == pytest.approx(-(-3.97 + 2.1) / 2, rel=1e-6)
    only_second = reinforce_loss(log_p, tf.constant([2.0, -1.0]), valid, tf.constant([0.0, 1.0]), tf.constant(0.1))
    assert float(only_second) == pytest.approx(-2.1, rel=1e-6)


def test_imitation_loss_is_the_mean_over_real_steps():
    log_p = LogProbability(tf.constant([[-1.0, -2.0], [-3.0, -7.0]]), tf.zeros([2, 2]))
    assert float(imitation_loss(log_p, tf.constant([[True, True], [True, False]]))) == pytest.approx(2.0)
