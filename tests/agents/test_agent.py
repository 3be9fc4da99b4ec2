"""The agent learns: on trajectories of the standard driver, and in whole runs on tiny graphs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.drivers.dynamic_episode_driver import DynamicEpisodeDriver
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from tf_agents.utils.common import Checkpointer

from agents.config import CONFIGS, RUN_SCHEMA, TrainConfig, stored_config
from agents.episodes.environment import AssignmentEnvironment
from agents.policies.agent import DopplerAgent, ImitationAgent
from agents.policies.driver import FusedDriver
from agents.policies.networks import DualNetwork
from agents.policies.rollout import Rollout, log_probability
from agents.policies.trajectories import compact, episodes_of
from doppler_tf.errors import ConfigError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from tests.messages import assert_says, refusal


def test_train_on_trajectories_makes_better_episodes_likelier(chains, learning):
    graph = chains(2)
    arrays, encoded, network = learning([graph], devices=2)
    environment = AssignmentEnvironment(arrays, [FastSimulator(graph, build_costs(graph, ideal(2))).makespans], batch_size=16)
    agent = DopplerAgent(network, encoded, TrainConfig(hidden=16, rounds=1, learning_rate=1e-2))
    agent.initialize()
    experience = _collector(agent, environment)()
    reward = experience.reward.numpy()[:, -1]
    assert reward.min() < reward.max()
    before = _log_likelihood(network, encoded, experience)
    loss = agent.train(experience)
    assert np.isfinite(loss.loss)
    assert int(agent.train_step_counter) == 1
    change = _log_likelihood(network, encoded, experience) - before
    assert np.corrcoef(change, reward)[0, 1] > 0.3
    for part in (slice(1, None), slice(None, 3)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows that begin with an episode and hold its end"):
            agent.train(tf.nest.map_structure(lambda x, part=part: x[:, part], experience))
    for wrong in (tf.nest.map_structure(lambda x: x[:0], experience), experience._replace(reward=experience.reward * np.nan)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least one row, and rewards that are no NaN"):
            agent.train(wrong)
    for wrong, told in ((None, "structure: expected step_type, "), (experience._replace(action=experience.reward), "action/vertex"),
                        (tf.nest.map_structure(lambda x: x[0], experience), "step_type: expected int32 of shape [B, T], got int32 of")):
        assert_says(refusal(ConfigError, agent.train, wrong), f"train: experience: {told}" if "expected" in told else told)
    assert_says(refusal(ConfigError, agent.train, experience, weights=tf.ones(3)), "train: weights: ", "shape [16], got float32 of shape")
    assert_says(refusal(ConfigError, ImitationAgent(agent).train, experience._replace(observation={})), "observation/graph")
    with pytest.raises(ConfigError, match=r"policy_state: expected what get_initial_state\(batch_size\) or the step before gave, got \(\)"):
        agent.collect_policy.action(environment.reset())


def _collector(agent, environment):
    """Gives at each call trajectories [16, 6] of two chains of three."""
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.training_data_spec, batch_size=16, max_length=10)
    driver = DynamicEpisodeDriver(environment, agent.collect_policy, [lambda t: buffer.add_batch(compact(t))], num_episodes=16)

    def collect():
        buffer.clear()
        driver.run(environment.reset())
        return tf.nest.map_structure(lambda x: x[:, :6], buffer.gather_all())

    return collect


def _log_likelihood(network, encoded, experience) -> np.ndarray:
    sel, plc, _ = log_probability(network, encoded, episodes_of(experience, encoded.num_vertices))
    return tf.reduce_sum(sel.chosen + plc.chosen, axis=1).numpy()


@pytest.mark.thorough  # a run that is resumed: test_training.py
def test_a_restored_agent_goes_on_as_if_it_had_never_stopped(chains, learning, tmp_path):
    """TF-Agents' Checkpointer finds weights, both optimizers' moments, the counter and the policies' seeds in the agent."""
    graph = chains(2)
    arrays, encoded, _ = learning([graph], devices=2)
    environment = AssignmentEnvironment(arrays, [FastSimulator(graph, build_costs(graph, ideal(2))).makespans], batch_size=16)

    def made(seed: int) -> tuple[DopplerAgent, Checkpointer]:
        agent = DopplerAgent(DualNetwork(16, 1, seed=seed), encoded, TrainConfig(hidden=16, rounds=1, learning_rate=1e-2),
                             tf.Variable(0, dtype=tf.int64))
        return agent, Checkpointer(str(tmp_path), agent=agent)

    kept, checkpointer = made(1)
    collect = _collector(kept, environment)
    for _ in range(3):
        kept.train(collect())
    checkpointer.save(kept.train_step_counter)
    restored, checkpointer = made(2)
    checkpointer.initialize_or_restore().assert_consumed()
    for agent, collected in ((kept, collect), (restored, _collector(restored, environment))):
        agent.train(collected())
        assert int(agent.train_step_counter) == 4
    for here, there in zip(kept.policy.variables(), restored.policy.variables(), strict=True):
        np.testing.assert_allclose(here, there, atol=1e-6)


def test_imitation_raises_the_likelihood_of_the_teacher(random_graph, learning):
    graph = random_graph(8, 0)
    arrays, encoded, network = learning([graph])
    config = TrainConfig(hidden=16, rounds=1, learning_rate=1e-2)
    agent = DopplerAgent(network, encoded, config, rollout=Rollout(network, jit_compile=False))
    environment = AssignmentEnvironment(arrays, [FastSimulator(graph, build_costs(graph, ideal(3))).makespans])
    driver, imitator = FusedDriver(environment, agent.collect_policy), ImitationAgent(agent)
    action = driver.run().action
    experts = driver.replay(environment.graph, action["vertex"], action["device"])
    before = int(agent.train_step_counter)
    losses = [float(imitator.train(experts).loss) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    assert int(agent.train_step_counter) == before + 30  # it goes on with networks, optimizers and counter


def test_the_two_optimizers_share_no_variable(random_graph, learning):
    _, encoded, network = learning([random_graph(8, 0)])
    DopplerAgent(network, encoded, TrainConfig(hidden=16, rounds=1))
    sel, plc = ({v.ref() for v in variables} for variables in network.parameter_groups)
    assert not sel & plc
    assert sel | plc == {v.ref() for v in network.trainable_variables}


def test_config_names_what_is_wrong():
    with pytest.raises(ConfigError, match="batch: expected an integer from 1 to 65536, got 0"):
        TrainConfig(batch=0)
    with pytest.raises(ConfigError, match="entropy: expected a number from 0 to 2147483647, got nan"):
        TrainConfig(entropy=float("nan"))
    with pytest.raises(ConfigError, match=r"lr: expected one of .*learning_rate.*, got 1"):
        TrainConfig.from_json({"lr": 1})
    with pytest.raises(ConfigError, match=r"method: expected doppler or .* or gdp, got 'annealing'"):
        TrainConfig(method="annealing")
    assert TrainConfig.from_json(CONFIGS["paper"].to_json()) == CONFIGS["paper"]


def test_a_run_from_before_there_were_methods_is_one_of_doppler(tmp_path):
    settings = TrainConfig(batch=8).to_json()
    del settings["method"]
    (tmp_path / "config.json").write_text(json.dumps({"schema": RUN_SCHEMA, "config": settings}))
    assert stored_config(tmp_path) == TrainConfig(batch=8, method="doppler")
