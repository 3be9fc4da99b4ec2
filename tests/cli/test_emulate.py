"""`run --emulate`: devices that are not what the plan says."""

from __future__ import annotations

import pytest

from tests.cli.test_bad_input import refused

# Explicit costs hold on every topology, so these vertices have flops and bytes.
SLOW = {"devices": [{"name": name, "flops_per_s": 1.0} for name in "ab"], "links": {"bandwidth_bytes_per_s": 1.0}}
FAST = {"devices": [{"name": name, "flops_per_s": 2.0} for name in "ab"], "links": {"bandwidth_bytes_per_s": 2.0}}
NODES = [{"id": v, "flops": 2.0, "output_bytes": 2.0} for v in range(2)]


def test_a_run_takes_what_it_takes_in_truth(cli, write):
    graph = write({"graph": {"name": "pair"}, "nodes": NODES, "edges": [{"source": 0, "target": 1}]}, "pair.json")
    fast, slow, assignment = write(FAST, "fast.json"), write(SLOW, "slow.json"), write([0, 1], "assignment.json")
    argv = ("run", graph, "--topology", fast, "--assignment", assignment, "--executor", "emulated", "--time-scale", 0.05, "--json")
    found = cli(*argv, "--emulate", slow).json
    assert found["simulated_makespan_s"] == 3.0
    assert 6.0 <= found["makespan_s"] < 9.0
    assert found["trace_valid"]
    assert 3.0 <= cli(*argv).json["makespan_s"] < 6.0


@pytest.mark.parametrize("command", [["run", "--executor", "emulated", "--assignment"], ["train", "--real", 8, "--run-dir"]])
def test_a_truth_that_cannot_cost_the_graph_is_refused_before_anything_is_done(cli, write, tmp_path, command):
    graph = write({"graph": {"name": "pair"}, "nodes": NODES, "edges": []}, "pair.json")
    other = tmp_path / "run" if command[0] == "train" else write([0, 1], "assignment.json")
    found = cli(*command, other, graph, "--topology", write(FAST, "fast.json"), "--emulate", "ideal:2", "--json")
    refused(found, "pair", "flops_per_s")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("argv", "fragments"), [
    (["--executor", "emulated", "--emulate", "ideal:3"], ["--emulate", "2 devices", "ideal:3 with 3"]),
    (["--executor", "tf", "--emulate", "ideal:2"], ["--emulate", "emulated devices", "--executor tf"]),
    (["--executor", "emulated", "--emulate", "absent.json"], ["absent.json"]),
])
def test_bad_truths(cli, diamond, write, argv, fragments):
    refused(cli("run", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), *argv, "--json"), *fragments)
