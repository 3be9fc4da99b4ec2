"""What every method keeps: legal episodes, log-probabilities that are those of the samples, records that can be replayed, learning."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from agents.checkpoints import checkpoint_folders, read_state
from agents.config import METHOD_NAMES, TrainConfig
from agents.episodes.environment import AssignmentEnvironment
from agents.episodes.features import GraphArrays, graph_arrays, padded_sizes
from agents.methods import METHODS, TrainedMethod
from agents.policies.rollout import Episodes, Rollout
from doppler_tf.errors import ConfigError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from tests.quiet_training import KEPT, load_policy, train

# `sel_only` and `plc_only` have the networks and the driver of `doppler`, `placeto` has the driver of `gdp`.
LIKE_OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("sel_only", "plc_only", "placeto")]
EVERY = pytest.mark.parametrize("name", ["doppler", "joint", "per_step", "gdp", *LIKE_OTHERS])
BASELINES = [pytest.param(name, marks=pytest.mark.thorough) for name in ("per_step", "gdp")]
DEARER = pytest.mark.parametrize("name", ["doppler", "joint", *BASELINES, *LIKE_OTHERS])
# Whole runs. Those of `doppler` are in test_training.py, those of `per_step` in baselines/test_per_step.py. By method, as placing reuses
# what was compiled.
UNLIKE = pytest.mark.parametrize("name", ["joint", BASELINES[1], *LIKE_OTHERS], scope="module")
CONFIG = TrainConfig(hidden=16, rounds=1, seed=1)
SMALL = {"imitation": 32, "simulated": 640, "polish": 0, "batch": 16, "hidden": 16, "rounds": 1, "checkpoint_every": 7,
         "elite": 0.5}


# Which of two graphs each of six episodes is of.
NUMBER = np.array([0, 1, 1, 0, 1, 0])


class Prepared(NamedTuple):
    """A method with all that its episodes need (not compiled); encoded: the graphs as its functions take them."""

    method: TrainedMethod
    graphs: list[DataflowGraph]
    arrays: list[GraphArrays]
    encoded: Any
    network: tf.Module
    runner: Rollout

    @staticmethod
    def of(name: str, graphs: list[DataflowGraph], topology: Topology) -> Prepared:
        method, sizes = METHODS[name], padded_sizes(graphs)
        arrays = [graph_arrays(graph, build_costs(graph, topology), sizes) for graph in graphs]
        network = method.network(CONFIG)
        return Prepared(method, graphs, arrays, method.graphs(arrays), network, method.rollout(network, jit_compile=False))

    def episodes(self, seed: tuple[int, int], greedy: list[bool]) -> Episodes:
        """Six episodes."""
        return self.runner.run(self.encoded, tf.constant(NUMBER, tf.int32), tf.constant(seed), tf.constant(greedy))


@pytest.fixture(scope="module")
def prepared(random_graph):
    """By method; two graphs of which one has a pin and a group and the other a hub, on devices of which one has little memory. Each test
    takes the same ones, as tracing takes longest, and none changes the weights."""
    graphs = [random_graph(7, 1, pin=lambda v: 2 if v == 3 else None, colocate=lambda v: "g" if v in (1, 5) else None),
              random_graph(12, 2, hub=True)]
    topology = Topology.from_json({"devices": [{"name": "a", "memory_bytes": 45}, {"name": "b"}, {"name": "c"}], "link_slots": None})
    return cache(lambda name: Prepared.of(name, graphs, topology))


def test_the_names_are_those_of_the_config_and_each_is_tested_here():
    assert tuple(METHODS) == METHOD_NAMES
    assert {*METHOD_NAMES} == {"doppler", "joint", "per_step", "gdp", *(each.values[0] for each in LIKE_OTHERS)}


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_networks_are_of_float32_whatever_keras_global_policy(name, policy):
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        network = METHODS[name].network(TrainConfig(method=name, hidden=16, rounds=1))
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
    assert {variable.dtype for variable in network.trainable_variables} == {tf.float32}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.stepwise])
def test_a_policy_of_whole_episodes_refuses_single_steps(name, prepared):
    method, _, arrays, encoded, network, rollout = prepared(name)
    agent = method.agent(network, encoded, replace(CONFIG, method=name), tf.Variable(0, dtype=tf.int64), False, 0, rollout)
    start = AssignmentEnvironment(arrays, [lambda devices, orders: np.zeros(len(devices))] * 2).reset()
    with pytest.raises(ConfigError, match=rf"^policy of {name}: expected one that takes single steps, .* agents.policies.driver.Fused"):
        agent.policy.action(start)


@EVERY
def test_episodes_are_legal(name, prepared):
    _, graphs, arrays, encoded, *_ = prepared(name)
    episodes = prepared(name).episodes((0, 0), [True, True] + [False] * 4)
    assert episodes.order.shape == episodes.device.shape == (6, encoded.padded.num_vertices - 1)
    for b, g in enumerate(NUMBER):
        devices, orders = arrays[g].to_devices(episodes.order[b:b + 1], episodes.device[b:b + 1])
        position = {int(v): i for i, v in enumerate(orders[0])}
        assert sorted(position) == graphs[g].work_vertices.tolist()
        assert all(position[int(graphs[g].sources[e])] < position[int(graphs[g].targets[e])] for e in graphs[g].work_edges)
        if g == 1:  # where no group outweighs memory
            assert (devices[0] == 0).sum() <= 4  # of 10 bytes each
        else:
            by_id = dict(zip(graphs[0].ids, devices[0].tolist(), strict=True))
            assert by_id[3] == 2
            assert by_id[1] == by_id[5]
        np.testing.assert_array_equal(episodes.order[b, arrays[g].num_work:], encoded.padded.num_vertices - 1)


@EVERY
def test_seeds_repeat_and_greedy_does_not_vary(name, prepared):
    first, second = (prepared(name).episodes((s, 0), [True] * 6) for s in range(2))
    np.testing.assert_array_equal(first.order, second.order)
    np.testing.assert_array_equal(first.device, second.device)
    for g in range(2):
        devices = first.device.numpy()[g == NUMBER]
        np.testing.assert_array_equal(devices, np.tile(devices[:1], [3, 1]))
    sampled = [prepared(name).episodes((s, 0), [False] * 6) for s in (0, 0, 1)]
    np.testing.assert_array_equal(sampled[0].device, sampled[1].device)
    assert (sampled[0].device.numpy() != sampled[2].device.numpy()).any() or (sampled[0].order.numpy() != sampled[2].order.numpy()).any()


@DEARER
def test_a_replayed_episode_has_the_same_record(name, prepared):
    method, _, _, encoded, network, runner = prepared(name)
    episodes = prepared(name).episodes((1, 1), [False] * 6)
    again = runner.replay(encoded, episodes.graph, episodes.order, episodes.device)
    for field, before, after in zip(episodes._fields, episodes, again, strict=True):
        if name != "joint" or field != "mask":  # which the joint policy does not learn from
            np.testing.assert_allclose(after, before, atol=1e-6, err_msg=field)
    found = [method.log_probability(network, encoded, record) for record in (episodes, again)]
    for before, after in zip(*found, strict=True):
        np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.thorough  # `doppler` compiled: test_driver.py
@UNLIKE
def test_compiled_with_xla_the_record_is_the_same(name, random_graph):
    """Tiny trainings, as all others here, are not compiled."""
    method, _, _, encoded, network, runner = Prepared.of(name, [random_graph(8, 5)], ideal(3))
    graph, compiled = tf.constant([0, 0]), method.rollout(network, jit_compile=True)
    episodes = runner.run(encoded, graph, tf.constant([1, 1]), tf.zeros([2], tf.bool))
    again = compiled.replay(encoded, graph, episodes.order, episodes.device)
    for field, before, after in zip(episodes._fields, runner.replay(encoded, graph, episodes.order, episodes.device), again, strict=True):
        np.testing.assert_allclose(after, before, atol=1e-5, err_msg=field)


@DEARER
def test_log_probabilities_are_how_often_episodes_are_drawn(name):
    """Three vertices on two devices, 40,000 episodes; what SEL alone places is drawn by its order."""
    nodes = [{"id": v, "exec_s": 1.0 + 0.3 * v} for v in range(3)]
    graph = graph_from_records(nodes, [{"source": 0, "target": 2, "transfer_s": 0.5}], {"name": "three"})
    method, _, _, encoded, network, runner = Prepared.of(name, [graph], ideal(2))
    for variable in network.trainable_variables:
        variable.assign(variable * 3.0)  # far from uniform
    count = 40_000
    episodes = runner.run(encoded, tf.zeros([count], tf.int32), tf.constant([0, 0]), tf.zeros([count], tf.bool))
    sel, plc, valid = method.log_probability(network, encoded, episodes)
    np.testing.assert_array_equal(valid.numpy().sum(axis=1), 3)
    log_p = tf.reduce_sum(tf.where(valid, sel.chosen + plc.chosen, 0.0), axis=1).numpy()
    kinds = [tuple(row) for row in (episodes.order if name == "sel_only" else tf.concat([episodes.order, episodes.device], 1)).numpy()]
    share = {kind: number / count for kind, number in Counter(kinds).items()}
    expected = {kind: np.exp(p) for kind, p in zip(kinds, log_p, strict=True)}
    assert sum(expected.values()) == pytest.approx(1, abs=2e-3)  # but for those never drawn
    for kind, p in expected.items():
        assert share[kind] == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / count) + 1e-4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By method a finished run on two chains, with its graph and outcome; each made once."""
    made = {}

    def make(name):
        if name not in made:
            nodes = [{"id": f"{c}.{i}", "exec_s": 1.0} for i in range(3) for c in range(2)]
            edges = [{"source": f"{c}.{i}", "target": f"{c}.{i + 1}", "transfer_s": 2.0} for i in range(2) for c in range(2)]
            graph, folder = graph_from_records(nodes, edges, {"name": "chains"}), tmp_path_factory.mktemp(name) / "run"
            made[name] = graph, folder, train([graph], ideal(2), folder, TrainConfig(method=name, **SMALL))
        return made[name]

    return make


