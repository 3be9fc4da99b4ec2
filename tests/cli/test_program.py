"""The program as a whole: start, help, streams, exit codes; in processes of its own where that matters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from data import build_workload
from doppler_tf.cli import app
from doppler_tf.cli.app import COMMANDS, main
from doppler_tf.formats.files import read_json
from doppler_tf.formats.graph_json import write_graph
from tests.heuristics.stacks import stack

ROOT = Path(__file__).resolve().parents[2]


def process(*argv: str, **options) -> subprocess.CompletedProcess:
    """The command line in a process of its own."""
    return subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_loads_nothing_heavy():
    done = process("-X", "importtime", "-m", "doppler_tf", "--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert loaded.isdisjoint({"numpy", "numba", "tensorflow", "matplotlib", "rich", "networkx", "data", "agents", "runtime"})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(cli, command):
    outcome = cli(command, "--help")
    assert outcome.code == 0
    assert "example:" in outcome.out
    assert all(option in outcome.out for option in ("--json", "--seed"))
    words = COMMANDS[command].EXAMPLE.split()
    assert words[:4] == ["python", "-m", "doppler_tf", command]
    assert app.build_parser().parse_args(words[3:]).command is COMMANDS[command]


def test_version(cli):
    outcome = cli("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("doppler_tf 0.")


def test_tables_go_to_stdout_and_json_alone_when_asked(cli, diamond):
    plain, asked = cli("info", diamond), cli("info", diamond, "--json")
    assert "vertices" in plain.out
    assert plain.err == ""
    assert len(asked.out.splitlines()) == 1
    assert "vertices" in asked.err


def test_what_libraries_print_goes_to_stderr(diamond):
    chat = """
import ctypes, os, sys
from doppler_tf.cli import app, info
run = info.run
def chatting(args):
    ctypes.CDLL(None).printf(b"from C, ")
    os.write(1, b"from a descriptor, ")
    print("from Python")
    return run(args)
