"""Whole runs: they learn, they resume to the same result, and bad requests end with a clear error."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from agents.checkpoints import checkpoint_folders
from agents.config import TrainConfig
from agents.policies.agent import UpdateInfo
from agents.policies.networks import temperatures
from agents.training.learner import Compiled, KeptLearner, Learner, worth_compiling
from agents.training.simulated import temper
from agents.training.task import Task
from data.imitation_dataset import read_episodes
from doppler_tf.errors import CheckpointError, ConfigError, DatasetError, DeadlockError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.files import held
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records, graph_to_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import CriticalPath
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.repetition import find_repetition
from doppler_tf.heuristics.repeats.tied_graph import tie
from doppler_tf.schedule.assignment import check_constraints
from doppler_tf.schedule.simulator import Simulator
from tests.heuristics.stacks import stack
from tests.quiet_training import KeptLearners, load_policy, train

NOTHING = Compiled(episodes=False, updates=False)  # takes longer than the little that is learned here
SMALL = TrainConfig(imitation=32, simulated=480, polish=0, batch=16, hidden=16, rounds=1, checkpoint_every=7)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run on two graphs."""
    def chains(count, name):
        nodes = [{"id": f"{c}.{i}", "exec_s": 1.0} for i in range(3) for c in range(count)]
        edges = [{"source": f"{c}.{i}", "target": f"{c}.{i + 1}", "transfer_s": 2.0} for i in range(2) for c in range(count)]
        return graph_from_records(nodes, edges, {"name": name})

    graphs = [chains(2, "two"), chains(4, "four")]
    folder = tmp_path_factory.mktemp("runs") / "run"
    return graphs, folder, train(graphs, ideal(2), folder, SMALL)


def test_it_learns_the_optimum_of_small_graphs(trained):
    _, folder, result = trained
    assert result["two"]["best_makespan_s"] == result["two"]["greedy_makespan_s"] == result["two"]["lower_bound_s"] == 3.0
    assert result["four"]["best_makespan_s"] == 6.0
    assert {path.name for path in folder.iterdir()} >= {"config.json", "checkpoints", "train", "dataset", "assignments", "result.json"}
    assert json.loads((folder / "result.json").read_text())["graphs"] == result


def test_the_stored_assignment_has_the_stored_makespan(trained):
    from doppler_tf.formats.assignment_json import read_assignment
    graphs, folder, result = trained
    for graph in graphs:
        costs = build_costs(graph, ideal(2))
        assignment = read_assignment(folder / "assignments" / f"{graph.name}.json", graph, costs)
        assert Simulator().execute(graph, costs, assignment).makespan_s == result[graph.name]["best_makespan_s"]


def test_the_run_folder_holds_the_graphs_and_the_topology(trained):
    graphs, folder, _ = trained
    stored = json.loads((folder / "config.json").read_text())
    for graph in graphs:
        again = read_graph(folder / "graphs" / f"{graph.name}.json")
        assert (again.name, again.graph_hash) == (graph.name, graph.graph_hash) == (graph.name, stored["graphs"][graph.name])
    assert read_topology(folder / "topology.json").topology_hash == ideal(2).topology_hash == stored["topology"]


def test_the_policy_places_other_graphs_on_other_numbers_of_devices(trained, chains):
    _, folder, _ = trained
    graph = chains(3)
    costs = build_costs(graph, ideal(3))
    placed = list(load_policy(folder)(graph, costs, 8, 0))
    assert len(placed) == 8
    makespans = FastSimulator(graph, costs).makespans(np.stack([a.device for a in placed]))
    assert (makespans >= 3).all()
    assert makespans.min() < 9
    again = load_policy(checkpoint_folders(folder / "checkpoints")[-1])(graph, costs, 8, 0)
    np.testing.assert_array_equal([a.device for a in placed], [a.device for a in again])
    one_by_one = [tuple(a.order.tolist()) + tuple(a.device.tolist()) for a in load_policy(folder, batch_bytes=1)(graph, costs, 8, 0)]
    assert one_by_one[0] == tuple(placed[0].order.tolist()) + tuple(placed[0].device.tolist())
    assert len(one_by_one) == 8
    assert len(set(one_by_one)) > 2


