"""Trains the agent with TF-Agents' own Checkpointer. After a restart, training continues where it stopped.

Run from the repository root, twice: .venv/bin/python -m examples.train_with_checkpointer runs/checkpointed
(`agents.train` with `resume=True` does the same for whole runs, many times faster.)
"""

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

from tf_agents.drivers.dynamic_episode_driver import DynamicEpisodeDriver
from tf_agents.metrics.tf_metrics import AverageReturnMetric
from tf_agents.replay_buffers.tf_uniform_replay_buffer import TFUniformReplayBuffer
from tf_agents.utils import common

from agents import AssignmentEnvironment, DopplerAgent, TrainConfig
from agents.episodes.features import graph_arrays
from agents.policies.networks import DualNetwork
from agents.policies.trajectories import compact
from data import build_workload
from doppler_tf import build_costs, read_topology
from doppler_tf.fastsim import FastSimulator

EPISODES, UPDATES = 16, 20  # every run makes this many updates


def main(folder: str) -> None:
    graph = build_workload("chainmm", 2)
    costs = build_costs(graph, read_topology("p100x4"))
    arrays = graph_arrays(graph, costs)
    environment = AssignmentEnvironment([arrays], [FastSimulator(graph, costs, "order").makespans], batch_size=EPISODES)
    agent = DopplerAgent(DualNetwork(hidden=16, rounds=1), environment.graphs, TrainConfig(hidden=16, rounds=1))
    agent.initialize()
    buffer = TFUniformReplayBuffer(agent.training_data_spec, batch_size=EPISODES, max_length=arrays.num_work + 1)
    observers = [lambda trajectory: buffer.add_batch(compact(trajectory))]
    returns = AverageReturnMetric(batch_size=EPISODES, buffer_size=EPISODES)
    collect, evaluate = (common.function(DynamicEpisodeDriver(environment, policy, seen, num_episodes=EPISODES).run) for policy, seen in
                         ((agent.collect_policy, observers), (agent.policy, [returns])))

    def report(what: str) -> None:
        returns.reset()
        evaluate(environment.reset())
        print(f"{what} update {int(agent.train_step_counter)}: greedy {-1e3 * arrays.scale_s * float(returns.result()):.3f} ms", flush=True)

    # The agent holds the network, both optimizers and its policies' seeds, so that training continues as if it had never stopped.
    checkpointer = common.Checkpointer(folder, max_to_keep=2, agent=agent, buffer=buffer, global_step=agent.train_step_counter)
    if checkpointer.checkpoint_exists:
        checkpointer.initialize_or_restore().assert_consumed()
    else:
        collect(environment.reset())
    report("continues at" if checkpointer.checkpoint_exists else "starts at")
    waiting = buffer.as_dataset(EPISODES, arrays.num_work, single_deterministic_pass=True)  # every pass reads the buffer anew
    for _ in range(UPDATES):
        agent.train(next(iter(waiting))[0])
        buffer.clear()
        collect(environment.reset())
        if int(agent.train_step_counter) % 10 == 0:  # with the episodes collected for the next update
            checkpointer.save(agent.train_step_counter)
    report("stops at")


if __name__ == "__main__":
    main(*sys.argv[1:])