info.run = chatting
sys.exit(app.main())
"""
    done = process("-c", chat, "info", str(diamond), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["vertices"] == 4
    assert all(words in done.stderr for words in ("from C", "from a descriptor", "from Python"))


def test_names_with_brackets_are_shown_as_they_are(cli, record, write):
    record["graph"]["name"] = "[bold]x[/bold] :smile:"
    assert "[bold]x[/bold] :smile:" in cli("info", write(record)).out


def test_a_closed_pipe_is_quiet(diamond):
    reader = subprocess.Popen([sys.executable, "-m", "doppler_tf", "info", str(diamond)], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(60) == app.FAILED


@pytest.fixture
def program(capfd):
    """Runs a program whose one command does the work given; returns the exit code, stdout and stderr."""
    def call(work: Callable[[], dict], *argv: str) -> tuple[int, str, str]:
        command = ModuleType("work", "Does the work.")
        command.EXAMPLE, command.add_arguments = f"{app.MODULE} work", lambda parser: None
        command.run, command.render = lambda args: work(), lambda result: []
        return main(["work", *argv], {"work": command}), *capfd.readouterr()
    return call


def test_an_unexpected_error_is_one_line_with_a_hint(program, monkeypatch):
    code, out, err = program(lambda: 1 / 0, "--json")
    assert code == 1
    assert err.splitlines() == ["error: ZeroDivisionError: division by zero; -v shows where"]
    assert json.loads(out) == {"error": "ZeroDivisionError: division by zero; -v shows where"}
    monkeypatch.setenv("DOPPLER_TRACEBACK", "1")
    assert "Traceback" in program(lambda: 1 / 0)[2]


def test_an_interrupt_is_said_in_one_line(program):
    def interrupt():
        raise KeyboardInterrupt

    assert program(interrupt) == (1, "", "error: interrupted\n")


def test_json_has_no_nan(program):
    code, out, _ = program(lambda: {"a": float("nan"), "b": [float("inf")]}, "--json")
    assert (code, json.loads(out, parse_constant=pytest.fail)) == (0, {"a": None, "b": [None]})


def test_train_a_little_then_place_with_what_was_learned_and_report_it(cli, diamond, tmp_path):
    """The real trainer with tiny settings."""
    def call(*argv):
        outcome = cli(*argv, "--json")
        assert outcome.code == 0, outcome.err
        return outcome.json

    settings = [argument for pair in ("batch=4", "hidden=8", "rounds=1") for argument in ("--set", pair)]
    trained = call("train", diamond, "--topology", "ideal:2", "--run-dir", tmp_path / "run", "--imitation", 4, "--simulated", 8, *settings)
    placed = call("place", diamond, "--topology", "ideal:2", "--method", "policy", "--policy", tmp_path / "run", "--samples", 4)
    reported = call("report", tmp_path / "run")
    row = trained["graphs"]["diamond"]
    assert 4.0 <= row["best_makespan_s"] <= row["greedy_makespan_s"] <= 7.0
    assert row["episodes"] == 12
    assert (placed["method"], list(placed["members"])) == ("policy", ["policy"])
    assert 4.0 <= placed["makespan_s"] <= 7.0
    assert reported["graphs"]["diamond"]["simulated_makespan_s"] == row["best_makespan_s"]
    page = Path(reported["page"]).read_text()
    assert all(title in page for title in ("Stage I: imitation of the teacher", "Stage II: simulated episodes"))


@pytest.mark.thorough  # without the commands: tests/agents/test_training.py
def test_train_on_two_copies_then_place_stacks_of_any_height(cli, tmp_path):
    """The real trainer with tiny settings."""
    low, high, single, run = (tmp_path / name for name in ("low.json", "high.json", "single.json", "run"))
    for path, layers in ((low, 5), (high, 9), (single, 1)):
        write_graph(path, stack(layers, 6))
    train = ("--topology", "ideal:2", "--tie", "--imitation", 4, "--simulated", 16)
    settings = [argument for pair in ("batch=4", "hidden=8", "rounds=1", "polish=200") for argument in ("--set", pair)]
    trained = cli("train", low, "--run-dir", run, *train, *settings)
    assert trained.code == 0, trained.err
    assert "all copies alike" in trained.out
    assert read_json(run / "config.json")["config"]["dispatch"] == "b_level"
    stored = cli("simulate", low, "--topology", "ideal:2", "--assignment", run / "whole/stack.json", "--json").json
    again = cli("train", low, "--run-dir", run, *train, "--resume", "--json").json
    assert list(again["graphs"]) == ["stack_tied"]
    assert again["repeated"]["stack"]["makespan_s"] == stored["makespan_s"] >= again["repeated"]["stack"]["lower_bound_s"]
    placed = cli("place", high, "--topology", "ideal:2", "--method", "policy", "--policy", run, "--samples", 4, "--json").json
    assert placed["lower_bound_s"] <= placed["makespan_s"] < np.inf
    alone = cli("train", single, "--run-dir", tmp_path / "other", *train)
    assert (alone.code, alone.err) == (2, f"error: {single}: --tie: expected a graph in which something repeats at least three times, "
                                          "such as layers, and some of it can be left out, got none; leave out --tie\n")


IN_TURN = """
import json, sys
from doppler_tf.cli import main
codes = [main(argv) for argv in json.loads(sys.argv[1])]
sys.exit(any(codes))
"""
OURS = re.compile(r"compiling simulator and heuristics \(.*|--measure \d+: fewer runs than .*")


@pytest.mark.parametrize("level", [None, *(pytest.param(level, marks=pytest.mark.thorough) for level in "03")])
def test_a_real_run_matches_the_unsharded_program_and_only_our_words_are_said(tmp_path, level):
    """In a process of its own, as TensorFlow's devices are fixed once a process, and whatever the environment wants to hear of it."""
    graph, placed, trace, measured = (str(tmp_path / name) for name in ("g.json", "a.json", "t.json", "measured"))
    write_graph(graph, build_workload("chainmm", 2, scale="small", n=64))
    on = graph, "--topology", "cpu:2"
    commands = [("place", *on, "--measure", "4", "--out", placed),
                *([] if level is None else [("calibrate", *on, "--assignments", "2", "--out", measured),
                                            ("compare", *on, "--methods", "partition", "--measure", "1")]),
                ("run", *on, "--assignment", placed, "--executor", "tf", "--trace", trace, "--json", "-q")]
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    done = process("-c", IN_TURN, json.dumps(commands), env=environment | ({} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not OURS.fullmatch(line)] == []
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["outputs_match"] is True
    assert 0 <= found["relative_error"] <= 1e-5
    assert (found["trace_valid"], found["work_conserving"], found["device_kind"]) == (True, True, "tf")
