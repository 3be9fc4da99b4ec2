"""One learner serves trainings that differ in seed and budget, and what it learned before leaves no trace."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from agents.config import TrainConfig
from agents.training.learner import KeptLearner, Learner
from agents.training.task import Task
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from tests import quiet_training
from tests.quiet_training import load_policy

CONFIG = TrainConfig(imitation=8, simulated=64, batch=8, hidden=8, rounds=1)


def counting() -> tuple[list[Learner], KeptLearner]:
    """The learners that are made, not taken again, and who makes and keeps them."""
    made = []

    def make(task: Task) -> Learner:
        made.append(Learner(task))
        return made[-1]

    return made, KeptLearner(make)


def run(made, kept, graph, folder, config=CONFIG, **how):
    """All that a run leaves but its seconds: figures, weights, steps of both optimizers and temperatures."""
    outcome = quiet_training.train([graph], ideal(2), folder, config, kept=kept, **how)[graph.name]
    outcome.pop("seconds")
    last = made[-1]
    variables = (*last.network.variables, *last.best_network.variables, *last.optimizer_variables, last.updates)
    return json.dumps(outcome, sort_keys=True), [v.numpy() for v in variables]


def same(a, b) -> bool:
    return a[0] == b[0] and all(np.array_equal(x, y) for x, y in zip(a[1], b[1], strict=True))


def test_a_learner_serves_again_as_if_it_were_new(chains, tmp_path):
    graph, (made, kept) = chains(3), counting()
    first = run(made, kept, graph, tmp_path / "a")
    other = run(made, kept, graph, tmp_path / "b", replace(CONFIG, seed=1))
    again = run(made, kept, graph, tmp_path / "c")
    assert same(first, again)
    assert not same(first, other)
    assert same(again, run(made, kept, graph, tmp_path / "a", resume=True))  # all of it comes from the checkpoint
    assert len(made) == 1


class Stub:
    """Stands for a learner where only who makes one matters."""

    def __init__(self, task: Task):
        self.begun = 0

    def begin(self, config):
        self.begun += 1


@pytest.mark.parametrize(("change", "serves"), [
    ({"seed": 3, "simulated": 80, "mutations": 2.0, "elite": 0.0, "learning_rate": 1e-2, "keep": 7}, True),
    ({"hidden": 16}, False), ({"rounds": 2}, False), ({"batch": 4}, False), ({"clip": 2.0}, False), ({"identity": False}, False),
    ({"features": "paper"}, False), ({"method": "placeto"}, False), ({"simulated": 80_000}, False)])  # enough to be compiled
def test_other_networks_need_another_learner(chains, change, serves):
    case, kept = ([chains(2)], [build_costs(chains(2), ideal(2))]), KeptLearner(Stub)
    with kept.lent(*case, CONFIG) as (_, first), kept.lent(*case, CONFIG) as (_, other):
        assert other is not first  # nobody else may have it
    with kept.lent(*case, CONFIG) as (_, first):
        pass
    begun, config = first.begun, replace(CONFIG, **change)
    with kept.lent(*case, config) as (task, second):
        assert task.config == config
        assert (second is first) == serves
        assert second.begun == (begun + 1 if serves else 0)


def test_other_graphs_and_devices_need_another_learner(chains):
    learners, kept = [], KeptLearner(Stub)
    for graph, topology in ((chains(2), ideal(2)), (chains(3), ideal(2)), (chains(3), ideal(3)), (chains(3), ideal(3))):
        with kept.lent([graph], [build_costs(graph, topology)], CONFIG) as (_, lent):
            learners.append(lent)
    assert len(set(map(id, learners[:3]))) == 3
    assert learners[3] is learners[2]
    kept.forget()
    with kept.lent([graph], [build_costs(graph, topology)], CONFIG) as (_, lent):
        assert lent is not learners[3]


def test_policies_of_one_kind_keep_their_own_weights(chains, tmp_path):
    """Loaded side by side and drawn from in turns."""
    graph, (made, kept) = chains(3), counting()
    costs = build_costs(graph, ideal(2))
    for seed in (0, 1):
        run(made, kept, graph, tmp_path / str(seed), replace(CONFIG, seed=seed, simulated=0, imitation=0))
    alone = [[(a.order.tolist(), a.device.tolist()) for a in load_policy(tmp_path / str(seed))(graph, costs, 6, 0)] for seed in (0, 1)]
    both = [load_policy(tmp_path / str(seed)) for seed in (0, 1)]
    for _ in range(2):
        for seed in (0, 1):
            assert [(a.order.tolist(), a.device.tolist()) for a in both[seed](graph, costs, 6, 0)] == alone[seed]
    assert alone[0] != alone[1]
