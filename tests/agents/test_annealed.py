"""A teacher that anneals: policies repeat what it found, and what does not fit in memory is said."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from agents.config import TrainConfig
from agents.training.annealed import annealing, learn_annealed
from agents.training.learner import Compiled, Learner
from agents.training.stages import Training
from agents.training.task import Task
from data.layered import Layered, layered_graph
from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal, preset
from doppler_tf.heuristics.search.budget import Found
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from tests.quiet_training import train

NOTHING = Compiled(episodes=False, updates=False)  # takes longer than the little that is learned here
SMALL = TrainConfig(imitation=32, simulated=480, polish=0, batch=16, hidden=16, rounds=1)


@pytest.mark.thorough
def test_policies_end_with_what_an_annealed_teacher_found(tmp_path, random_graph):
    graph, topology = random_graph(14, 3), ideal(3)
    config = replace(SMALL, teacher="annealing", elite=0.5, imitation=0, simulated=160, seed=2)
    result = train([graph], topology, tmp_path / "run", config)[graph.name]
    annealed = place(graph, topology, "annealing", seed=2).makespan_s
    assert result["best_makespan_s"] <= annealed * (1 + 1e-12)
    assert result["greedy_makespan_s"] == pytest.approx(result["best_makespan_s"])
    assert 1 <= result["search_simulations"] <= 1_500_000  # 7.5 times what `place` makes; fewer where the bound is reached
    again = train([graph], topology, tmp_path / "run", config, resume=True)[graph.name]
    assert again["search_simulations"] == result["search_simulations"]


def training_of(graphs, topology, config) -> Training:
    """One that is not compiled."""
    task = Task.of(graphs, [build_costs(graph, topology) for graph in graphs], config)
    return Training.of(task, Learner(task, NOTHING))


def test_an_annealed_teacher_of_a_graph_that_never_fits_in_memory(chains):
    def annealed(graph, *_):
        every = np.arange(graph.num_vertices, dtype=np.int32)
        return Found(Assignment(0 * every, every), np.inf if graph.name == "large" else 1.0, simulations=1)

    large = graph_from_records([{"id": v, "exec_s": 1.0, "output_bytes": 8.0} for v in range(4)], [], {"name": "large"})
    graphs = [chains(2, "small"), large]
    topology = Topology.from_json({"devices": [{"name": "a", "memory_bytes": 10}, {"name": "b", "memory_bytes": 10}]})
    training = training_of(graphs, topology, replace(SMALL, teacher="annealing", elite=0.5))
    with pytest.raises(DeadlockError, match="large: out of memory with any assignment: the results and outputs that nobody consumes"):
        learn_annealed(training, annealed)


TEACHER = partial(annealing, most=200)  # what little annealing finds is irregular, too


@pytest.mark.thorough
def test_an_annealed_teacher_is_repeated_to_the_letter_on_eight_devices():
    graph = layered_graph(Layered(100, 10, 1.8, 2, 6, 1e10, 8e6, 0.5), 0)
    pupil = training_of([graph], preset("v100x8"), TrainConfig(teacher="annealing", elite=0.5))
    learn_annealed(pupil, TEACHER)
    learner = pupil.learner
    assert pupil.greedy(learner.best_network)[0].makespan_s <= pupil.best.episodes[0].makespan_s * (1 + 1e-12)
    assert learner.agent.optimizers[1].learning_rate.numpy() == pytest.approx(pupil.task.config.learning_rate)  # faster only meanwhile
    assert int(learner.updates) <= 70  # 64; at the learning rate of stages 80


def test_an_annealed_teacher_counts_where_no_greedy_episode_fits_in_memory(chains):
    pupil = training_of([chains(4)], ideal(2), replace(SMALL, teacher="annealing", elite=0.5))
    learner = pupil.learner
    untaught = [v.numpy() for v in learner.best_network.trainable_variables]
    pupil.environment.judge_by([lambda devices, orders: np.full(len(devices), np.inf)])
    learn_annealed(pupil, TEACHER, most_updates=8)
    taught = [v.numpy() for v in learner.best_network.trainable_variables]
    assert any(not np.array_equal(a, b) for a, b in zip(untaught, taught, strict=True))
    for a, b in zip(taught, learner.network.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b.numpy())
