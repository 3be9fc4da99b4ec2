"""The candidates that the script of `completion` offers, tried in bash: through its completion function, and at a terminal."""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.cli import app, completion
from doppler_tf.cli.completion import SHELLS
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.heuristics import HEURISTICS
from tests.cli.test_bad_input import refused

ASK = """
source "$1"
COMP_WORDBREAKS=$' \\t\\n"\\'@><=;|&(:' COMP_LINE="$2" COMP_POINT=${#2}
COMP_WORDS=(what bash made of it, which is not used) COMP_CWORD=1
_doppler_tf doppler-tf "${2##*[ :@=]}" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
METHODS = {"auto", "policy", *HEURISTICS}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """A folder with the script of each shell, two graphs and a folder."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (folder / f"script.{shell}").write_text(completion.run(argparse.Namespace(shell=shell, parser=app.build_parser()))["script"])
    for name in ("chainmm.json", "ffnn.json"):
        (folder / name).write_text("{}")
    (folder / "runs").mkdir()
    return folder


@pytest.fixture
def offered(scripts):
    """Calls bash's completion function for the begin of a line."""
    if not shutil.which("bash"):
        pytest.skip("bash is absent")

    def ask(line: str) -> set[str]:
        done = subprocess.run(["bash", "--norc", "-c", ASK, "bash", "script.bash", line], cwd=scripts, capture_output=True, text=True,
                              timeout=60, check=True)
        return set(done.stdout.split())

    return ask


@pytest.mark.parametrize(("line", "expected"), [
    ("doppler-tf ", set(app.COMMANDS)),
    ("doppler-tf co", {"compare", "completion", "convert"}),
    ("doppler-tf place --bu", {"--budget-s"}),
    ("doppler-tf info -", {"-h", "--help", "--topology", "--memory", "--costs", "--seed", "--json", "-v", "--verbose", "-q", "--quiet"}),
    ("doppler-tf place --method ", METHODS),
    ("doppler-tf place g.json --method cp", {"cpop", "cp_sat"}),
    ("doppler-tf workload llama", {"llama_block", "llama_layer", "llama_stack"}),
    ("doppler-tf workload ffnn --scale ", {"small", "paper"}),
    ("doppler-tf run g.json --executor ", {"tf", "emulated", "synchronous"}),
    ("doppler-tf run g.json --dispatch b", {"b_level"}),
    ("doppler-tf train --method p", {"plc_only", "per_step", "placeto"}),
    ("doppler-tf bench --method heft anneal", {"annealing"}),
    ("doppler-tf bench --workload chainmm ff", {"ffnn"}),
    ("doppler-tf compare g.json --methods heft,cp", {"heft,cpop", "heft,cp_sat"}),
    ("doppler-tf completion ", set(SHELLS)),
    ("doppler-tf info ", {"chainmm.json", "ffnn.json", "runs", "script.bash", "script.zsh", "script.tcsh"}),
    ("doppler-tf info ff", {"ffnn.json"}),
    ("doppler-tf place --topology cpu:4 ch", {"chainmm.json"}),  # bash splits cpu:4 into three words; they count as one
    ("doppler-tf simulate chainmm.json --assignment ff", {"ffnn.json"}),
    ("doppler-tf train chainmm.json ff", {"ffnn.json"}),
    ("doppler-tf train chainmm.json --run-dir ", {"runs"}),
    ("doppler-tf info g.json --topology p", {"p100x4"}),
    ("doppler-tf info g.json --topology ru", {"runs"}),
    ("doppler-tf info g.json --topology ideal:", {"2", "4", "8"}),  # bash keeps the part before the colon
    ("doppler-tf train g.json --config an", {"annealed"}),
    ("doppler-tf place g.json --samples ", set()),
])
def test_bash_offers(offered, line, expected):
    assert offered(line) == expected


def test_every_value_is_offered_or_free():
    unknown = []
    for command, action in completion.actions(app.build_parser()):
        if completion.candidates(command, action) == () and action.metavar not in completion.FREE:
            unknown.append((command, action.metavar))
    assert not unknown, "completion.py has no candidates for these arguments"


def test_the_counted_topologies_exist():
    assert all(read_topology(name).num_devices > 1 for name in completion.COUNTED)


def test_the_configs_are_those_of_agents():
    assert set(completion.CONFIGS) == set(import_quietly("agents.config").CONFIGS)


def test_at_a_terminal(scripts):
    """The Tab key pressed."""
    if not shutil.which("bash"):
        pytest.skip("bash is absent")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], cwd=scripts, stdin=theirs, stdout=theirs, stderr=theirs,
                               env={**os.environ, "TERM": "dumb", "PS1": "> "}, start_new_session=True)
    os.close(theirs)

    def until(words: str) -> None:
        said, late = "", time.monotonic() + 60
        while words not in said:
            assert select.select([ours], [], [], max(0, late - time.monotonic()))[0], f"{words!r} not in {said!r}"
            said += os.read(ours, 4096).decode()

    try:
        for typed, shown in (("source script.bash\n", "> "), ("doppler-tf compa\t", "compare "), ("ffn\t", "ffnn.json "),
                             ("--topo\t", "--topology "), ("h100\t", "h100x8 "), ("--methods cpop,fc\t", "cpop,fcp "),
                             ("\x15doppler-tf info --topology cp\t", "u:"), ("4 ff\t", "4 ffnn.json "),
                             ("\x15doppler-tf --vers\t", "--version "), ("\x15env/bin/doppler-tf workl\t", "workload ")):
            os.write(ours, typed.encode())
            until(shown)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed_as_it_is(cli, scripts, shell):
    outcome = cli("completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == (scripts / f"script.{shell}").read_text() + "\n"
    assert cli("completion", shell, "--json").json == {"shell": shell, "script": outcome.out[:-1]}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_can_read_the_script(scripts, shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is absent")
    subprocess.run([shell, "-n", scripts / f"script.{shell}"], check=True, timeout=60)


def test_another_shell_is_a_mistake(cli):
    refused(cli("completion", "ksh", "--json"), "ksh", "bash, zsh, tcsh")
