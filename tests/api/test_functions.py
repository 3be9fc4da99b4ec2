"""What commands do, done by Python alone: with the same words, on values instead of files, and with the same results."""

from __future__ import annotations

import inspect
import io
import json
import logging
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import doppler_tf
from data import build_workload
from doppler_tf.cli.app import COMMANDS, build_parser
from doppler_tf.cli.completion import actions
from doppler_tf.errors import AssignmentError, ConfigError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import plain
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.topology import preset
from doppler_tf.notes import note
from doppler_tf.schedule.assignment import as_assignment
from doppler_tf.schedule.simulator import simulate
from tests.commands import doppler

# What each function takes that its command says otherwise, or has no need for.
BEYOND = {"capture": {"example_inputs", "example_keywords"}}
# Figures that a second run has anew.
TIMED = ("makespan_s", "makespans_s", "measured_s", "profiled_s", "seconds", "busy", "busy_links", "idle", "clock", "spread", "models",
         "kinds", "links", "peak_bytes", "relative_error", "violations", "first_violations")


@pytest.fixture(scope="module")
def graph():
    return build_workload("ffnn", 2, "small", batch=32, features=32, hidden=32)


@pytest.fixture(scope="module")
def calibrated(graph):
    return doppler_tf.calibrate(graph, "cpu:2", assignments=3, repeats=2)


def lasting(figures):
    """The figures as `--json` prints them, without what time decides and where files lie."""
    if isinstance(figures, dict):
        return {key: lasting(value) for key, value in plain(figures).items() if key not in (*TIMED, "files", "out", "model")}
    return [lasting(each) for each in figures] if isinstance(figures, list) else figures


def keys(figures):
    """The names of figures at all depths."""
    return {key: keys(value) for key, value in figures.items()} if isinstance(figures, dict) else None


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if hasattr(command, "FUNCTION")])
def test_options_and_parameters_have_the_same_names(name):
    room, _, function = COMMANDS[name].FUNCTION.rpartition(".")
    parser = next(action for action in build_parser()._actions if action.choices).choices[name]
    # --memory is a part of the topology.
    options = {action.dest for action in parser._actions} - {"help", "json", "verbose", "quiet", "memory"}
    parameters = set(inspect.signature(getattr(import_module(room), function)).parameters) - BEYOND.get(name, set())
    assert parameters <= options
    assert options - parameters <= {"seed"}  # which every command has, even where nothing is random
    assert len(list(actions(build_parser()))) > 100


def test_a_graph_is_calibrated_placed_measured_and_run(graph, calibrated, tmp_path):
    assert calibrated.graph.num_vertices < graph.num_vertices  # fused
    assert (calibrated.costs.exec_s[calibrated.graph.work_vertices] > 0).all()
    assert calibrated.figures["profile"]["kernels"] > 0
    assert calibrated.figures["files"] == {}
    placed = doppler_tf.place(calibrated.graph, calibrated.costs)
    chosen = doppler_tf.measure(placed, 6)
    assert chosen.figures["chosen"] in chosen.figures["measured"]
    assert simulate(calibrated.graph, calibrated.costs, chosen.assignment).makespan_s == pytest.approx(chosen.makespan_s)
    ran = doppler_tf.run(calibrated.graph, calibrated.costs, chosen.assignment, repeats=3, gantt=tmp_path / "run.png")
    assert ran.figures["outputs_match"] is True
    assert ran.figures["work_conserving"] is True
    assert sorted(ran.figures["makespans_s"])[1] == ran.trace.makespan_s == ran.figures["makespan_s"]
    assert np.array_equal(ran.trace.device, chosen.assignment.device[ran.trace.vertex])
    assert all(np.isfinite(tensor).all() for tensor in ran.outputs.values())
    assert (tmp_path / "run.png").stat().st_size > 1000


