"""-q leaves errors and the object, -v adds what our loggers say; colours and bars are for terminals alone."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from doppler_tf.cli.app import COMMANDS
from doppler_tf.notes import bars_wanted, note, set_verbosity
from tests.cli.conftest import Outcome
from tests.cli.test_bad_input import refused
from tests.cli.test_program import ROOT

TIMED = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3} (DEBUG|INFO) (doppler_tf|agents)[.a-z_]*: ")
ESCAPE, COLOUR = "\x1b", re.compile("\x1b\\[[0-9;]*3[0-7]m")
BARS = """
import sys
from doppler_tf.notes import bars_wanted, set_verbosity
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.report.progress import progress_bar
set_verbosity(quiet="quiet" in sys.argv)
if "train" in sys.argv:
    with import_quietly("agents.training.progress").bar("simulated", 0, 2, 64, True) as advance:
        advance(1, "greedy 1 s")
with progress_bar("cells", 1, 3, bars_wanted()) as move:
    move(2, status="one cell")
with progress_bar("running", show=bars_wanted()) as move:
    move(1, 2)
"""


def at_a_terminal(argv: list[str], **environment: str) -> str:
    """What a process of its own writes to a terminal, on both streams."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=_plain(environment))
    os.close(theirs)
    said = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other end is closed
            read = b""
        if not read:
            break
        said += read
    os.close(ours)
    assert process.wait(60) == 0, said
    return said.decode()


def piped(argv: list[str]) -> str:
    """The same into a pipe."""
    return subprocess.run([sys.executable, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                          check=True, env=_plain({})).stdout


def _plain(more: dict[str, str]) -> dict[str, str]:
    """This process's environment without what is said of colours, or was set by TensorFlow's import."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TF_CPP_MIN_LOG_LEVEL")}
    return {**kept, "TERM": "xterm-256color", **more}


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_prints_nothing_but_the_object(cli, diamond, option):
    assert cli("info", diamond, option) == Outcome(0, "", "")
    asked = cli("info", diamond, option, "--json")
    assert (asked.json["vertices"], asked.err) == (4, "")


def test_quiet_drops_notes_and_keeps_errors(cli, diamond, write, tmp_path):
    job = ("run", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--executor", "emulated")
    outcome = cli(*job, "-q", "--time-scale", 0.01)
    assert outcome == Outcome(0, "", "")
    refused(cli("info", tmp_path / "absent.json", "-q", "--json"), "no such file")


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_logs_with_the_time(cli, diamond, option):
    outcome = cli("info", diamond, option)
    assert all(TIMED.match(line) for line in outcome.err.splitlines())
    assert f"reading {diamond}" in outcome.err
    assert "info" in outcome.err.splitlines()[0]
    assert outcome.out == cli("info", diamond).out
    assert cli("info", diamond).err == ""  # nothing of it is left in the process


def test_verbose_passes_on_what_the_agents_log(capsys):
    set_verbosity(verbose=True)
    logging.getLogger("agents.policies.driver").info("compiling %d things", 3)
    assert re.fullmatch(TIMED.pattern + "compiling 3 things\n", capsys.readouterr().err)


def test_verbose_shows_where_an_error_arose(cli, tmp_path):
    outcome = cli("info", tmp_path / "absent.json", "-v", "--json")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1] == f"error: {outcome.json['error']}"


@pytest.mark.parametrize("command", COMMANDS)
def test_both_at_once_are_a_mistake(cli, command):
    refused(cli(command, "-q", "-v", "--json"), "-q", "-v")


def test_tables_have_colours_at_a_terminal_alone(diamond):
    argv = ["-m", "doppler_tf", "info", str(diamond), "--topology", "ideal:2"]
    assert COLOUR.search(at_a_terminal(argv))
    assert not COLOUR.search(at_a_terminal(argv, NO_COLOR="1"))
    assert ESCAPE not in piped(argv)


@pytest.mark.thorough
def test_bars_move_at_a_terminal_alone():
    shown = at_a_terminal(["-c", BARS, "train"])
    assert all(words in shown for words in ("simulated", "cells", "one cell", "running"))
    assert COLOUR.search(shown) or "38;5" in shown
    plain = at_a_terminal(["-c", BARS], NO_COLOR="1")
    assert "cells" in plain
    assert not COLOUR.search(plain)
    assert "38;5" not in plain
    assert at_a_terminal(["-c", BARS, "quiet"]) == ""
    assert piped(["-c", BARS, "train"]) == ""


def test_a_library_shows_bars_in_a_terminal_unless_its_logger_is_told_otherwise():
    bar = """
from doppler_tf.report.progress import progress_bar
with progress_bar("cells", 1, 3) as move:
    move(2)
"""
    assert "cells" in at_a_terminal(["-c", bar])
    assert at_a_terminal(["-c", "import logging; logging.getLogger('doppler_tf').setLevel('WARNING')" + bar]) == ""


def test_notes_are_heard_unless_quiet(capsys):
    for quiet in (True, False):
        set_verbosity(quiet=quiet)
        note("25% [of] it" if quiet else "all of it")
        assert not bars_wanted()  # nobody can see them here
    assert capsys.readouterr().err == "all of it\n"


@pytest.mark.parametrize("argv", [["-q", "info"], ["info", "-q"]])
def test_quiet_before_the_command_as_after_it(cli, diamond, argv):
    outcome = cli(*argv, diamond)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
