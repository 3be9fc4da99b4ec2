"""The exponential race against the softmax that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from agents.episodes.episode import candidates, device_options, finished, initial_state, place_vertex
from agents.policies.networks import Tables
from agents.policies.race import run_on, start_race, winner
from agents.policies.random_numbers import _gumbel, exponential, gumbel
from doppler_tf.graph.records import graph_from_records


def tables_with(logit) -> Tables:
    return Tables(tf.constant(logit, tf.float32), *[None] * (len(Tables._fields) - 1))


def test_choices_are_distributed_as_a_softmax_over_the_candidates(learning):
    """Three open vertices, then a fourth that waits for the likeliest: first and second choices of 20,000 episodes."""
    nodes = [{"id": v, "exec_s": 1.0} for v in range(4)]
    graph = graph_from_records(nodes, [{"source": 0, "target": 3, "transfer_s": 1.0}], {"name": "race"})
    _, encoded, _ = learning([graph])
    logit, episodes = np.array([1.0, 0.0, -1.0, 2.0]), 20_000
    tables = tables_with(np.pad(logit, (0, encoded.num_vertices - 4)))
    state = initial_state(encoded, tf.zeros([episodes], tf.int32))
    race = start_race(encoded, tables, state, tf.constant([0, 0]), tf.zeros([episodes], tf.bool))
    first = winner(race)
    state = place_vertex(encoded, state, first, tf.zeros_like(first), tf.zeros([episodes, 3]))
    second = winner(run_on(encoded, tables, state, race, first)).numpy()
    weight = np.exp(logit)

    def expect(chosen, among):
        found, share = np.bincount(chosen, minlength=4)[among] / len(chosen), weight[among] / weight[among].sum()
        np.testing.assert_allclose(found, share, atol=4 * np.sqrt(share * (1 - share) / len(chosen)).max())

    first = first.numpy()
    expect(first, [0, 1, 2])
    expect(second[first == 0], [1, 2, 3])
    expect(second[first == 1], [0, 2])


@pytest.mark.parametrize(("count", "hub"), [(30, False), (40, True)])
def test_the_blocks_hold_the_candidates_and_their_least_end(random_graph, learning, count, hub):
    _, encoded, _ = learning([random_graph(count, 1, hub=hub), random_graph(count // 2, 2)])
    tables = tables_with(np.random.default_rng(0).normal(size=2 * encoded.num_vertices))
    state = initial_state(encoded, tf.constant([0, 1, 0]))
    race = start_race(encoded, tables, state, tf.constant([3, 4]), tf.constant([False, False, True]))
    for _ in range(count):
        ends = tf.reshape(race.end, [3, -1]).numpy()
        np.testing.assert_array_equal(np.isfinite(ends), candidates(state))
        np.testing.assert_array_equal(race.soonest, tf.reduce_min(race.end, axis=2))
        best = winner(race).numpy()
        assert all(ends[b, best[b]] == ends[b].min() for b in range(3))
        if not finished(encoded, state)[2]:
            open_logits = np.where(candidates(state)[2], tables.sel_logit[:encoded.num_vertices], -np.inf)
            assert best[2] == np.argmax(open_logits)
        vertex = tf.where(finished(encoded, state), encoded.num_vertices - 1, winner(race))
        options = device_options(encoded, state, vertex)
        state = place_vertex(encoded, state, vertex, tf.zeros_like(vertex), options.start_s)
        race = run_on(encoded, tables, state, race, vertex)
    assert finished(encoded, state).numpy().all()


def test_random_numbers_have_their_moments_and_depend_on_every_index():
    rows, columns = tf.range(300)[:, None], tf.range(300)[None]
    times = exponential(tf.constant([1, 2]), rows, columns).numpy()
    assert times.mean() == pytest.approx(1.0, abs=0.02)
    assert times.var() == pytest.approx(1.0, abs=0.05)
    assert abs(np.corrcoef(times[:-1].ravel(), times[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(times[:, :-1].ravel(), times[:, 1:].ravel())[0, 1]) < 0.02
    numbers = gumbel(tf.constant([1, 2]), rows, columns).numpy()
    assert numbers.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert numbers.var() == pytest.approx(np.pi**2 / 6, abs=0.05)
    for other in (gumbel(tf.constant([1, 3]), rows, columns), gumbel(tf.constant([2, 2]), rows, columns),
                  gumbel(tf.constant([1, 2]), rows, 5, columns)):
        assert abs(np.corrcoef(numbers.ravel(), other.numpy().ravel())[0, 1]) < 0.02


def test_the_largest_hash_is_a_finite_number():
    bits = tf.constant([0, 2**32 - 1], tf.uint32)
    numbers = _gumbel(bits).numpy()
    assert np.isfinite(numbers).all()
    assert numbers[0] < -2 < 15 < numbers[1]
    # A draw whose first 24 bits are ones: 24 bits and a half would round to 1.
    assert np.isfinite(gumbel(tf.constant([8630, 0]), 0, tf.range(40)[:, None], tf.range(8)[None])).all()
    assert np.isfinite(gumbel(tf.constant([3, 0]), 0, 86723, 5))