@UNLIKE
def test_it_learns_the_optimum_of_a_tiny_graph(runs, name):
    _, _, result = runs(name)
    assert result["chains"]["greedy_makespan_s"] == result["chains"]["best_makespan_s"] == result["chains"]["lower_bound_s"] == 3.0


@UNLIKE
def test_a_trained_policy_places_other_graphs_on_other_numbers_of_devices(runs, chains, name):
    graph = chains(3)
    placed = list(load_policy(runs(name)[1])(graph, build_costs(graph, ideal(3)), 5, 0))
    assert len(placed) == 5
    assert all(sorted(a.order.tolist()) == list(range(9)) and set(a.device.tolist()) <= {0, 1, 2} for a in placed)


@pytest.mark.thorough  # of `doppler`: test_training.py
@UNLIKE
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path, runs, chains, name):
    graph, folder, expected = runs(name)
    shutil.copytree(folder, tmp_path / "run")
    first, last = checkpoint_folders(tmp_path / "run" / "checkpoints")
    assert read_state(first)["step"] < read_state(last)["step"]
    shutil.rmtree(last)
    KEPT.forget()  # what is resumed must all come from the checkpoint
    got = train([graph], ideal(2), tmp_path / "run", resume=True)
    assert {key: value for key, value in got["chains"].items() if key != "seconds"} == \
        {key: value for key, value in expected["chains"].items() if key != "seconds"}
    other, costs = chains(3), build_costs(chains(3), ideal(3))  # as before, for what is compiled
    for a, b in zip(*(load_policy(run)(other, costs, 5, 3) for run in (folder, tmp_path / "run")), strict=True):
        np.testing.assert_array_equal(a.device, b.device)
        np.testing.assert_array_equal(a.order, b.order)