def test_what_repeats_is_placed_alike_but_a_graph_that_was_trained_on_as_it_is(tmp_path):
    small, large = stack(4, 6), stack(9, 6)
    train([small], ideal(2), tmp_path, replace(SMALL, imitation=0, simulated=0))
    policy, alike = load_policy(tmp_path), []
    for graph in (small, large):
        costs = build_costs(graph, ideal(2))
        repetition, placed = find_repetition(graph, costs), list(policy(graph, costs, 8, 0))
        assert len(placed) == 8
        for assignment in placed:
            check_constraints(graph, costs, assignment.device, "policy")
            assert sorted(assignment.order.tolist()) == graph.work_vertices.tolist()
        alike.append([len(set(a.device[repetition.chain == c].tolist())) == 1 for a in placed for c in range(len(repetition.lengths))])
    assert not all(alike[0])
    assert all(alike[1])


def test_what_fits_in_memory_twice_but_not_often_is_placed_as_it_is(trained):
    """The first vertex of each layer keeps much for a way back. Alike they are too much for a device."""
    nodes, edges, attributes = graph_to_records(stack(9, 6))
    for node in nodes:
        if str(node["id"]).endswith(".0"):
            node["output_bytes"] = 30
    for i in range(9):
        nodes.append({"id": f"back {i}", "exec_s": 1.0, "output_bytes": 1})
        before = f"back {i + 1}" if i < 8 else "last"
        edges += [{"source": source, "target": f"back {i}", "transfer_s": 0.5} for source in (f"{i}.0", before)]
    graph = graph_from_records(nodes, edges, attributes)
    costs = build_costs(graph, Topology.from_json({"devices": [{"name": f"d{d}", "memory_bytes": 230} for d in range(2)],
                                                   "links": {"bandwidth_bytes_per_s": 1e9, "latency_s": 0.1}}))
    simulator, tied = FastSimulator(graph, costs), tie(Problem(graph, costs))
    alike = [tied.whole(CriticalPath(tied.graph, tied.costs).sample(np.random.default_rng(seed))) for seed in range(8)]
    assert not np.isfinite(simulator.makespans_of(alike)).any()
    assert np.isfinite(simulator.makespans_of(list(load_policy(trained[1])(graph, costs, 64, 0)))).any()


class Killed(BaseException):
    """Ends a training as nothing in it can foresee."""


class Mortal(Learner):
    """Ends the training as it is to be written into a checkpoint after more than `lifetime` updates."""

    lifetime, end = np.inf, Killed

    @property
    def checkpointed(self) -> dict:
        if int(self.updates) > self.lifetime:
            raise self.end
        return super().checkpointed


@pytest.fixture
def mortal():
    """Learners are immortal again after the test."""
    yield Mortal
    Mortal.lifetime, Mortal.end = np.inf, Killed


MORTALS = KeptLearners(lambda task: Mortal(task, NOTHING))


# Trainings of usual length are compiled with XLA; those as short as here are not.
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["not compiled", "compiled"])
def test_an_interrupted_run_resumes_to_the_same_result(tmp_path, chains, random_graph, mortal, compiled):
    graph, config, whole, broken = random_graph(14, 1), replace(SMALL, polish=5), tmp_path / "whole", tmp_path / "broken"
    kept = KeptLearner(lambda task: Mortal(task, Compiled(True, True))) if compiled else MORTALS
    expected = train([graph], ideal(2), whole, config, kept=kept)
    for mortal.lifetime in (1, 12, 25):  # within stage I, between checkpoints of stage II, again
        with pytest.raises(Killed):
            train([graph], ideal(2), broken, config, resume=broken.exists(), kept=kept)
    mortal.lifetime = np.inf
    kept.forget()  # what is resumed must all come from the checkpoint
    got = train([graph], ideal(2), broken, config, resume=True, kept=kept)
    for result in (expected, got):
        result[graph.name].pop("seconds")
    assert got == expected
    other = chains(3)  # as in the test before, for what is compiled
    policies = [load_policy(folder)(other, build_costs(other, ideal(3)), 8, 3) for folder in (whole, broken)]
    for a, b in zip(*policies, strict=True):
        np.testing.assert_array_equal(a.device, b.device)
        np.testing.assert_array_equal(a.order, b.order)


def test_ctrl_c_keeps_the_last_checkpoint_and_says_how_to_go_on(tmp_path, random_graph, mortal):
    mortal.lifetime, mortal.end = 13, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match="the last checkpoint is step-00000007; go on with --resume"):
        train([random_graph(14, 1)], ideal(2), tmp_path / "run", SMALL, kept=MORTALS)  # as in the test before, for what is traced


