"""Climbs from sampled episodes: what they find is the best episode, with the costs that hold now, and every method learns from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.config import METHOD_NAMES, TrainConfig
from agents.training import summaries
from agents.training.polishing import polish
from agents.training.simulated import SimulatedStage
from agents.training.stages import Training
from agents.training.task import Task
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from tests.quiet_training import KEPT, train

CONFIG = TrainConfig(imitation=0, simulated=64, batch=8, hidden=8, rounds=1, polish=400)


def training_of(graphs, topology, config=CONFIG):
    task = Task.of(graphs, [build_costs(graph, topology) for graph in graphs], config)
    with KEPT.lent(task) as learner:
        return Training.of(task, learner)


def after_a_batch(training, step=0):
    """The seconds of the best episodes before and after climbs from a batch."""
    experience = training.driver.run((0, step))
    training.best(experience)
    before = [episode.makespan_s for episode in training.best.episodes]
    polish(training, experience, step)
    return before, [episode.makespan_s for episode in training.best.episodes]


@pytest.mark.parametrize("dispatch", ["auto", *(pytest.param(rule, marks=pytest.mark.thorough) for rule in ("fifo", "b_level"))])
def test_a_climb_shortens_the_best_episodes_and_they_take_what_it_says(random_graph, dispatch):
    graphs = [random_graph(40, seed=3), random_graph(60, seed=4)]
    training = training_of(graphs, ideal(3), replace(CONFIG, dispatch=dispatch))
    before, after = after_a_batch(training)
    for g in range(2):
        assert after[g] < before[g]
        assignment = training.task.assignment(g, training.best.episodes[g])
        found = FastSimulator(graphs[g], training.task.costs[g], training.task.config.rule).makespans(
            assignment.device[None], assignment.order[None])
        assert found[0] == after[g]
    assert after == after_a_batch(training_of(graphs, ideal(3), replace(CONFIG, dispatch=dispatch)))[1]  # the seed decides


def test_without_simulations_nothing_is_polished(random_graph):
    graphs = [random_graph(40, seed=3), random_graph(60, seed=4)]
    before, after = after_a_batch(training_of(graphs, ideal(3), replace(CONFIG, polish=0)))
    assert before == after


def test_a_best_episode_at_the_bound_is_left_alone(chains, monkeypatch):
    training = training_of([chains(2)], ideal(2))
    monkeypatch.setattr("agents.training.polishing.climb", lambda *args: pytest.fail("there is nothing to find"))
    while training.best.episodes[0].makespan_s > 3.0:
        training.best(training.driver.run((0, int(training.learner.updates.assign_add(1)))))
    polish(training, training.driver.run((0, 0)), 0)


def test_climbs_are_judged_by_the_costs_that_hold_now():
    """A device that turns out to be slow is left."""
    graph = graph_from_records([{"id": v, "flops": 1.0} for v in range(8)], [])
    fast, slow = (Topology.from_json({"devices": [{"name": "a", "flops_per_s": 1.0}, {"name": "b", "flops_per_s": speed}]})
                  for speed in (1.0, 1e-3))
    training = training_of([graph], fast)
    training.judge_by([build_costs(graph, slow)])
    assert after_a_batch(training)[1] == [8.0]
    assert training.task.assignment(0, training.best.episodes[0]).device.tolist() == [0] * 8


def test_samples_that_do_not_fit_in_memory_are_passed_over():
    graph = graph_from_records([{"id": v, "exec_s": 1.0, "output_bytes": 8.0} for v in range(4)], [])
    topology = Topology.from_json({"devices": [{"name": name, "memory_bytes": 10} for name in "ab"]})
    assert after_a_batch(training_of([graph], topology)) == ([np.inf], [np.inf])


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_learns_from_climbs(random_graph, method):
    graph = random_graph(30, seed=5)
    training = training_of([graph], ideal(3), replace(CONFIG, method=method))
    stage = SimulatedStage(training)
    sampled_s = [stage.update(step, 0.0)[graph.name][summaries.SAMPLED] for step in range(3)]
    assert training.best.episodes[0].makespan_s < min(sampled_s)
    assert training.climbed == [3 * 400]
    assert np.isfinite(training.learner.weights()).all()


@pytest.mark.thorough
def test_policies_repeat_what_climbs_found(random_graph, tmp_path):
    """In so few episodes they would not find it alone."""
    graph, config = random_graph(20, seed=5), replace(CONFIG, simulated=640, batch=16, hidden=16, rounds=1)
    alone, polished = (train([graph], ideal(3), tmp_path / str(polish), replace(config, polish=polish))[graph.name] for polish in (0, 400))
    assert polished["greedy_makespan_s"] <= polished["best_makespan_s"] * (1 + 1e-12) < alone["greedy_makespan_s"]
