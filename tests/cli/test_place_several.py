"""`place` with several graphs: each as if alone, in this process or on Ray; one that fails is told, and the others are placed."""

from __future__ import annotations

import json

import pytest

from data import build_workload
from doppler_tf.formats.graph_json import write_graph
from tests.cli.conftest import DIAMOND
from tests.cli.test_bad_input import refused

SHOWN = ("method", "dispatch", "makespan_s", "lower_bound_s", "members", "rules")


@pytest.fixture
def folder(tmp_path):
    """Three small graphs."""
    for devices in (2, 3, 4):
        write_graph(tmp_path / "graphs" / f"g{devices}.graph.json", build_workload("chainmm", devices, scale="small"))
    return tmp_path / "graphs"


@pytest.mark.parametrize("more", [[], pytest.param(["--jobs", 2], marks=pytest.mark.thorough)])
@pytest.mark.parametrize("how", [["--method", "heft"], ["--method", "annealing", "--samples", 300, "--seed", 2],
                                 ["--method", "critical_path", "--in-flight", 2]])
def test_each_is_placed_as_if_alone(cli, folder, tmp_path, how, more):
    outcome = cli("place", folder, "--topology", "cpu:2", *how, "--out", tmp_path / "many", "--json", *more)
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert (found["topology"], found["failed"], list(found["graphs"])) == ("cpu:2", {}, ["g2", "g3", "g4"])
    for name, row in found["graphs"].items():
        alone = cli("place", folder / f"{name}.graph.json", "--topology", "cpu:2", *how, "--out", tmp_path / "one.json", "--json").json
        assert [row[key] for key in SHOWN] == [alone[key] for key in SHOWN]
        assert row["out"] == str(tmp_path / "many" / f"{name}.json")
        assert json.loads((tmp_path / "many" / f"{name}.json").read_text()) == json.loads((tmp_path / "one.json").read_text())


def test_a_table_of_all(cli, diamond, folder):
    outcome = cli("place", diamond, folder, "--topology", "cpu:2", "--method", "one_device")
    assert outcome.code == 0
    for fragment in ("on cpu:2", "diamond", "g2", "g4", "one_device", "nowhere; --out DIR writes them"):
        assert fragment in outcome.out


def test_one_that_does_not_fit_is_told_and_the_others_are_placed(cli, write, tmp_path):
    large = json.loads(json.dumps(DIAMOND))
    for node in large["nodes"][1:]:
        node["output_bytes"] = 100
    write(large, "large.json")
    small = write(DIAMOND, "small.json")
    topology = write({"devices": [{"name": name, "memory_bytes": 50} for name in "ab"]}, "topology")
    outcome = cli("place", tmp_path / "large.json", small, "--topology", topology, "--method", "heft", "--out", tmp_path / "out", "--json")
    assert outcome.code == 1
    assert list(outcome.json["graphs"]) == ["small"]
    assert "memory" in outcome.json["failed"]["large"]
    assert "large" in outcome.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "small.json"]


def test_mistakes(cli, diamond, folder, tmp_path, write):
    how = ("--topology", "cpu:2", "--method", "heft", "--json")
    refused(cli("place", diamond, diamond, *how), "different names", "rename")
    refused(cli("place", diamond, tmp_path / "absent.json", *how), "absent.json", "no such file")
    refused(cli("place", folder, *how, "--gantt", tmp_path / "g.png"), "--gantt", "one graph file")
    refused(cli("place", diamond, folder, *how, "--measure", 3), "--measure", "one graph file")
    assert cli("place", diamond, folder, *how, "--method", "policy", "--policy", tmp_path / "absent").code == 2
    refused(cli("place", diamond, *how, "--out", tmp_path), "Is a directory")
    (tmp_path / "empty").mkdir()
    refused(cli("place", tmp_path / "empty", *how), "empty", ".json")
    write({"nodes": 3}, "graphs/bad.json")
    refused(cli("place", folder, *how), "bad.json", "nodes")


def test_what_would_fail_for_each_is_refused_at_once(cli, folder, write):
    refused(cli("place", folder, "--topology", "cpu:2", "--method", "magic", "--json"), "place: method: expected one of auto")
    refused(cli("place", folder, "--topology", "cpu:2", "--out", write({}, "a_file.json"), "--json"), "a_file.json", "--out")
