"""One note a process says that code is compiled."""

from __future__ import annotations

import logging

import numba
import pytest
from numba.core import event

from doppler_tf.notes import announce_compiling, set_verbosity
from tests.cli.test_program import process


@pytest.fixture
def announced():
    """Notes are on, as in a process whose first command runs; afterwards as before."""
    listeners = {kind: list(each) for kind, each in event._registered.items()}
    event._registered.clear()
    set_verbosity()
    announce_compiling.cache_clear()
    announce_compiling()
    announce_compiling()
    yield
    event._registered.clear()
    event._registered.update(listeners)


def test_one_note_for_all_code_of_ours_that_numba_compiles(announced, capsys):
    said = []
    for module in ("somewhere.else", "doppler_tf.example", "doppler_tf.other"):
        def double(x):
            return 2 * x

        double.__module__ = module
        compiled = numba.njit(double)
        assert compiled(1) == 2
        assert compiled(2) == 4
        said.append(capsys.readouterr())
    assert [captured.err.count("\n") for captured in said] == [0, 1, 0]
    assert said[1].err.startswith("compiling simulator and heuristics (once, ")
    assert not any(captured.out for captured in said)


def test_what_the_policies_compile_is_passed_on(announced, capsys):
    logging.getLogger("agents.policies.driver").info("compiling %d things", 3)
    assert capsys.readouterr().err == "compiling 3 things\n"


def test_nothing_is_compiled_that_an_earlier_process_has_compiled(diamond):
    """A search, too, finds all its code on disk."""
    command = ("-m", "doppler_tf", "place", str(diamond), "--topology", "ideal:2", "--method", "annealing", "--samples", "50")
    first = process(*command)
    assert first.returncode == 0
    if first.stderr:  # it may have had to
        assert process(*command).stderr == ""
