"""Training episodes a second against an eager, step-by-step trainer of the same networks: `make bench NAME=training`.

An episode is rollout, simulation and update; ours runs batches of 64 (and one greedy episode beside them).
"""

from __future__ import annotations

import agents  # noqa: F401  (chooses Keras 2 before TensorFlow is imported)

# isort: split
import numpy as np
import tensorflow as tf

from agents.config import TrainConfig
from agents.stages import Learner
from benchmarks.eager_training import EagerTrainer
from benchmarks.tables import best_seconds, finish, show
from data import build_workload
from doppler_tf.costs import build_costs
from doppler_tf.topology import p100x4

BATCH, UPDATES, EAGER_EPISODES = 64, 20, 3


def main() -> None:
    """Prints the tables and the JSON line."""
    result = {}
    for name in ("chainmm", "llama_layer"):
        graph = build_workload(name, 4)
        config = TrainConfig(batch=BATCH)
        learner = Learner([graph], [build_costs(graph, p100x4())], config)
        eager = EagerTrainer(learner.arrays[0], config)
        learner.simulate(0, 0, 0.0)
        steps, one, warm = iter(range(1, 10_000)), tf.constant([0, 1]), learner.driver
        rows, temperature = tf.zeros([BATCH], tf.int32), tf.ones([BATCH])
        warm.run(rows, one, temperature)
        ours_s = best_seconds(lambda learner=learner, steps=steps: learner.simulate(0, next(steps), 0.0), UPDATES) / BATCH
        rollout_s = best_seconds(lambda run=warm.run, given=(rows, one, temperature): run(*given).order.numpy(), UPDATES) / BATCH
        eager.train_episode(0)
        yardstick_s = best_seconds(lambda eager=eager: eager.train_episode(1), EAGER_EPISODES)
        eager_rollout_s = best_seconds(lambda eager=eager: eager.rollout(1), EAGER_EPISODES)
        greedy_s = _greedy_seconds(learner)
        result[name] = {"yardstick_s": yardstick_s, "ours_s": ours_s, "ratio": yardstick_s / ours_s,
                        "rollout": {"yardstick_s": eager_rollout_s, "ours_s": rollout_s, "ratio": eager_rollout_s / rollout_s},
                        "greedy_s": greedy_s}
        keys = ("yardstick_s", "ours_s", "ratio")
        show(f"{name}: seconds an episode; one greedy assignment, warm: {1e3 * greedy_s:.2f} ms",
             {"training": {key: result[name][key] for key in keys}, "rollout alone": {key: result[name]["rollout"][key] for key in keys}})
    finish(result)


def _greedy_seconds(learner: Learner) -> float:
    """One greedy episode by itself, compiled."""
    graph, seed, zero = tf.zeros([1], tf.int32), tf.constant([0, 0]), tf.zeros([1])
    learner.driver.run(graph, seed, zero)
    return best_seconds(lambda: np.asarray(learner.driver.run(graph, seed, zero).device), 20)


if __name__ == "__main__":
    main()