def test_a_checkpoint_is_complete_or_absent(tmp_path, chains, monkeypatch):
    replace = os.replace

    def fail(source, target):
        if "step-" in str(target):
            raise OSError("no space left")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CheckpointError, match="got: no space left; make room there, and go on with --resume"):
        train([chains(2)], ideal(2), tmp_path / "run", SMALL)
    assert checkpoint_folders(tmp_path / "run" / "checkpoints") == []


def test_a_run_folder_that_cannot_be_written(tmp_path, chains):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"run folder: cannot be written: .*; choose another"):
            train([chains(2)], ideal(2), folder, SMALL)


def test_bad_requests(tmp_path, trained, chains):
    graphs, folder, _ = trained
    with pytest.raises(ConfigError, match="got one with checkpoints; go on with --resume"):
        train(graphs, ideal(2), folder, SMALL)
    with pytest.raises(CheckpointError, match="graphs: expected those that the run was started with"):
        train([chains(2)], ideal(2), folder, SMALL, resume=True)
    with pytest.raises(CheckpointError, match="topology: expected those"):
        train(graphs, ideal(3), folder, SMALL, resume=True)
    with pytest.raises(CheckpointError, match=r"config\.json: expected a run to resume, got none"):
        train(graphs, ideal(2), tmp_path / "new", SMALL, resume=True)
    with pytest.raises(CheckpointError, match="expected a run folder or a checkpoint of one, got neither"):
        load_policy(tmp_path)
    with pytest.raises(ConfigError, match="executor: expected one for 4 episodes of stage III"):
        train(graphs, ideal(2), tmp_path / "real", TrainConfig(real=4))
    dataset = next((folder / "dataset").iterdir())
    with pytest.raises(DatasetError, match="graph_hash"):
        read_episodes(dataset, "0" * 64, ideal(2).topology_hash)


def test_a_run_starts_from_the_policies_of_another(tmp_path, trained, chains):
    _, folder, _ = trained
    graph = chains(3)
    config = replace(SMALL, imitation=0, simulated=0)
    result = train([graph], ideal(3), tmp_path / "run", config, init=folder)["chains"]
    costs = build_costs(graph, ideal(3))
    greedy = next(iter(load_policy(folder)(graph, costs, 1, 0)))
    assert result["greedy_makespan_s"] == Simulator().execute(graph, costs, greedy).makespan_s
    with pytest.raises(ConfigError, match=r"run: hidden: expected 8, as this run's, got 16"):
        train([graph], ideal(3), tmp_path / "narrow", replace(config, hidden=8), init=folder)
    with pytest.raises(CheckpointError, match="expected a run folder or a checkpoint"):
        train([graph], ideal(3), tmp_path / "none", config, init=tmp_path / "nowhere")


def test_what_is_done_before_a_compiler_would_be_is_not_compiled(chains):
    few = TrainConfig(imitation=0, simulated=480)
    assert worth_compiling(TrainConfig(), [chains(2)]) == Compiled(episodes=True, updates=True)
    assert worth_compiling(few, [chains(2)]) == Compiled(episodes=False, updates=False)  # 30 updates of 6 steps
    assert worth_compiling(few, [chains(2), chains(23)]) == Compiled(episodes=True, updates=False)  # 60 of 69 at most
    assert worth_compiling(replace(few, teacher="annealing", elite=0.5), [chains(2)]) == Compiled(episodes=False, updates=True)  # 110
    assert worth_compiling(replace(few, real=16), [chains(2)]) == Compiled(episodes=False, updates=False)  # a round of 65 besides
    assert worth_compiling(replace(few, real=80), [chains(2)]) == Compiled(episodes=True, updates=True)
    assert worth_compiling(few, [chains(223)]) == Compiled(episodes=True, updates=True)  # 30 of 669


def test_temperatures_follow_the_entropy_that_is_wanted(chains):
    graph = chains(4)
    task = Task.of([graph], [build_costs(graph, ideal(2))], replace(SMALL, mutations=4.0))
    temperature = temperatures()
    info = UpdateInfo(*(tf.constant(value) for value in (0.0, 1e-4, 0.69, 0.0, 0.0)))  # SEL chooses almost surely, PLC at random
    for _ in range(3):
        temper(temperature, task, info, 0.5)
    sel, plc = temperature.numpy()
    assert sel == pytest.approx(np.exp(0.6))  # entropies further off than a factor of e count as that
    # 2 of 12 choices are wanted to differ: 2 / 12 * (1 + ln(12 / 2)) nats.
    assert plc == pytest.approx((0.465293 / 0.69) ** 0.6, rel=1e-4)
    for _ in range(100):
        temper(temperature, task, info, 1.0)
    np.testing.assert_allclose(temperature.numpy(), [20.0, 0.05])
    temper(temperature, task, info._replace(sel_entropy=tf.constant(0.0)), 0.5)  # a method that chooses devices alone
    assert temperature.numpy()[0] == 20.0


