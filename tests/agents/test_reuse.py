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
from doppler_tf.graph.records import graph_from_records, graph_to_records
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


@pytest.fixture(scope="module")
def kept(chains) -> tuple[list[Learner], KeptLearner]:
    """One that keeps a learner of `CONFIG` for three chains on two devices."""
    made, kept = counting()
    with kept.lent(task(chains(3))):
        pass
    return made, kept


def task(graph, devices: int = 2, config: TrainConfig = CONFIG) -> Task:
    return Task.of([graph], [build_costs(graph, ideal(devices))], config)


def test_a_learner_serves_again_as_if_it_were_new(kept, chains, tmp_path):
    graph, (made, kept) = chains(3), kept
    first = run(made, kept, graph, tmp_path / "a")
    other = run(made, kept, graph, tmp_path / "b", replace(CONFIG, seed=1))
    again = run(made, kept, graph, tmp_path / "c")
    assert same(first, again)
    assert not same(first, other)
    assert same(again, run(made, kept, graph, tmp_path / "a", resume=True))  # all of it comes from the checkpoint
    assert len(made) == 1


@pytest.mark.parametrize(("change", "serves"), [
    ({"seed": 3, "simulated": 80, "mutations": 2.0, "elite": 0.0, "learning_rate": 1e-2, "keep": 7, "identity": False}, True),
    ({"hidden": 16}, False), ({"rounds": 2}, False), ({"batch": 4}, False), ({"clip": 2.0}, False), ({"dispatch": "fifo"}, False),
    ({"features": "paper"}, False), ({"method": "placeto"}, False), ({"simulated": 80_000}, False)])  # enough to be compiled
def test_other_networks_need_another_learner(kept, chains, change, serves):
    made, _ = kept
    assert made[0].serves(task(chains(3), config=replace(CONFIG, **change))) == serves


def dearer(graph):
    """Of the same vertices and edges, at other costs."""
    nodes, edges, attributes = graph_to_records(graph)
    return graph_from_records([{**node, "exec_s": 2.0 + v} for v, node in enumerate(nodes)], edges, attributes)


def test_other_shapes_need_another_learner_and_other_numbers_do_not(kept, chains):
    made, _ = kept
    cases = task(dearer(chains(3))), task(chains(2)), task(chains(3), devices=3)
    assert [made[0].serves(each) for each in cases] == [True, False, False]


def test_a_learner_serves_one_training_at_a_time(chains):
    made, kept = counting()
    with kept.lent(task(chains(2))) as first, kept.lent(task(chains(2))) as other:
        assert other is not first  # nobody else may have it
    with kept.lent(task(chains(2))) as again:
        assert again is first  # which was given back last
    kept.forget()
    with kept.lent(task(chains(2))) as fresh:
        assert fresh is not first
    assert len(made) == 3


@pytest.mark.thorough  # whom it serves: the test before; as if it were new: the first test
def test_it_learns_other_graphs_as_a_new_learner_does(kept, chains, tmp_path):
    """Equal shapes share what is compiled. No number of the graph before is left in it."""
    (made, kept), graph = kept, dearer(chains(3))
    run(made, kept, chains(3), tmp_path / "before")
    served = run(made, kept, graph, tmp_path / "served")
    assert len(made) == 1
    assert same(served, run(*counting(), graph, tmp_path / "new"))


def test_policies_of_one_kind_keep_their_own_weights(kept, chains, tmp_path):
    """Loaded side by side and drawn from in turns."""
    graph, (made, kept) = chains(3), kept
    costs = build_costs(graph, ideal(2))
    for seed in (0, 1):
        run(made, kept, graph, tmp_path / str(seed), replace(CONFIG, seed=seed, simulated=0, imitation=0))
    alone = [[(a.order.tolist(), a.device.tolist()) for a in load_policy(tmp_path / str(seed))(graph, costs, 6, 0)] for seed in (0, 1)]
    both = [load_policy(tmp_path / str(seed)) for seed in (0, 1)]
    for _ in range(2):
        for seed in (0, 1):
            assert [(a.order.tolist(), a.device.tolist()) for a in both[seed](graph, costs, 6, 0)] == alone[seed]
    assert alone[0] != alone[1]