def test_calibrate_gives_what_the_command_prints(graph, calibrated, tmp_path):
    write_graph(tmp_path / "g.json", graph)
    printed = doppler("calibrate", tmp_path / "g.json", "--topology", "cpu:2", "--assignments", 3, "--repeats", 2, "--out", tmp_path / "o")
    assert lasting(calibrated.figures) == lasting(printed)
    assert keys(plain(calibrated.figures)["models"]) == keys(printed["models"])
    assert keys(plain(calibrated.figures)["kinds"]) == keys(printed["kinds"])


def test_run_gives_what_the_command_prints(graph, tmp_path):
    costs = doppler_tf.build_costs(graph, "cpu:2")
    assignment = doppler_tf.place(graph, costs, "critical_path").assignment
    write_graph(tmp_path / "g.json", graph)
    write_assignment(tmp_path / "a.json", graph, costs, assignment)
    asked = ("run", tmp_path / "g.json", "--topology", "cpu:2", "--assignment", tmp_path / "a.json", "--executor")
    for executor, words, argv in (("tf", {}, []), ("tf", {"merge": True}, ["--merge"]), ("synchronous", {"check": False}, ["--no-check"]),
                                  ("emulated", {"time_scale": 9.0}, ["--time-scale", 9])):
        ran = doppler_tf.run(graph, "cpu:2", assignment, executor, **words)
        printed = doppler(*asked, executor, *argv)
        assert lasting(ran.figures) == lasting(printed)
        assert ran.figures["outputs_match"] is (True if executor == "tf" else None)
    assert ran.graph.graph_hash == graph.graph_hash


def test_compare_gives_what_the_command_prints(graph, tmp_path):
    write_graph(tmp_path / "g.json", graph)
    methods = ["one_device", "critical_path"]
    found = doppler_tf.compare(graph, "cpu:2", methods, seeds=2)
    printed = doppler("compare", tmp_path / "g.json", "--topology", "cpu:2", "--methods", ",".join(methods), "--seeds", 2)
    simulated = {name: {key: row[key] for key in row if key != "seconds"} for name, row in printed["methods"].items()}
    assert {name: {key: row[key] for key in row if key != "seconds"} for name, row in found.figures["methods"].items()} == simulated
    assert found.figures["lower_bound_s"] == printed["lower_bound_s"]
    for name, assignment in found.assignments.items():
        assert simulate(found.graph, found.costs, assignment).makespan_s == simulated[name]["best_makespan_s"]
    assert found.figures["measured"] is printed["measured"] is None


@pytest.mark.thorough
def test_what_is_compared_is_measured_without_a_file(calibrated):
    methods = ["one_device", "critical_path"]
    rows = doppler_tf.compare(calibrated.graph, calibrated.costs, methods, measure=1).figures["measured"]
    assert list(rows)[:4] == ["TensorFlow alone, plain", "TensorFlow alone, xla", *methods]
    assert all(row["runs"] == 1 and row["median_s"] > 0 for row in rows.values())


def test_capture_takes_functions_and_texts(tmp_path):
    code = "import tensorflow as tf\n\n\ndef f(x):\n    return tf.tanh(x @ tf.ones([8, 8])) @ tf.ones([8, 2])\n"
    (tmp_path / "model.py").write_text(code)
    exec(code, known := {})
    found = doppler_tf.capture(known["f"], tmp_path / "f.json", tf.TensorSpec([4, 8]))
    assert found.figures["vertices"] == found.graph.num_vertices > 1
    assert doppler_tf.read_graph(tmp_path / "f.json").graph_hash == found.graph.graph_hash
    printed = doppler("capture", f"{tmp_path / 'model.py'}:f", "--input", "x=f32[4,8]", "--out", tmp_path / "g.json")
    assert {**lasting(found.figures), "name": "", "function": ""} == {**lasting(printed), "name": "", "function": ""}


