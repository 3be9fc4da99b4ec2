"""Evaluates a trained policy with TF-Agents' own parts: PyDriver, PyTFEagerPolicy, and its metrics as observers.

Run from the repository root, after a training (`train ... --run-dir runs/demo`):
.venv/bin/python -m examples.evaluate_with_py_driver runs/demo
(`place --policy` does the same with a fused driver, which is many times faster.)
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

from tf_agents.drivers.py_driver import PyDriver
from tf_agents.metrics import tf_metrics
from tf_agents.policies.py_tf_eager_policy import PyTFEagerPolicy
from tf_agents.policies.random_tf_policy import RandomTFPolicy

from agents import AssignmentEnvironment, DualPolicy
from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import stored_config
from agents.episodes.features import graph_arrays
from agents.methods import METHODS
from doppler_tf import build_costs, read_graph, read_topology
from doppler_tf.fastsim import FastSimulator

EPISODES = 16


def main(folder: str) -> None:
    run = Path(folder)
    config, topology = stored_config(run), read_topology(run / "topology.json")
    network = METHODS[config.method].network(config)
    restore_variables(policy_checkpoint(run), {"best_network": network}, partial=True)
    sizes = {"batch_size": EPISODES, "buffer_size": EPISODES}
    returns, best = tf_metrics.AverageReturnMetric(**sizes), tf_metrics.MaxReturnMetric(**sizes)
    length, episodes = tf_metrics.AverageEpisodeLengthMetric(**sizes), tf_metrics.NumberOfEpisodes()
    metrics = [returns, best, length, episodes]
    for path in sorted((run / "graphs").glob("*.json")):
        graph = read_graph(path)
        costs = build_costs(graph, topology)
        arrays = graph_arrays(graph, costs, identity=config.identity)
        environment = AssignmentEnvironment([arrays], [FastSimulator(graph, costs, config.rule).makespans], batch_size=EPISODES)
        policies = {"greedy": DualPolicy(network, environment.graphs, greedy=True), "sampled": DualPolicy(network, environment.graphs),
                    "random": RandomTFPolicy(environment.time_step_spec(), environment.action_spec())}
        for name, policy in policies.items():
            for metric in metrics:
                metric.reset()
            eager = PyTFEagerPolicy(policy, use_tf_function=True, batch_time_steps=False)
            # An episode counts at the boundary after it. All episodes of the batch are equally long, so that each is observed whole.
            driver = PyDriver(environment, eager, metrics, max_episodes=EPISODES)
            driver.run(environment.reset(), eager.get_initial_state(EPISODES))
            mean_s, least_s = (-float(metric.result()) * arrays.scale_s for metric in (returns, best))  # reward: -makespan / scale_s
            print(f"{graph.name}, {name}: {int(episodes.result())} episodes of {float(length.result()):.0f} steps, average return "
                  f"{float(returns.result()):.4f}, makespan {1e3 * mean_s:.2f} ms, at best {1e3 * least_s:.2f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
