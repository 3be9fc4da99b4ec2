"""Training episodes per second against an eager, step-by-step trainer of the same networks: `make bench NAME=training`.

An episode is rollout, simulation and update. Ours runs batches of 64 and one greedy episode with each. First the trainers are compared: on
the yardstick's episode, the compiled driver must compute the same features and the same probability.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()  # before TF-GNN is imported, which runs TensorFlow's first operation

# ruff: noqa: E402
# isort: split
import numpy as np
import tensorflow as tf

from agents.config import TrainConfig
from agents.policies.rollout import log_probability
from agents.policies.trajectories import episodes_of
from agents.training.learner import Learner
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.task import Task
from benchmarks.eager_training import EagerTrainer
from benchmarks.tables import best_seconds, finish, show
from data import build_workload
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import p100x4

BATCH, UPDATES, EAGER_EPISODES = 64, 30, 5


def main() -> None:
    """Prints the tables and the JSON line."""
    result = {}
    for name in ("chainmm", "llama_layer"):
        graph = build_workload(name, 4)
        task = Task.of([graph], [build_costs(graph, p100x4())], TrainConfig(batch=BATCH, polish=0))
        training = Training.of(task, Learner(task))
        encoded = training.learner.agent.collect_policy.graphs
        eager = EagerTrainer(task.arrays[0], lambda network, encoded=encoded: network.encode(encoded), task.config)
        check(training, eager)
        trained, rollout = measure_training(training, eager), measure_rollout(training, eager)
        greedy_s = rollout_seconds(training, 1, greedy=True)
        result[name] = {**trained, "rollout": rollout, "greedy_s": greedy_s}
        show(f"{name}: seconds per episode; one greedy assignment, warm: {1e3 * greedy_s:.2f} ms",
             {"training": trained, "rollout alone": rollout})
    finish(result)


def check(training: Training, eager: EagerTrainer) -> None:
    """Raises AssertionError unless both trainers give one episode the same features and log-probabilities."""
    order, device, features, log_p = eager.rollout()
    count = order.shape[1]
    steps, encoded = training.task.num_vertices - 1, training.learner.agent.collect_policy.graphs
    order, device = (np.pad(a, [(0, 0), (0, steps - count)], constant_values=fill) for a, fill in ((order, steps), (device, 0)))
    episodes = episodes_of(training.driver.replay(np.zeros(1, np.int32), order, device), training.task.num_vertices)
    # float32 against float64: if a vertex is short compared with the makespan, its start over its cost keeps three digits.
    np.testing.assert_allclose(episodes.features[0, :count], features, atol=2e-3)
    sel, plc, _ = log_probability(eager.network, encoded, episodes)
    np.testing.assert_allclose((sel.chosen + plc.chosen)[0, :count], np.array(log_p), atol=1e-3)


def measure_training(training: Training, eager: EagerTrainer) -> dict[str, float]:
    """Seconds per episode of both trainers."""
    stage = SimulatedStage(training)
    stage.update(0, 0.0)
    eager.train_episode()
    steps = iter(range(1, 10_000))
    ours_s = best_seconds(lambda: stage.update(next(steps), 0.0), UPDATES) / BATCH
    yardstick_s = best_seconds(eager.train_episode, EAGER_EPISODES)
    return {"yardstick_s": yardstick_s, "ours_s": ours_s, "ratio": yardstick_s / ours_s}


def measure_rollout(training: Training, eager: EagerTrainer) -> dict[str, float]:
    """Seconds per episode of both trainers, without simulation and update."""
    ours_s, yardstick_s = rollout_seconds(training, BATCH, greedy=False) / BATCH, best_seconds(eager.rollout, EAGER_EPISODES)
    return {"yardstick_s": yardstick_s, "ours_s": ours_s, "ratio": yardstick_s / ours_s}


def rollout_seconds(training: Training, episodes: int, greedy: bool) -> float:
    """Seconds of so many compiled episodes at once."""
    policy = training.learner.agent.policy
    given = policy.graphs, tf.zeros([episodes], tf.int32), tf.constant([0, 1]), tf.fill([episodes], greedy)
    policy.rollout.run(*given)
    return best_seconds(lambda: policy.rollout.run(*given).order.numpy(), UPDATES)


if __name__ == "__main__":
    main()
