"""The fused driver against TF-Agents' own, and one-pass log-probabilities against those of the rollout."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.drivers.dynamic_episode_driver import DynamicEpisodeDriver
from tf_agents.drivers.py_driver import PyDriver
from tf_agents.policies.py_tf_eager_policy import PyTFEagerPolicy

from agents.config import TrainConfig
from agents.episodes.environment import AssignmentEnvironment
from agents.episodes.features import padded_sizes
from agents.policies.agent import DopplerAgent
from agents.policies.driver import FusedDriver
from agents.policies.policy import DualPolicy
from agents.policies.rollout import Rollout, log_probability
from agents.policies.trajectories import episodes_of, returns_of, seconds_of
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal


def collect(environment: AssignmentEnvironment, policy, steps: int) -> list:
    """Trajectories by step of one run of the standard driver."""
    seen = []

    def observe(trajectory):
        kept = [trajectory.action["vertex"], trajectory.action["device"], trajectory.policy_info["log_probability"],
                trajectory.policy_info["features"], trajectory.reward]
        return tf.py_function(lambda *values: seen.append([v.numpy() for v in values]), kept, [])

    DynamicEpisodeDriver(environment, policy, [observe], num_episodes=environment.batch_size).run()
    return [np.stack(column, axis=1) for column in zip(*seen[:steps], strict=True)]


@pytest.mark.parametrize(("count", "hub"), [pytest.param(11, False, marks=pytest.mark.thorough), (20, True)])
def test_same_trajectories_as_the_standard_driver(random_graph, learning, count, hub):
    graph = random_graph(count, 0, hub=hub)
    arrays, encoded, network = learning([graph])
    simulator = FastSimulator(graph, build_costs(graph, ideal(3)))
    environment = AssignmentEnvironment(arrays, [simulator.makespans], batch_size=5)
    policy = DopplerAgent(network, encoded, TrainConfig(hidden=16, rounds=1)).collect_policy
    policy.seed.assign([7, 2])
    vertex, device, log_p, features, reward = collect(environment, policy, count)
    policy.seed.assign([7, 2])
    seen = []
    fused = FusedDriver(environment, policy, [seen.append]).run()
    assert seen == [fused]
    np.testing.assert_array_equal(fused.action["vertex"][:, :count], vertex)
    np.testing.assert_array_equal(fused.action["device"][:, :count], device)
    sel, plc, _ = log_probability(network, encoded, episodes_of(fused, encoded.num_vertices))
    np.testing.assert_allclose(tf.stack([sel.chosen, plc.chosen], axis=2)[:, :count], log_p, atol=1e-5)
    np.testing.assert_allclose(fused.policy_info["features"][:, :count], features, atol=1e-5)
    np.testing.assert_array_equal(fused.reward[:, :count], reward)
    np.testing.assert_array_equal(fused.reward[:, count:], 0.0)
    makespans = simulator.makespans(*arrays[0].to_devices(fused.action["vertex"], fused.action["device"]))
    np.testing.assert_array_equal(seconds_of(fused), makespans)
    np.testing.assert_allclose(reward[:, -1], -makespans / arrays[0].scale_s, rtol=1e-6)
    np.testing.assert_array_equal(reward[:, :-1], 0.0)


def test_episodes_of_a_row_that_follow_each_other_differ(random_graph, learning):
    """And what is learned from a row is its first episode, whose return `returns_of` tells."""
    graph = random_graph(8, 0)
    arrays, encoded, network = learning([graph])
    environment = AssignmentEnvironment(arrays, [FastSimulator(graph, build_costs(graph, ideal(3))).makespans], batch_size=2)
    seen = []
    policy = PyTFEagerPolicy(DualPolicy(network, encoded), use_tf_function=True, batch_time_steps=False)
    PyDriver(environment, policy, [seen.append], max_episodes=12).run(environment.reset(), policy.get_initial_state(2))
    rows = tf.nest.map_structure(lambda *steps: tf.stack(steps, axis=1), *seen)
    period = 9  # with the step between two episodes
    made = [tuple(rows.action[key][b, e * period:e * period + 8].numpy().tobytes() for key in ("vertex", "device"))
            for b in range(2) for e in range(6)]
    assert len(set(made)) == 12
    rewards = rows.reward.numpy()
    assert (rewards[:, 7] < 0).all()
    np.testing.assert_allclose(returns_of(rows), rewards[:, 7])
    first = episodes_of(rows, 12)
    np.testing.assert_array_equal(first.order[:, :8], rows.action["vertex"][:, :8])
    np.testing.assert_array_equal(first.order[:, 8:], 11)


def test_trajectories_are_whole_episodes(random_graph, learning):
    """Of a small and a large graph: each ends after its own steps, and a replay is the same but for what it earns."""
    graphs = [random_graph(5, 1), random_graph(9, 2)]
    arrays, encoded, network = learning(graphs)
    environment = AssignmentEnvironment(arrays, [FastSimulator(g, build_costs(g, ideal(3))).makespans for g in graphs], batch_size=4)
    policy = DualPolicy(network, encoded, rollout=Rollout(network, jit_compile=False))
    driver = FusedDriver(environment, policy, greedy=np.array([True, True, False, False]))
    found = driver.run((0, 0))
    steps = encoded.num_vertices - 1
    for b, length in enumerate((5, 9, 5, 9)):
        assert found.step_type[b].numpy().tolist() == [0] + [1] * (length - 1) + [2] * (steps - length)
        assert found.next_step_type[b].numpy().tolist() == [1] * (length - 1) + [2] * (steps - length + 1)
        assert found.discount[b].numpy().tolist() == [1] * (length - 1) + [0] * (steps - length + 1)
        assert np.flatnonzero(found.reward[b]).tolist() == [length - 1]
        assert set(found.observation["graph"][b].numpy().tolist()) == {b % 2}
    other = driver.run((1, 0)).action["vertex"].numpy()
    np.testing.assert_array_equal(other[:2], found.action["vertex"][:2])
    again = driver.replay(environment.graph, found.action["vertex"], found.action["device"])
    assert not again.reward.numpy().any()
    assert np.isnan(seconds_of(again)).all()
    same = again._replace(reward=found.reward, observation=found.observation)
    for before, after in zip(tf.nest.flatten(found), tf.nest.flatten(same), strict=True):
        np.testing.assert_array_equal(after, before)
    seconds = np.arange(4.0)
    judged = driver.judged(again, seconds)
    np.testing.assert_array_equal(seconds_of(judged), seconds)
    assert judged.reward[3, 8] == np.float32(-3 / arrays[1].scale_s)
    assert np.count_nonzero(judged.reward) == 3


@pytest.mark.parametrize("features", ["relational", pytest.param("paper", marks=pytest.mark.thorough)])
def test_graphs_of_one_batch_do_not_touch_each_other(random_graph, learning, features):
    """Episodes of a small and a large graph together: real steps, legal orders, and the log-probabilities of the one-pass formula."""
    graphs = [random_graph(5, 1), random_graph(9, 2)]
    arrays, encoded, network = learning(graphs, features=features)
    graph = tf.constant([0, 1, 1, 0, 1])
    greedy = tf.constant([False, False, False, False, True])
    episodes = Rollout(network, jit_compile=False).run(encoded, graph, tf.constant([0, 0]), greedy)
    sel, _, valid = log_probability(network, encoded, episodes)
    assert valid.numpy().sum(axis=1).tolist() == [5, 9, 9, 5, 9]
    np.testing.assert_array_equal(sel.chosen.numpy()[~valid.numpy()], 0)
    for b, g in enumerate(graph.numpy()):
        order = arrays[g].to_devices(episodes.order[b:b + 1], episodes.device[b:b + 1])[1][0]
        position = {int(v): i for i, v in enumerate(order)}
        assert sorted(position) == graphs[g].work_vertices.tolist()
        assert all(position[int(graphs[g].sources[e])] < position[int(graphs[g].targets[e])] for e in graphs[g].work_edges)


def test_greedy_is_greedy_and_seeds_repeat(random_graph, learning):
    _, encoded, network = learning([random_graph(8, 4)])
    driver = Rollout(network, jit_compile=False)
    greedy = [driver.run(encoded, tf.zeros([2], tf.int32), tf.constant([s, 0]), tf.ones([2], tf.bool)) for s in range(2)]
    np.testing.assert_array_equal(greedy[0].order, greedy[1].order)
    np.testing.assert_array_equal(greedy[0].device[0], greedy[0].device[1])
    sampled = [driver.run(encoded, tf.zeros([4], tf.int32), tf.constant([s, 0]), tf.zeros([4], tf.bool)) for s in (0, 0, 1)]
    np.testing.assert_array_equal(sampled[0].order, sampled[1].order)
    assert (sampled[0].order.numpy() != sampled[2].order.numpy()).any()


def test_replay_gives_the_record_of_the_rollout(random_graph, learning):
    _, encoded, network = learning([random_graph(8, 5)])
    driver = Rollout(network, jit_compile=False)
    episodes = driver.run(encoded, tf.zeros([3], tf.int32), tf.constant([1, 1]), tf.zeros([3], tf.bool))
    again = driver.replay(encoded, episodes.graph, episodes.order, episodes.device)
    np.testing.assert_array_equal(again.features, episodes.features)
    np.testing.assert_array_equal(again.mask, episodes.mask)


def test_one_trace_serves_every_graph_of_a_shape(random_graph, learning):
    driver, shapes = None, []
    for seed, count in enumerate((18, 19, 18, 19, 18, 40)):
        graph = random_graph(count, seed)
        _, encoded, network = learning([graph])
        driver = driver or Rollout(network, jit_compile=False)
        episodes = driver.run(encoded, tf.zeros([3], tf.int32), tf.constant([seed, 0]), tf.zeros([3], tf.bool))
        assert sorted(episodes.order[0].numpy()[:count]) == list(range(count))
        shapes.append(padded_sizes([graph]))
        assert driver.run.experimental_get_tracing_count() == len(set(shapes))
    assert 2 <= len(set(shapes)) <= 4


@pytest.mark.parametrize("hub", [pytest.param(False, marks=pytest.mark.thorough), True])  # a hub has loops of its own, besides
def test_no_step_copies_an_array_of_all_vertices(random_graph, learning, hub):
    """What makes the cost of a step independent of the number of vertices: XLA updates the state in place."""
    _, encoded, network = learning([random_graph(150, 0, hub=hub)])
    given = encoded, tf.zeros([1], tf.int32), tf.constant([0, 0]), tf.zeros([1], tf.bool)
    compiled = Rollout(network).run.experimental_get_compiler_ir(*given)
    copies, bodies, body = [], 0, False
    for line in compiled(stage="optimized_hlo").splitlines():
        if line.endswith("{") and not line.startswith(" "):
            body = "body" in line.split()[0]
            bodies += body
        elif body and " copy(" in line:
            copies.append(math.prod(int(size) for size in re.search(r"\[([\d,]*)\]", line)[1].split(",") if size))
    assert bodies >= (4 if hub else 1)
    assert max(copies, default=0) < encoded.num_vertices
