"""What `train` hands to the agents: settings, executor and graphs, with a trainer that only takes notes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from doppler_tf.assignment import Assignment
from tests.cli.test_bad_input import refused

OUTCOME = {"greedy_makespan_s": 5.0, "best_makespan_s": 4.0, "lower_bound_s": 4.0, "episodes": 7, "seconds": 0.5}


@pytest.fixture
def train(cli, diamond, tmp_path, monkeypatch) -> Callable:
    """Calls `train` on the diamond; returns (outcome, what the trainer was given)."""
    from agents import training

    def call(*argv, graphs=(diamond,)):
        given = {}

        def note_down(graphs, topology, run_dir, config, executor=None, resume=False, progress=True):
            given.update(names=[graph.name for graph in graphs], topology=topology.name, run_dir=run_dir, config=config, executor=executor,
                         resume=resume)
            return {graph.name: OUTCOME for graph in graphs}

        monkeypatch.setattr(training, "train", note_down)
        return cli("train", *graphs, "--topology", "ideal:2", "--run-dir", tmp_path / "run", *argv, "--json"), given

    return call


def test_the_defaults_are_the_agents_own(train, tmp_path):
    from agents.config import TrainConfig

    outcome, given = train()
    assert outcome.json["graphs"] == {"diamond": OUTCOME}
    assert given == {"names": ["diamond"], "topology": "ideal:2", "run_dir": tmp_path / "run", "config": TrainConfig(), "executor": None,
                     "resume": False}


def test_options_win_over_set_and_set_over_the_file(train, write):
    config = write({"simulated": 1, "imitation": 2, "entropy": 0.5, "seed": 3}, "config.json")
    _, given = train("--config", config, "--set", "imitation=20", "--set", "batch=8", "--simulated", 10)
    found = given["config"]
    assert (found.simulated, found.imitation, found.entropy, found.batch, found.seed) == (10, 20, 0.5, 8, 3)
    assert train("--config", "paper", "--seed", 4)[1]["config"].seed == 4


def test_a_resumed_run_keeps_its_settings(train, tmp_path):
    from agents.config import TrainConfig
    from agents.training import RUN_SCHEMA

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


def test_each_graph_runs_on_its_own_tensors(cli, tmp_path):
    from doppler_tf.cli.executors import ByGraph
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
    (["--set", "batch=many"], ["batch", "'many'"]),
    (["--simulated", "-1"], ["--simulated"]),
    (["--config", "absent.json"], ["absent.json"]),
])
def test_bad_settings(train, argv, fragments):
    outcome, given = train(*argv)
    refused(outcome, *fragments)
    assert not given


def test_graphs_of_one_name_cannot_be_told_apart(train, diamond, record, write):
    outcome, _ = train(graphs=(diamond, write(record, "twin.json")))
    refused(outcome, "twin.json", "'diamond'", "rename")
