"""Saves a trained policy with TF-Agents' own PolicySaver, loads it, and runs an episode with the original and the loaded policy.

Run from the repository root, after a training (`train ... --run-dir runs/demo`):
.venv/bin/python -m examples.save_policy runs/demo runs/demo/saved_policies
(A policy saved like this works only on its graph and devices and acts step by step. A model of `export` places any graph in one call.)
"""

import os
import sys
from operator import eq
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

from tf_agents.policies.policy_saver import PolicySaver
from tf_agents.policies.py_policy import PyPolicy
from tf_agents.policies.py_tf_eager_policy import PyTFEagerPolicy, SavedModelPyTFEagerPolicy

from agents import AssignmentEnvironment, DualPolicy
from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import stored_config
from agents.episodes.features import graph_arrays
from agents.methods import METHODS
from doppler_tf import build_costs, read_graph, read_topology
from doppler_tf.fastsim import FastSimulator


def main(folder: str, out: str) -> None:
    run = Path(folder)
    config, topology = stored_config(run), read_topology(run / "topology.json")
    network = METHODS[config.method].network(config)
    restore_variables(policy_checkpoint(run), {"best_network": network}, partial=True)
    for path in sorted((run / "graphs").glob("*.json")):
        graph = read_graph(path)
        costs = build_costs(graph, topology)
        arrays = graph_arrays(graph, costs, identity=config.identity)
        environment = AssignmentEnvironment([arrays], [FastSimulator(graph, costs, config.rule).makespans])
        policy = DualPolicy(network, environment.graphs, greedy=True)
        saved = Path(out) / path.stem
        PolicySaver(policy).save(str(saved))
        # The environment is a batched TF environment with a batch of one. The saved specs lie beside the model.
        loaded = SavedModelPyTFEagerPolicy(str(saved), load_specs_from_pbtxt=True, batch_time_steps=False)
        before, after = (episode(environment, each) for each in
                         (PyTFEagerPolicy(policy, use_tf_function=True, batch_time_steps=False), loaded))
        before_ms, after_ms = (-1e3 * arrays.scale_s * reward for _, reward in (before, after))  # reward: -makespan / scale_s
        print(f"{graph.name}: {before_ms:.3f} ms by the policy, {after_ms:.3f} ms by {saved}, "
              f"{sum(map(eq, before[0], after[0]))} of {len(before[0])} actions the same")


def episode(environment: AssignmentEnvironment, policy: PyPolicy) -> tuple[list[tuple[int, int]], float]:
    """The actions (vertex, device) of one episode, and its reward."""
    actions, step, state = [], environment.reset(), policy.get_initial_state(1)
    while not step.is_last():
        action, state, _ = policy.action(step, state)
        actions.append((int(action["vertex"]), int(action["device"])))
        step = environment.step(action)
    return actions, float(step.reward)


if __name__ == "__main__":
    main(*sys.argv[1:])
