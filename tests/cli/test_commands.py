"""What each command does and says, on graphs whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from doppler_tf.cli.options import RULES
from doppler_tf.formats.chrome_trace import read_trace
from doppler_tf.schedule.assignment import DISPATCH_RULES

REFERENCE = Path(__file__).resolve().parents[2] / ".." / "shared" / "reference"
PNG = b"\x89PNG\r\n\x1a\n"


def test_info_counts_and_bounds(cli, diamond):
    outcome = cli("info", diamond, "--topology", "ideal:2", "--json")
    assert outcome.code == 0
    found = outcome.json
    assert {key: found[key] for key in ("name", "vertices", "edges", "input_vertices", "work_vertices", "depth", "work_s")} == {
        "name": "diamond", "vertices": 4, "edges": 4, "input_vertices": 1, "work_vertices": 3, "depth": 2, "work_s": 5.0}
    assert found["bounds"] == {"work_s": 2.5, "path_s": 3.0, "join_s": 4.0}
    assert found["lower_bound_s"] == 4.0
    assert found["kinds"]["matmul"]["vertices"] == 2


def test_info_without_topology_has_no_bounds(cli, diamond):
    found = cli("info", diamond, "--json").json
    assert "bounds" not in found
    assert found["flops"] is None


def test_simulate_a_bare_list(cli, diamond, write):
    found = cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--json").json
    assert (found["makespan_s"], found["lower_bound_s"]) == (4.0, 4.0)
    assert found["busy"] == {"device:0": 0.75, "device:1": 0.5}
    assert found["busy_links"] == {"device:1 -> device:0": 0.25}
    assert found["trace_valid"] is True
    assert found["work_conserving"] is True


@pytest.mark.parametrize("executor", [None, "emulated", "synchronous"])
def test_the_peak_memory_of_every_device_is_told(cli, record, write, executor):
    for node, size in zip(record["nodes"], (1e3, 2e3, 4e3, 8e3), strict=True):
        node["output_bytes"] = size
    job = (write(record, "g.json"), "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--json")
    outcome = cli("simulate", *job) if executor is None else cli("run", *job, "--executor", executor, "--time-scale", 0.01)
    # a (2 kB) waits on device 0 for b's copy (4 kB), and c (8 kB) is made of both; b is made of the input (1 kB) on device 1
    assert outcome.json["peak_bytes"] == {"device:0": 14e3, "device:1": 5e3}
    assert "14 kB" in outcome.err


@pytest.mark.parametrize("dispatch", ["fifo", "b_level", "order"])
def test_what_place_reports_simulate_confirms(cli, tmp_path, dispatch):
    graph, placed = tmp_path / "g.json", tmp_path / "a.json"
    made = cli("workload", "ffnn", "--devices", 4, "--out", graph, "--json").json
    found = cli("place", graph, "--topology", "p100x4", "--samples", 8, "--dispatch", dispatch, "--out", placed, "--json").json
    assert found["makespan_s"] == min(found["members"].values()) == found["members"][found["method"]]
    assert found["makespan_s"] >= found["lower_bound_s"]
    again = cli("simulate", graph, "--topology", "p100x4", "--assignment", placed, "--json").json
    assert again["makespan_s"] == found["makespan_s"]
    assert (again["dispatch"], again["method"], again["graph"]) == (dispatch, found["method"], made["name"])


def test_large_workloads_by_their_own_options(cli, tmp_path):
    made = cli("workload", "llama_stack", "--devices", 2, "--layers", 3, "--out", tmp_path / "deep.json", "--json").json
    assert (made["name"], made["has_kernels"]) == ("llama_stack", True)
    assert json.loads((tmp_path / "deep.json").read_text())["graph"]["workload"]["options"]["layers"] == 3
    graphs = [cli("workload", "layered", "--devices", 2, "--vertices", 120, "--option", "degree=1.5", "--seed", seed,
                  "--out", tmp_path / f"{n}.json", "--json").json for n, seed in enumerate((4, 4, 5))]
    assert {(graph["vertices"], graph["edges"], graph["has_kernels"]) for graph in graphs} == {(120, 156, False)}
    first, again, other = ((tmp_path / f"{n}.json").read_text() for n in range(3))
    assert first == again != other


def test_place_with_one_method_and_seed_repeats_itself(cli, diamond):
    first, second = (cli("place", diamond, "--topology", "ideal:2", "--method", "random", "--samples", 1, "--seed", 3, "--json").json
                     for _ in range(2))
    assert first["method"] == "random"
    assert first["makespan_s"] == second["makespan_s"]


def test_reference_graph_in_units_of_its_own(cli):
    graph = REFERENCE / "chainmm.graph.json"
    if not graph.exists():
        pytest.skip("../shared/reference is absent")
    shown = cli("place", graph, "--topology", "ideal:4", "--method", "one_device")
    assert "48.0028e12" in shown.out
    assert "+300.0%" in shown.out


def test_seconds_are_shown_in_milliseconds(cli, diamond):
    assert "5,000 ms" in cli("place", diamond, "--topology", "ideal:2", "--method", "one_device").out


def test_compare_has_a_row_a_method(cli, diamond):
    found = cli("compare", diamond, "--topology", "ideal:2", "--methods", "one_device,critical_path", "--seeds", 2, "--json").json
    assert list(found["methods"]) == ["one_device", "critical_path"]
    assert found["methods"]["one_device"]["makespan_s"] == 5.0
    assert found["methods"]["critical_path"]["best_makespan_s"] == 4.0


def test_compare_shows_what_runs_out_of_memory(cli, record, write):
    for node in record["nodes"][1:]:
        node["output_bytes"] = 10
    graph = write(record, "fat.json")
    topology = write({"devices": [{"name": "d0", "memory_bytes": 19}, {"name": "d1", "memory_bytes": 30}]}, "small.json")
    found = cli("compare", graph, "--topology", topology, "--methods", "one_device,critical_path", "--json")
    assert found.code == 0
    assert found.json["methods"]["one_device"]["makespan_s"] is None
    assert found.json["methods"]["critical_path"]["makespan_s"] >= 4.0
    placed = cli("place", graph, "--topology", topology, "--json")
    assert placed.json["members"]["one_device"] is None
    for table in (found.err, placed.err):
        assert any("one_device" in line and "out of memory" in line for line in table.splitlines())


def test_compare_tells_how_many_simulations_a_search_has_made(cli, write):
    """CP-SAT has simulated each of the few assignments that its solver has met, the climb ends at the bound."""
    tasks = write({"graph": {"name": "tasks"}, "nodes": [{"id": v, "exec_s": 2} for v in "abcd"], "edges": []}, "tasks.json")
    found = cli("compare", tasks, "--topology", "ideal:2", "--methods", "cp_sat,local_search,random", "--json").json["methods"]
    assert 1 <= found["cp_sat"]["samples"] < 100
    assert 1 <= found["local_search"]["samples"] < 200_000
    assert found["random"]["samples"] == 50


def test_out_of_memory_is_exit_code_1(cli, record, write):
    record["nodes"][1]["output_bytes"] = 100
    topology = write({"devices": [{"name": "d0", "memory_bytes": 10}]}, "tiny.json")
    outcome = cli("simulate", write(record, "fat.json"), "--topology", topology, "--assignment", write([None, 0, 0, 0]), "--json")
    assert outcome.code == 1
    assert "out of memory" in outcome.json["error"]
    assert len(outcome.err.splitlines()) == 1


def test_trace_judges_a_file_by_itself(cli, diamond, write, tmp_path):
    path = tmp_path / "run.trace.json"
    simulated = cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--trace", path, "--json").json
    found = cli("trace", path, "--gantt", tmp_path / "run.png", "--json").json
    assert found["makespan_s"] == simulated["makespan_s"]
    assert (found["trace_valid"], found["work_conserving"], found["clock"]) == (True, True, None)
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_trace_names_what_is_wrong(cli, diamond, write, tmp_path):
    path = tmp_path / "run.trace.json"
    cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--trace", path)
    spoiled = json.loads(path.read_text())
    for event in spoiled["traceEvents"]:
        if event.get("cat") == "vertex" and event["args"]["vertex"] == 3:
            event["args"]["start_s"] = 1.0
    found = cli("trace", write(spoiled, "spoiled.json"), "--json").json
    assert found["trace_valid"] is False
    assert "c" in found["first_violations"][0]
    spoiled["traceEvents"] = [event for event in spoiled["traceEvents"] if event.get("cat") != "vertex" or event["args"]["vertex"] != 3]
    assert "never ran" in cli("trace", write(spoiled, "spoiled.json"), "--json").json["first_violations"][0]


def test_trace_keeps_the_costs_of_its_run(cli, diamond, write, tmp_path):
    path = tmp_path / "run.trace.json"
    cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--trace", path)
    stored = json.loads(path.read_text())
    stored["metadata"]["costs"]["exec_s"][1] = [7.0, 7.0]
    np.testing.assert_array_equal(read_trace(write(stored, "measured.json")).costs.exec_s[1], [7.0, 7.0])
    assert cli("trace", write(stored, "measured.json"), "--json").json["lower_bound_s"] == 8.0


def test_run_on_emulated_devices(cli, diamond, write, tmp_path):
    path = tmp_path / "run.trace.json"
    outcome = cli("run", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--executor", "emulated",
                  "--time-scale", 0.05, "--repeats", 3, "--trace", path, "--json")
    found = outcome.json
    assert outcome.code == 0
    assert found["makespan_s"] == sorted(found["makespans_s"])[1]
    assert 4.0 <= found["makespan_s"] < 6.0
    assert found["simulated_makespan_s"] == 4.0
    assert (found["outputs_match"], found["relative_error"]) == (None, None)
    assert (found["trace_valid"], found["work_conserving"], found["device_kind"]) == (True, True, "emulated")
    assert cli("trace", path, "--json").json["makespan_s"] == found["makespan_s"]


def test_run_of_a_graph_in_own_units_finds_a_time_scale(cli, record, write):
    for node in record["nodes"][1:]:
        node["exec_s"] *= 1e12
    outcome = cli("run", write(record, "units.json"), "--topology", "ideal:2", "--assignment", write([None, 0, 0, 0]),
                  "--executor", "synchronous", "--json")
    assert outcome.json["time_scale"] == 4e-13
    assert "time scale" in outcome.err
    assert outcome.json["makespan_s"] >= 5e12


def test_tilings_are_tried_and_shown(cli, tmp_path):
    out = tmp_path / "g.json"
    command = ("workload", "llama_block", "--devices", 2, "--scale", "small", "--option", "tokens=64", "--tiling", "auto", "--topology",
               "cpu:2", "--budget-s", 0.5, "--out", out)
    made = cli(*command, "--json").json
    assert {*made["tilings"]} == {"published", "data", "tensor", "mixed",
                                  "eindecomp, 2 pieces", "eindecomp, 4 pieces", "eindecomp, 8 pieces"}
    assert made["tiling"] == next(iter(made["tilings"])) != "published"
    fastest = made["tilings"][made["tiling"]]["makespan_s"]
    assert all(fastest <= row["makespan_s"] for row in made["tilings"].values())
    assert made["tilings"]["published"]["searched_s"] is not None
    method, _, pieces = made["tiling"].partition(", ")
    assert json.loads(out.read_text())["graph"]["workload"]["tiling"] == {
        "method": method, **({"pieces": int(pieces.split()[0])} if pieces else {})}
    assert "tilings of llama_block on cpu:2" in cli(*command).out
    placed = cli("place", out, "--topology", "cpu:2", "--out", tmp_path / "a.json", "--json").json
    assert placed["makespan_s"] == pytest.approx(fastest, rel=0.05)
    ran = cli("run", out, "--topology", "cpu:2", "--assignment", tmp_path / "a.json", "--executor", "tf", "--json").json
    assert ran["outputs_match"]


@pytest.mark.parametrize(("options", "message"), [
    (("--tiling", "auto"), "--tiling auto: --topology: expected a topology on which to place, got none"),
    (("--tiling", "best"), "--tiling: expected one of published, data, tensor, mixed, eindecomp, auto, got 'best'"),
    (("--pieces", 4), "--pieces: expected --tiling eindecomp beside it, got --tiling published"),
    (("--topology", "cpu:2"), "--topology: expected --tiling auto beside it"),
    (("--tiling", "auto", "--topology", "cpu:x"), "cpu:x")])
def test_tilings_that_are_refused(cli, tmp_path, options, message):
    outcome = cli("workload", "ffnn", "--devices", 2, "--scale", "small", *options, "--out", tmp_path / "g.json")
    assert (outcome.code, (tmp_path / "g.json").exists()) == (2, False)
    assert message in outcome.err


@pytest.mark.parametrize(("name", "optimizer", "executor"), [
    ("ffnn", "momentum", ()), *(pytest.param(name, "adam", executor, marks=pytest.mark.thorough)
                                for name in ("chainmm", "llama_layer") for executor in ((), ("--merge",)))])
def test_a_training_step_is_placed_and_run(cli, tmp_path, name, optimizer, executor):
    graph, placed = tmp_path / "g.json", tmp_path / "a.json"
    cli("workload", name, "--devices", 2, "--scale", "small", "--training", "--optimizer", optimizer, "--out", graph)
    assert json.loads(graph.read_text())["graph"]["workload"]["training"] == {"optimizer": optimizer}
    cli("place", graph, "--topology", "cpu:2", "--method", "critical_path", "--out", placed)
    ran = cli("run", graph, "--topology", "cpu:2", "--assignment", placed, "--executor", "tf", *executor, "--json").json
    assert (ran["outputs_match"], ran["trace_valid"]) == (True, True), ran


@pytest.mark.parametrize("executor", [pytest.param((), marks=pytest.mark.thorough), ("--merge",)])
def test_recomputation_is_chosen_by_placing_and_runs(cli, tmp_path, executor):
    """Both graphs are placed. With it, the outputs of real kernels are those of the uncut program."""
    graph, placed, command = tmp_path / "g.json", tmp_path / "a.json", ("workload", "llama_layer", "--devices", 2, "--scale", "small",
                                                                       "--option", "tokens=64", "--training")
    tried = cli(*command, "--recompute", "auto", "--topology", "cpu:2", "--budget-s", 0.2, "--out", graph, "--json").json
    assert {*tried["tilings"]} == {"published", "published, recomputed"}
    assert tried["tiling"] == min(tried["tilings"], key=lambda name: tried["tilings"][name]["makespan_s"])
    cli(*command, "--recompute", "always", "--out", graph)
    assert json.loads(graph.read_text())["graph"]["workload"]["training"] == {"optimizer": "sgd", "recompute": True}
    cli("place", graph, "--topology", "cpu:2", "--method", "critical_path", "--out", placed)
    ran = cli("run", graph, "--topology", "cpu:2", "--assignment", placed, "--executor", "tf", *executor, "--json").json
    assert (ran["outputs_match"], ran["trace_valid"]) == (True, True), ran


@pytest.mark.parametrize(("options", "message"), [
    (("--optimizer", "adam"), "--optimizer: expected --training beside it, got adam alone; add --training"),
    (("--training", "--optimizer", "adagrad"), "--optimizer: expected one of sgd, momentum, adam, got 'adagrad'"),
    (("--recompute", "always"), "--recompute: expected --training beside it, got always alone; add --training"),
    (("--training", "--recompute", "some"), "--recompute: expected one of never, always, auto, got 'some'"),
    (("--training", "--recompute", "auto"), "--recompute auto: --topology: expected a topology on which to place, got none")])
def test_training_that_is_refused(cli, tmp_path, options, message):
    outcome = cli("workload", "ffnn", "--devices", 2, "--scale", "small", *options, "--out", tmp_path / "g.json")
    assert (outcome.code, (tmp_path / "g.json").exists()) == (2, False)
    assert message in outcome.err


def test_options_know_the_dispatch_rules():
    """They are written out where options are parsed, because `doppler_tf.schedule.assignment` takes long to import."""
    assert RULES == DISPATCH_RULES
