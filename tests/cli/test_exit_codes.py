"""The same mistakes made with every command: exit code 2, one line on stderr, {"error"} on stdout with --json, nothing without."""

from __future__ import annotations

import pytest

from doppler_tf.cli.app import COMMANDS, USERS_MISTAKE
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.formats.topology_json import read_topology
from tests.cli.test_bad_input import refused
from tests.runs import make_run

# Of each command a call without mistakes; G, A and TRACE are files and RUN a run folder that are there, DIR a folder that is not. What is
# trained, needs a checkpoint or a captured model, or serves until a signal comes (SLOW), is tried elsewhere.
SLOW = ("train", "export", "export-placed", "worker")
CALLS = {
    "workload": "chainmm --devices 2 --scale small --out DIR/g.json",
    "capture": "FUNCTION --input x=f32[2,2] --out DIR/g.json",
    "convert": "G --out DIR/g.json",
    "info": "G --topology ideal:2",
    "place": "G --topology ideal:2 --method heft",
    "simulate": "G --topology ideal:2 --assignment A",
    "train": "G --topology ideal:2 --run-dir DIR",
    "report": "RUN --out DIR/page.html",
    "run": "G --topology ideal:2 --assignment A --executor emulated --time-scale 0.01",
    "compare": "G --topology ideal:2 --methods heft",
    "export": "RUN --out DIR",
    "export-placed": "G --assignment A --out DIR",
    "trace": "TRACE",
    "calibrate": "G --topology ideal:2 --executor emulated --time-scale 0.01 --assignments 2 --out DIR",
    "bench": "--graph G --topology ideal:2 --method heft --seeds 1 --out DIR",
    "worker": "--listen 127.0.0.1:0 --devices 1",
    "doctor": "",
    "completion": "bash",
}
# What else a command may be called with by mistake: more words, or another word in the place of one.
WRONG = {
    "workload": ["--devices none", "--devices 0", "--scale huge", "--option size", "chainmm=resnet"],
    "capture": ["--batch 0", "--input x", "--input x=f99[2]", "--input y=f32[2]", "FUNCTION=nowhere"],
    "convert": ["--format csv", "--to csv", "--topology ideal:2", "--topology-out t.json", "--format saga", "--format stg"],
    "info": ["--topology ideal:none", "--topology p200x4"],
    "place": ["--samples 0", "--budget-s -1", "--method magic", "--method policy", "--dispatch lifo", "--topology ideal:0", "--costs free"],
    "simulate": ["--dispatch lifo", "--topology cpu:", "--topology ideal:3.5"],
    "train": ["--imitation -1", "--real-minutes 0", "--executor warp", "--set batch", "--set no_such_setting=1", "--set batch=0",
              "--method magic", "--config magic"],
    "run": ["--executor warp", "--time-scale 0", "--repeats none", "--tolerance-s -1", "--timeout-s nan", "--emulate ideal:3",
            "--cluster here.json", "--restart-on-loss"],
    "compare": ["--methods magic", "--methods heft,,cpop", "--seeds 0", "--samples 1000001", "--cluster here.json"],
    "report": ["RUN=nowhere"],
    "export": [],
    "export-placed": ["--topology", "A=nowhere"],
    "trace": ["--tolerance-s soon"],
    "calibrate": ["--assignments 0", "--executor synchronous", "--repeats 0"],
    "bench": ["--method heft@5", "--method magic", "--jobs 0", "--seeds none", "--topology ideal:none"],
    "worker": ["--listen nowhere", "--listen 127.0.0.1:65536", "--listen 10.1.2.3:22", "--devices 0"],
    "doctor": [],
    "completion": ["bash=ksh"],
}
FILES = [(command, file) for command, call in CALLS.items() for file in ("G", "A", "TRACE") if file in call.split()]


@pytest.fixture
def call(cli, diamond, write, tmp_path):
    """Calls a command as CALLS has it, with other and more words; returns the outcome."""
    mine = write("def f(x): return x + 1.0", "mine.py")
    files = {"FUNCTION": f"{mine}:f", "G": diamond, "A": write([None, 0, 1, 0], "a.json"), "TRACE": tmp_path / "t.json",
             "DIR": tmp_path / "new", "DIR/g.json": tmp_path / "new" / "g.json", "DIR/page.html": tmp_path / "new" / "page.html",
             "RUN": tmp_path / "run"}
    cli("simulate", diamond, "--topology", "ideal:2", "--assignment", files["A"], "--trace", files["TRACE"])

    def put(command: str, *more: str, **others):
        words = {**files, **others}
        if command == "report":
            make_run(files["RUN"], [read_graph(diamond)], read_topology("ideal:2"))
        return cli(command, *(words.get(word, word) for word in CALLS[command].split()), *more)

    return put


def test_every_command_is_tried():
    assert set(CALLS) == set(WRONG) == set(COMMANDS)


@pytest.mark.parametrize("command", [command for command in CALLS if command not in (*SLOW, "doctor")])
def test_without_mistakes(call, command):
    assert call(command).code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option(call, command):
    refused(call(command, "--colour", "--json"), "--colour", f"{command} --help")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["-1", "none", "1.5"])
def test_a_bad_seed(call, command, value):
    refused(call(command, "--seed", value, "--json"), "--seed", value)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_that_is_left_out(call, command):
    refused(call(command, "--json", "--seed"), "--seed", "expected one argument")


@pytest.mark.parametrize(("command", "words"), [(command, words) for command, many in WRONG.items() for words in many])
def test_a_bad_value(call, command, words):
    instead = dict([words.split("=")]) if "=" in words and not words.startswith("--") else {}
    refused(call(command, "--json", *([] if instead else words.split()), **instead))


@pytest.mark.parametrize(("command", "file"), FILES)
def test_a_missing_file(call, tmp_path, command, file):
    absent = tmp_path / "absent.json"
    refused(call(command, "--json", **{file: absent}), str(absent))


@pytest.mark.parametrize("command", [command for command, calls in CALLS.items() if "DIR" in calls and command not in SLOW])
def test_a_place_that_cannot_be_written(call, write, command):
    file = write("", "file")
    refused(call(command, "--json", **{word: file / "new" for word in ("DIR", "DIR/g.json", "DIR/page.html")}), "file", "cannot be written")


@pytest.mark.parametrize("command", COMMANDS)
def test_without_json_nothing_is_on_stdout(call, command):
    outcome = call(command, "--seed", "-1")
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (USERS_MISTAKE, "", 1)
