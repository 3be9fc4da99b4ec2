"""What `train` hands to the agents: settings, executor and graphs, with a trainer that only takes notes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from doppler_tf.schedule.assignment import Assignment
from tests.cli.test_bad_input import refused

OUTCOME = {"greedy_makespan_s": 5.0, "best_makespan_s": 4.0, "best_method": "policy, climbed", "lower_bound_s": 4.0, "episodes": 7,
           "seconds": 0.5}


@pytest.fixture
def train(cli, diamond, tmp_path, monkeypatch) -> Callable:
    """Calls `train` on the diamond; returns (outcome, what the trainer was given)."""
    from agents.training import run as training

    def call(*argv, graphs=(diamond,)):
        given = {}

        def note_down(graphs, topology, run_dir, config, executor=None, resume=False, progress=True, init=None,
                       workers=None):
            given.update(names=[graph.name for graph in graphs], topology=topology.name, run_dir=run_dir, config=config, executor=executor,
                         resume=resume, init=init, workers=workers and workers.tasks.workers)
            return {graph.name: OUTCOME for graph in graphs}

        monkeypatch.setattr(training, "train", note_down)
        return cli("train", *graphs, "--topology", "ideal:2", "--run-dir", tmp_path / "run", *argv, "--json"), given

    return call


def test_the_defaults_are_the_agents_own(train, tmp_path):
    from agents.config import TrainConfig

    outcome, given = train()
    assert outcome.json["graphs"] == {"diamond": OUTCOME}
    assert "4,000 ms, climbed" in outcome.err
    assert "all updates of the run took 0.5 s" in outcome.err
    assert given == {"names": ["diamond"], "topology": "ideal:2", "run_dir": tmp_path / "run", "config": TrainConfig(), "executor": None,
                     "resume": False, "init": None, "workers": None}


def test_a_run_to_start_from_reaches_the_trainer(train, tmp_path):
    assert train("--init", tmp_path / "other")[1]["init"] == tmp_path / "other"


def test_workers_reach_the_trainer_but_none_without_simulated_episodes(train):
    assert train("--jobs", 2)[1]["workers"] == 2
    assert train("--jobs", 2, "--simulated", 0)[1]["workers"] is None


def test_options_win_over_set_and_set_over_the_file(train, write):
    config = write({"simulated": 1, "imitation": 2, "entropy": 0.5, "seed": 3}, "config.json")
    _, given = train("--config", config, "--set", "imitation=20", "--set", "batch=8", "--simulated", 10)
    found = given["config"]
    assert (found.simulated, found.imitation, found.entropy, found.batch, found.seed) == (10, 20, 0.5, 8, 3)
    assert train("--config", "paper", "--seed", 4)[1]["config"].seed == 4


@pytest.mark.parametrize(("argv", "seed"), [
    ([], 3), (["--seed", 0], 0), (["--seed", 5], 5), (["--set", "seed=4"], 4), (["--set", "seed=4", "--seed", 0], 0)])
def test_a_seed_that_is_asked_for_wins_0_as_well(train, write, argv, seed):
    assert train("--config", write({"seed": 3}, "config.json"), *argv)[1]["config"].seed == seed


def test_the_method_is_a_setting(train):
    assert train("--method", "placeto")[1]["config"].method == "placeto"
    assert train("--set", "method=gdp", "--method", "joint")[1]["config"].method == "joint"


def test_a_resumed_run_keeps_its_settings(train, tmp_path):
    from agents.config import RUN_SCHEMA, TrainConfig

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"schema": RUN_SCHEMA, "config": TrainConfig(batch=8).to_json()}))
    outcome, given = train("--resume", "--simulated", 10)
    assert (given["config"], given["resume"]) == (TrainConfig(batch=8), True)
    assert "hold" in outcome.err
    (tmp_path / "run" / "config.json").unlink()
    refused(train("--resume")[0], "config.json")


def test_the_real_stage_needs_kernels_or_a_time_scale(train):
    outcome, given = train("--real", 16)
    assert "real stage: 0 episodes" in outcome.err
    assert (given["config"].real, given["executor"]) == (0, None)


@pytest.mark.parametrize(("argv", "episodes"), [(["--time-scale", "0.001"], 128), (["--time-scale", "0.001", "--real", "3"], 3)])
def test_a_time_scale_emulates(train, argv, episodes):
    from runtime import EmulatedExecutor

    _, given = train(*argv)
    assert given["config"].real == episodes
    assert isinstance(given["executor"], EmulatedExecutor)


@pytest.mark.parametrize(("argv", "real", "minutes"), [
    (["--real-minutes", "2"], 1_000_000, 2.0), (["--real-minutes", "2", "--real", "7"], 7, 2.0), ([], 128, 0.0)])
def test_devices_may_be_others_than_planned_and_runs_end_by_number_or_minutes(train, write, argv, real, minutes):
    from doppler_tf.graph.topology import Topology

    slow = write({"devices": [{"name": "a"}, {"name": "b"}], "links": {"latency_s": 3.0}}, "slow.json")
    found = train("--emulate", slow, *argv)[1]
    config, truth = found["config"], found["executor"]._devices._truth
    assert (config.real, config.real_minutes, config.executor, config.emulate) == (real, minutes, "emulated", str(slow))
    assert isinstance(truth, Topology)
    assert truth.latency_s[0, 1] == 3.0


def test_real_runs_are_shown_and_told(train, monkeypatch):
    measured = {"before_s": 6.0, "greedy_s": 5.0, "best_s": None, "before_runs": 9, "greedy_runs": 8, "best_runs": 0, "runs": 99,
                "failed": 3}
    monkeypatch.setitem(OUTCOME, "measured", measured)
    outcome, _ = train("--time-scale", 1)
    assert outcome.json["graphs"]["diamond"]["measured"] == measured
    shown = outcome.err
    monkeypatch.setitem(OUTCOME, "measured", {**measured, "best_s": 4.0, "best_runs": 7, "method": "one_device"})
    assert "4,000 ms (7), one_device" in train("--time-scale", 1)[0].err
    assert [fragment for fragment in ("greedy before", "6,000 ms (9)", "5,000 ms (8)", " 99 ", " 3 ") if fragment not in shown] == [], shown


def test_each_graph_runs_on_its_own_tensors(cli, tmp_path):
    from doppler_tf.api.executors import ByGraph
    from doppler_tf.formats.graph_json import read_graph

    class Named:
        def __init__(self, name):
            self.name = name

        def execute(self, graph, costs, assignment):
            return self.name

    made = []
    for size in (1, 2):
        cli("workload", "chainmm", "--devices", size, "--out", tmp_path / f"{size}.json")
        made.append(read_graph(tmp_path / f"{size}.json"))
    executor = ByGraph([(graph, Named(i)) for i, graph in enumerate(made)])
    assert [executor.execute(graph, None, Assignment(graph.exec_s)) for graph in made] == [0, 1]


@pytest.mark.parametrize(("argv", "fragments"), [
    (["--executor", "synchronous"], ["--executor", "emulated"]),
    (["--set", "speed=3"], ["speed", "batch"]),
    (["--set", "batch=0"], ["batch", "from 1"]),
    (["--method", "annealing"], ["method", "doppler or sel_only or plc_only or joint or per_step or placeto or gdp", "'annealing'"]),
    (["--set", "batch=many"], ["batch", "'many'"]),
    (["--simulated", "-1"], ["--simulated"]),
    (["--config", "absent.json"], ["absent.json"]),
    (["--real-minutes", "0"], ["--real-minutes", "> 0"]),
    (["--real", "4", "--set", "real_minutes=-1"], ["real_minutes", "from 0"]),
    (["--emulate", "absent.json"], ["absent.json"]),
    (["--emulate", "ideal:3"], ["--emulate", "2 devices", "ideal:3 with 3"]),
    (["--emulate", "ideal:2", "--executor", "tf"], ["--emulate", "--executor emulated"]),
    (["--set", "emulate=3"], ["emulate", "topology"]),
])
def test_bad_settings(train, argv, fragments):
    outcome, given = train(*argv)
    refused(outcome, *fragments)
    assert not given


def test_graphs_of_one_name_cannot_be_told_apart(train, diamond, record, write):
    outcome, _ = train(graphs=(diamond, write(record, "twin.json")))
    refused(outcome, "twin.json", "'diamond'", "rename")
