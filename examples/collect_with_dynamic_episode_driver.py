"""Trains the agent with TF-Agents' own parts: DynamicEpisodeDriver, TFUniformReplayBuffer, `agent.train` in a plain loop.

Run from the repository root: .venv/bin/python -m examples.collect_with_dynamic_episode_driver
(`agents.train` does the same with a fused driver, which is many times faster.)
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

import tensorflow as tf
from tf_agents.drivers.dynamic_episode_driver import DynamicEpisodeDriver
from tf_agents.replay_buffers.tf_uniform_replay_buffer import TFUniformReplayBuffer
from tf_agents.utils import common

from agents import AssignmentEnvironment, DopplerAgent, TrainConfig
from agents.episodes.features import graph_arrays
from agents.policies.networks import DualNetwork
from agents.policies.trajectories import compact
from data import build_workload
from doppler_tf import build_costs, read_topology
from doppler_tf.fastsim import FastSimulator

EPISODES, UPDATES = 32, 40


def main() -> None:
    graph = build_workload("chainmm", 2)
    costs = build_costs(graph, read_topology("p100x4"))
    arrays = graph_arrays(graph, costs)
    # The reward at an episode's end is -makespan / scale_s. Any function (devices, orders) -> seconds works here.
    environment = AssignmentEnvironment([arrays], [FastSimulator(graph, costs, "order").makespans], batch_size=EPISODES)
    config = TrainConfig()
    agent = DopplerAgent(DualNetwork(config.hidden, config.rounds), environment.graphs, config)
    agent.initialize()

    # Training needs the actions and PLC's features. Of the observations it needs only the graph's index.
    buffer = TFUniformReplayBuffer(agent.training_data_spec, batch_size=EPISODES, max_length=arrays.num_work + 1)
    observers = [lambda trajectory: buffer.add_batch(compact(trajectory))]
    driver = DynamicEpisodeDriver(environment, agent.collect_policy, observers, num_episodes=EPISODES)
    collect = common.function(driver.run)  # one compiled graph instead of a Python loop over steps
    # Made once, because making it takes longer than an update. Every pass over it reads the buffer anew. All episodes of one graph have
    # the same length, so the steps between episodes, which the driver adds, can be dropped.
    collected = buffer.as_dataset(EPISODES, arrays.num_work, single_deterministic_pass=True)

    means = []
    for update in range(UPDATES):
        buffer.clear()
        environment.reset()
        collect()
        experience, _ = next(iter(collected))
        agent.train(experience)
        means.append(float(tf.reduce_mean(tf.reduce_sum(experience.reward, axis=1))))
        if update % 10 == 0:
            print(f"update {update}: mean reward {means[-1]:.4f}")
    print(f"mean reward of the first five updates {sum(means[:5]) / 5:.4f}, of the last five {sum(means[-5:]) / 5:.4f}")


if __name__ == "__main__":
    main()
