"""Several batches of one graph in flight: placed, simulated, run, and compared with the original."""

from __future__ import annotations

import json

import pytest

from data.capture import capture
from doppler_tf.formats.graph_json import write_graph
from tests.captured_models import MODELS
from tests.cli.test_bad_input import refused
from tests.commands import doppler


@pytest.fixture
def model(tmp_path):
    """Captures a small model and writes its graph."""

    def make(name):
        function, inputs = MODELS[name]()
        write_graph(tmp_path / "graph.json", capture(function, inputs, model_folder=tmp_path / "graph.model", grouping=False))
        return tmp_path / "graph.json"

    return make


# A chain, a training step whose variables reach the next batch, operations that keep an order.
@pytest.mark.parametrize("name", ["dense", "adam", "asserting"])
def test_each_batch_has_the_outputs_of_the_original(name, model, tmp_path):
    graph, placed = model(name), tmp_path / "placed.json"
    for how in (("--method", "round_robin"), ("--in-flight", 3)):
        found = doppler("place", graph, "--topology", "cpu:2", *how, "--out", placed)
        result = doppler("run", graph, "--topology", "cpu:2", "--assignment", placed, "--executor", "tf", "--repeat", 7, "--in-flight", 3)
        assert result["outputs_match"], result
        assert result["trace_valid"]
        assert result["work_conserving"]
        assert (result["repeat"], result["in_flight"], result["dispatch"]) == (7, 3, "order")
        assert result["throughput_per_s"] == pytest.approx(7 / result["makespan_s"])
        assert 0 < result["latency_s"] <= result["makespan_s"]
        assert result["simulated_throughput_per_s"] > 0
    # What keeps a state stays on one device.
    assert ("a device for each batch" in found["members"]) == (name != "asserting")


def test_workloads_run_in_batches_and_simulations_agree(tmp_path):
    graph, placed = tmp_path / "ffnn.json", tmp_path / "placed.json"
    doppler("workload", "ffnn", "--devices", 2, "--scale", "small", "--out", graph)
    doppler("place", graph, "--topology", "cpu:2", "--out", placed)
    batches = ("--topology", "cpu:2", "--assignment", placed, "--repeat", 4, "--in-flight", 2)
    ran = doppler("run", graph, *batches, "--executor", "tf")
    assert ran["outputs_match"]
    simulated = doppler("simulate", graph, *batches, "--gantt", tmp_path / "gantt.png")
    assert simulated["throughput_per_s"] == ran["simulated_throughput_per_s"]
    assert (tmp_path / "gantt.png").stat().st_size
    emulated = doppler("run", graph, *batches, "--executor", "emulated")
    assert emulated["latency_s"] > 0.9 * simulated["latency_s"]


def test_a_device_for_each_batch_of_a_chain(cli, tmp_path):
    """Nothing of a chain runs side by side; two batches do."""
    graph = tmp_path / "chain.json"
    graph.write_text('{"nodes": [{"id": 0, "exec_s": 1, "output_bytes": 8}, {"id": 1, "exec_s": 1, "output_bytes": 8}], '
                     '"edges": [{"source": 0, "target": 1, "transfer_s": 1}], "graph": {"name": "chain"}}')
    alone = doppler("place", graph, "--topology", "ideal:2")
    together = doppler("place", graph, "--topology", "ideal:2", "--in-flight", 2, "--out", tmp_path / "placed.json")
    assert (alone["makespan_s"], together["makespan_s"], together["latency_s"], together["throughput_per_s"]) == (2, 2, 2, 1)
    result = doppler("simulate", graph, "--topology", "ideal:2", "--assignment", tmp_path / "placed.json", "--repeat", 10, "--in-flight", 2)
    assert (result["makespan_s"], result["throughput_per_s"]) == (10, 1)
    shown = cli("simulate", graph, "--topology", "ideal:2", "--assignment", tmp_path / "placed.json", "--repeat", 10, "--in-flight", 2).out
    assert "10, 2 in flight" in shown
    assert "latency of a batch" in shown


@pytest.mark.parametrize("emulated", [False, True])
def test_runs_choose_between_batches_on_one_device_and_on_several(emulated, model, tmp_path):
    graph, placed = model("dense"), tmp_path / "placed.json"
    how = ("--time-scale", 1) if emulated else ()
    found = doppler("place", graph, "--topology", "cpu:2", "--in-flight", 2, "--measure", 12, *how, "--out", placed)
    assert "one_device" in found["measured"]
    # Of members that run alike one is measured.
    assert {*found["measured"]} & {*found["members"]}
    assert sum(finalist["runs"] for finalist in found["measured"].values()) <= 12
    assert found["method"] == found["chosen"]
    # What is printed is of the assignment that is written.
    assert found["makespan_s"] == found["measured"][found["chosen"]]["simulated_s"]
    assert found["throughput_per_s"] == pytest.approx(2 / found["makespan_s"])
    again = doppler("run", graph, "--topology", "cpu:2", "--assignment", placed, "--executor", "tf", "--repeat", 4, "--in-flight", 2)
    assert again["outputs_match"]


def test_what_does_not_go_together_is_refused(cli, diamond, tmp_path):
    placed = tmp_path / "placed.json"
    doppler("place", diamond, "--topology", "ideal:2", "--in-flight", 2, "--out", placed)
    run = ("run", diamond, "--topology", "ideal:2", "--executor", "emulated", "--assignment", placed)
    for argv, message in (
            ((*run, "--in-flight", 2), "--in-flight 2: expected --repeat M beside it"),
            ((*run, "--repeat", 0), "--repeat: expected an integer >= 1"),
            (run, "batches: expected none, as for one batch, got 2; give --repeat 2")):
        outcome = cli(*argv)
        assert outcome.code == 2, argv
        assert message in outcome.err


def test_a_rule_beside_batches(cli, tmp_path):
    """The file of one batch may be run by another rule. That of several has an order of its own."""
    graph, one, two = tmp_path / "g.json", tmp_path / "one.json", tmp_path / "two.json"
    doppler("workload", "chainmm", "--devices", 2, "--scale", "small", "--out", graph)
    topology = ("--topology", "cpu:2")
    doppler("place", graph, *topology, "--method", "critical_path", "--dispatch", "fifo", "--out", one)
    alone = doppler("simulate", graph, *topology, "--assignment", one)
    repeated = doppler("simulate", graph, *topology, "--assignment", one, "--repeat", 1)
    assert (repeated["makespan_s"], repeated["dispatch"]) == (alone["makespan_s"], "order")
    doppler("place", graph, *topology, "--in-flight", 2, "--out", two)
    more = ("--repeat", 2, "--in-flight", 2, "--json")
    for file, words, messages in ((one, ("--dispatch", "lifo"), ["--dispatch: expected one of fifo, b_level, order, got 'lifo'"]),
                                  (two, ("--dispatch", "fifo"), ["--dispatch fifo: expected none beside", "leave it out"])):
        refused(cli("simulate", graph, *topology, "--assignment", file, *more, *words), *messages)
    record = json.loads(two.read_text())
    for batches in (10**9, 0, True, "two"):
        two.write_text(json.dumps({**record, "batches": batches}))
        refused(cli("simulate", graph, *topology, "--assignment", two, *more), str(two), "batches: expected a number of batches")
    record = json.loads(one.read_text())
    one.write_text(json.dumps({**record, "dispatch": "order", "order": None}))
    refused(cli("simulate", graph, *topology, "--assignment", one, *more), "priority: expected a priority or an order")
