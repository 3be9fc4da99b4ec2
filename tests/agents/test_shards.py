"""Stage II in parts: together they learn what one process learns, and what a part has lost it is told again."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from agents.config import TrainConfig
from agents.policies.agent import Lesson
from agents.policies.losses import rank_advantage
from agents.policies.trajectories import episodes_of, seconds_of
from agents.training import shards
from agents.training.learner import Learner
from agents.training.shards import Shards, Workers
from agents.training.stages import Training
from agents.training.task import Task
from doppler_tf.errors import DopplerError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from doppler_tf.tasks import Ended, open_tasks
from tests import faulty_work
from tests.quiet_training import train

SMALL = TrainConfig(imitation=0, simulated=480, polish=0, batch=16, hidden=16, rounds=1)


class InTurn:
    """The workers of `OnRay` as seen by `Shards`, in this process, whose memory they share. Only the first `started` ever start."""

    def __init__(self, workers: int, started: int | None = None):
        self.workers, self.started, self._tasks = workers, started or workers, {}

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def idle(self) -> list[int]:
        return [worker for worker in range(self.started) if worker not in self._tasks]

    def start(self, worker: int, key: str, function: Callable, *args: Any) -> None:
        self._tasks[worker] = key, function, args

    def wait(self) -> list[Ended]:
        key, function, args = self._tasks.pop(next(iter(self._tasks)))
        try:
            return [Ended(key, function(*args), "")]
        except MemoryError as error:
            return [Ended(key, None, f"MemoryError: {error}")]


def without_memory(sent: bytes) -> Any:
    if pickle.loads(sent).shard == 1:
        raise MemoryError("no more")
    return shards.work(sent)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(shards, "_AT_WORK", {})


@pytest.fixture(scope="module")
def kept(random_graph) -> tuple[Task, Learner]:
    """What takes long to trace."""
    graphs = [random_graph(9, seed=1), random_graph(6, seed=2)]
    task = Task.of(graphs, [build_costs(graph, ideal(2)) for graph in graphs], SMALL)
    return task, Learner(task)


@pytest.fixture
def training(kept) -> Training:
    task, learner = kept
    learner.begin(task)
    return Training.of(task, learner)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_the_parts_learn_what_one_process_learns(training, workers, monkeypatch):
    """The same episodes, elite, and weights: gradients, loss and entropies of all parts are those of the whole batch."""
    task, agent, vertices = training.task, training.learner.agent, training.task.num_vertices
    driver = Shards(training, Workers(InTurn(workers), shards.work), [training.best])
    experience = driver.run((3, 4))
    action, elite = experience.action, training.elite.choices(experience)
    assert len(elite.graph) > 0
    np.testing.assert_array_equal(seconds_of(experience), training.environment.makespans(
        task.graph, action["vertex"].numpy(), action["device"].numpy()))
    applied = []
    apply = agent.apply
    monkeypatch.setattr(agent, "apply", lambda gradients: applied.append(gradients) or apply(gradients))
    before = training.learner.weights()
    reward = tf.reduce_sum(experience.reward, axis=1)
    advantage = rank_advantage(reward, tf.constant(task.graph), tf.constant(task.weights))
    again = training.driver.replay(task.graph, action["vertex"].numpy(), action["device"].numpy())
    whole = agent.gradients(episodes_of(again, vertices), episodes_of(training.driver.replay(*elite), vertices),
                            Lesson(advantage, *map(tf.constant, (task.weights, 0.1, 0.5, 1.0, 1.0))))
    info = driver.train(experience, tf.constant(task.weights), 0.1, elite, 0.5).extra
    assert np.abs(whole.of_policies[0]).max() > 1e-3
    assert np.isfinite(info.sel_gradient)
    assert np.abs(training.learner.weights() - before).max() > 0
    tf.nest.map_structure(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), applied[0], whole)


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [False, True])
def test_what_a_process_does_not_have_it_is_told(training, lost, monkeypatch):
    """Without memory of the episodes it replays them; workers that never start leave their parts to others."""
    def parts(driver: Shards) -> list:
        applied = []
        apply = training.learner.agent.apply
        with monkeypatch.context() as patched:
            patched.setattr(training.learner.agent, "apply", lambda gradients: applied.append(gradients) or apply(gradients))
            driver.train(experience, tf.constant(training.task.weights), 0.1, None, 0.0)
        return applied

    weights = training.learner.weights()
    found = []
    for workers, forgets in ((InTurn(2), False), (InTurn(2, started=1), lost)):
        training.learner.set_weights(weights)
        driver = Shards(training, Workers(workers, shards.work), [])
        experience = driver.run((3, 4))
        if forgets:
            shards._AT_WORK.clear()
        found += parts(driver)
    tf.nest.map_structure(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *found)


def test_parts_draw_different_episodes(training):
    driver = Shards(training, Workers(InTurn(2), shards.work), [])
    first, again, other = (driver.run(seed).action["device"].numpy() for seed in ((3, 4), (3, 4), (3, 5)))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.thorough
def test_it_learns_the_optimum_and_a_single_process_goes_on(tmp_path, chains):
    """With parts of unequal size, and two graphs of which one is shorter."""
    graphs = [chains(2, "two"), chains(4, "four")]
    workers = Workers(InTurn(3), shards.work)
    result = train(graphs, ideal(2), tmp_path, SMALL, workers=workers)
    assert {name: each["best_makespan_s"] for name, each in result.items()} == {"two": 3.0, "four": 6.0}
    assert result["two"]["greedy_makespan_s"] == 3.0
    assert result["two"]["episodes"] == 480
    (tmp_path / "result.json").unlink()
    assert train(graphs, ideal(2), tmp_path, resume=True)["four"]["best_makespan_s"] == 6.0


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["joint", "per_step", "placeto", "gdp", "sel_only", "plc_only"])
def test_every_method_learns_in_parts(tmp_path, chains, method):
    config = replace(SMALL, method=method, simulated=32, hidden=8, rounds=1)
    assert train([chains(2)], ideal(2), tmp_path, config, workers=Workers(InTurn(2), shards.work))["chains"]["episodes"] == 32


@pytest.mark.thorough  # that a lost worker's task is done again: tests/test_tasks.py
def test_a_lost_worker_costs_nothing_but_time(tmp_path, chains, caplog):
    with open_tasks("local", 2, 2) as tasks, caplog.at_level("INFO"):
        config = replace(SMALL, hidden=8, rounds=1)
        lost = Workers(tasks, partial(faulty_work.killed, tmp_path / "mark"))
        result = train([chains(4)], ideal(2), tmp_path / "lost", config, workers=lost)["chains"]
        assert (result["best_makespan_s"], result["episodes"]) == (6.0, 480)
        assert "was lost; another one does it again" in caplog.text
        undisturbed = train([chains(4)], ideal(2), tmp_path / "kept", config, workers=Workers(tasks, shards.work))["chains"]
        assert {**result, "seconds": 0} == {**undisturbed, "seconds": 0}


def test_a_part_that_fails_is_told(training):
    with pytest.raises(DopplerError, match=r"^--jobs: part 2 of 2 of a batch failed: MemoryError: no more$"):
        Shards(training, Workers(InTurn(2), without_memory), []).run((3, 4))
