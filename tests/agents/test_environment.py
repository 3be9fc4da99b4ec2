"""The environment as TF-Agents sees it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import random_tf_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import nest_utils

from agents.episodes.environment import AssignmentEnvironment
from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from tests.messages import assert_says, refusal


@pytest.fixture
def environment(random_graph, learning):
    graphs = [random_graph(4, 0), random_graph(7, 1)]
    arrays, _, _ = learning(graphs)
    return AssignmentEnvironment(arrays, [FastSimulator(g, build_costs(g, ideal(3))).makespans for g in graphs], batch_size=4)


def test_random_actions_keep_to_the_specs_and_end_each_graph_after_its_own_steps(environment):
    policy = random_tf_policy.RandomTFPolicy(environment.time_step_spec(), environment.action_spec())
    step, lengths, length = environment.reset(), [[] for _ in range(4)], np.zeros(4, int)
    for _ in range(30):
        assert nest_utils.is_batched_nested_tensors(step, environment.time_step_spec())
        for name, spec in environment.observation_spec().items():
            value = step.observation[name].numpy()
            assert (value >= spec.minimum).all(), name
            assert (value <= spec.maximum).all(), name
        step = environment.step(policy.action(step).action)
        length += 1
        for b in range(4):
            if step.step_type[b] == ts.StepType.LAST:
                assert step.reward[b] < 0
                assert step.discount[b] == 0
                lengths[b].append(length[b])
            else:
                assert step.reward[b] == 0
            if step.step_type[b] == ts.StepType.FIRST:
                assert step.observation["step"][b] == 0
                length[b] = 0
    assert [set(each) for each in lengths] == [{4}, {7}, {4}, {7}]


def test_an_illegal_action_stands_for_the_next_legal_one(environment):
    missing = environment.reset().observation["missing"][0].numpy()
    illegal = int(np.flatnonzero(missing > 0)[0])
    after = environment.step({"vertex": tf.fill([4], illegal), "device": tf.zeros([4], tf.int32)})
    chosen = int(np.flatnonzero(after.observation["missing"][0].numpy() == -1)[0])
    expected = next(v % len(missing) for v in range(illegal, 2 * len(missing)) if missing[v % len(missing)] == 0)
    assert chosen == expected


@pytest.mark.parametrize(("action", "told"), [
    (None, "structure: expected device, vertex, got None"), ({}, "structure: expected device, vertex, got {}"),
    (np.zeros(4, np.int32), "structure: expected device, vertex, got array"),
    ({"vertex": np.zeros(4, np.int32)}, "structure: expected device, vertex, got vertex"),
    ({"vertex": np.zeros(4, np.int32), "device": np.zeros(3, np.int32)}, "device: expected int32 of shape [4], got int32 of shape (3,)"),
    ({"vertex": np.zeros(4, np.float32), "device": np.zeros(4, np.int32)}, "vertex: expected int32 of shape [4], got float32 of"),
    ({"vertex": np.zeros(4, np.int32), "device": "first"}, "device: expected int32 of shape [4], got string")])
def test_what_is_no_action_is_told(environment, action, told):
    environment.reset()
    assert_says(refusal(ConfigError, environment.step, action), f"step: action: {told}")


def test_numbers_of_numpy_are_an_action(environment):
    environment.reset()
    assert environment.step({"vertex": np.zeros(4, np.int64), "device": np.zeros(4, np.int64)}).is_mid().numpy().all()


def test_an_environment_needs_graphs_makespans_and_episodes(random_graph, learning):
    graph = random_graph(4, 0)
    arrays, _, _ = learning([graph])
    for given, told in ((([], []), "arrays: expected at least one graph, as graph_arrays gives it, got []"),
                        (([graph], [len]), "arrays: expected at least one graph"),
                        ((arrays, []), "makespans: expected a function for each of 1 graphs, got []"),
                        ((arrays, [len], 0), "batch_size: expected an integer >= 1, got 0")):
        assert_says(refusal(ConfigError, AssignmentEnvironment, *given), f"AssignmentEnvironment: {told}")