def test_imitation_alone_keeps_what_it_learned(tmp_path, chains):
    graph = chains(3)
    config = TrainConfig(imitation=320, simulated=0, batch=16, hidden=16, rounds=1)
    train([graph], ideal(3), tmp_path / "imitated", config)
    train([graph], ideal(3), tmp_path / "untrained", TrainConfig(imitation=0, simulated=0, batch=16, hidden=16, rounds=1))
    costs = build_costs(graph, ideal(3))
    policies = (load_policy(tmp_path / name) for name in ("imitated", "untrained"))
    # Eight at a time, as in the tests before, for what is traced.
    found = [np.stack([a.order for seed in range(4) for a in policy(graph, costs, 8, seed)]) for policy in policies]
    # The teacher takes the larger b-level first: the heads of the chains before all else.
    heads = [np.isin(orders[:, :3], [0, 1, 2]).mean() for orders in found]
    assert heads[0] > heads[1] + 0.1


def test_an_interruption_before_the_first_checkpoint_keeps_the_policies_of_another(tmp_path, trained, random_graph, mortal):
    _, folder, _ = trained
    mortal.lifetime, mortal.end = 0, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match="the last checkpoint is step-00000000"):
        train([random_graph(14, 1)], ideal(2), tmp_path / "run", SMALL, init=folder, kept=MORTALS)
    theirs, ours = (tf.train.load_checkpoint(str(checkpoint_folders(run / "checkpoints")[-1] / "variables"))
                    for run in (folder, tmp_path / "run"))
    weights = [name for name in theirs.get_variable_to_shape_map() if name.startswith("best_network/") and "OBJECT" not in name]
    assert len(weights) > 10
    for name in weights:
        for network in ("best_network", "network"):  # both go on from theirs
            np.testing.assert_array_equal(ours.get_tensor(name.replace("best_network", network, 1)), theirs.get_tensor(name))


def test_a_start_that_came_to_no_checkpoint_leaves_no_summaries(tmp_path, chains):
    graph, folder, config = chains(2), tmp_path / "run", replace(SMALL, imitation=0, simulated=0)
    with pytest.raises(CheckpointError):  # once the folder is opened
        train([graph], ideal(2), folder, config, init=tmp_path / "nowhere")
    (folder / "train").mkdir()
    (folder / "train" / "events.of.the.first").write_text("")
    for resume in (False, True):  # the second has a checkpoint to go on from
        train([graph], ideal(2), folder, config, resume=resume)
        kept = [path.name for path in (folder / "train").glob("events*")]
        assert "events.of.the.first" not in kept
        assert len(kept) == 1 + resume  # a file a start


def test_a_second_process_is_told_to_wait(tmp_path, chains):
    with held(tmp_path / "run", "run folder"), pytest.raises(ConfigError, match="that another process fills"):
        train([chains(2)], ideal(2), tmp_path / "run", SMALL)


def test_a_graph_that_fits_nowhere_is_said_at_once(tmp_path):
    topology = Topology.from_json({"devices": [{"name": "a", "memory_bytes": 5}, {"name": "b", "memory_bytes": 5}]})
    with pytest.raises(DeadlockError, match="out of memory"):
        train([graph_from_records([{"id": v, "exec_s": 1.0, "output_bytes": 10} for v in range(6)],
                                  [{"source": v, "target": v + 1} for v in range(5)])], topology, tmp_path / "run", SMALL)


def test_names_of_graphs_stay_inside_the_run_folder(tmp_path, chains):
    config = replace(SMALL, imitation=0, simulated=16)
    result = train([chains(2, "../../out")], ideal(2), tmp_path / "deep" / "run", config)
    assert list(result) == ["../../out"]
    assert [path.name for path in (tmp_path / "deep" / "run" / "assignments").iterdir()] == ["_.._out.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    with pytest.raises(ConfigError, match="expected different names, got 'a_b' twice"):
        train([chains(2, "a b"), chains(3, "a/b")], ideal(2), tmp_path / "two", config)
    with pytest.raises(ConfigError, match=r"expected a list of at least one graph, got DataflowGraph; pass \[graph\]"):
        train(chains(2), ideal(2), tmp_path / "two", config)