@pytest.mark.thorough  # what it calls is called by the tests here
def test_the_page_calls_commands_from_python():
    page = (Path(__file__).parents[2] / "docs" / "howto.md").read_text(encoding="utf-8")
    block = page.partition("## Call commands from Python")[2].partition("```python\n")[2].partition("```")[0]
    exec(compile(block, "howto.md", "exec"), found := {})
    assert found["right"] is True
    assert found["seconds"] > 0
    assert found["error"] >= 0
    assert found["fastest"] in found["found"].figures["methods"]


def test_values_are_refused_as_options_are(graph):
    one = as_assignment(graph, doppler_tf.build_costs(graph, "cpu:2"), [None if is_input else 0 for is_input in graph.is_input.tolist()])
    with pytest.raises(ConfigError, match="--emulate"):
        doppler_tf.run(graph, "cpu:2", one, emulate=preset("cpu:2"))
    with pytest.raises(ConfigError, match="costs: expected one of given, estimated"):
        doppler_tf.run(graph, "cpu:2", one, costs="guessed")
    with pytest.raises(AssignmentError):
        doppler_tf.run(graph, "cpu:2", [0, 1])
    with pytest.raises(ConfigError, match="tf, emulated"):
        doppler_tf.calibrate(graph, "cpu:2", "synchronous")
    with pytest.raises(ConfigError, match="names among"):
        doppler_tf.compare(graph, "cpu:2", ["magic"])
    with pytest.raises(ConfigError, match=r"names among .*, got 'magic'"):
        doppler_tf.compare(graph, "cpu:2", "magic")
    placed = doppler_tf.place(graph, "cpu:2", "heft")
    for call in (lambda seed: doppler_tf.place(graph, "cpu:2", seed=seed), lambda seed: doppler_tf.run(graph, "cpu:2", one, seed=seed),
                 lambda seed: doppler_tf.compare(graph, "cpu:2", seed=seed), lambda seed: doppler_tf.measure(placed, 1, seed=seed),
                 lambda seed: doppler_tf.calibrate(graph, "cpu:2", seed=seed), lambda seed: doppler_tf.distribute(len, 1, seed=seed)):
        for seed in ("x", -1, 1.0, True, None):
            with pytest.raises(ConfigError, match="seed: expected an integer >= 0, got"):
                call(seed)
    with pytest.raises(ConfigError, match="distribute: budget_s: expected a finite number of seconds >= 0 or None, got 'long'"):
        doppler_tf.distribute(len, 1, budget_s="long")


def test_a_library_is_silent_until_its_user_listens():
    heard, log = io.StringIO(), logging.Logger.manager.loggerDict["doppler_tf"]
    before, handlers, propagates = log.level, log.handlers[:], log.propagate
    try:
        log.handlers[:], log.propagate = [], True
        log.setLevel(logging.NOTSET)
        with redirect_stderr(io.StringIO()) as said:
            note("nobody listens")
        log.addHandler(logging.StreamHandler(heard))
        log.setLevel(logging.INFO)
        note("25% of it")
    finally:
        log.handlers[:], log.propagate = handlers, propagates
        log.setLevel(before)
    assert (said.getvalue(), heard.getvalue()) == ("", "25% of it\n")


def test_a_report_by_python_is_the_commands(tmp_path):
    from tests.runs import make_run

    topology = preset("ideal:2")
    small = doppler_tf.read_graph(_chain())
    make_run(tmp_path / "run", [small], topology)
    found = doppler_tf.write_report(tmp_path / "run")
    page = found["page"].read_text()
    assert json.loads(json.dumps(plain(found))) == doppler("report", tmp_path / "run")
    assert found["page"].read_text() == page
    assert found["graphs"]["two"]["methods"]["critical_path"] == found["graphs"]["two"]["best_makespan_s"]


def _chain():
    import networkx as nx

    chain = nx.DiGraph(name="two")
    chain.add_node("a", exec_s=1.0)
    chain.add_node("b", exec_s=2.0)
    chain.add_edge("a", "b", transfer_s=1.0)
    return chain
