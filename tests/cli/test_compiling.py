"""The user hears what is compiled, once."""

from __future__ import annotations

import logging

import numba
import pytest
from numba.core import event

from doppler_tf.cli.messages import announce_compiling, set_verbosity


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


def test_each_module_that_numba_compiles_is_named_once(announced, capsys):
    for module in ("doppler_tf.example", "doppler_tf.example", "somewhere.else"):
        def double(x):
            return 2 * x

        double.__module__ = module
        compiled = numba.njit(double)
        assert compiled(1) == 2
        assert compiled(2) == 4
    captured = capsys.readouterr()
    assert captured.err == "compiling doppler_tf.example (once; later calls load it from disk)\n"
    assert captured.out == ""


def test_what_the_policies_compile_is_passed_on(announced, capsys):
    logging.getLogger("agents.driver").info("compiling %d things", 3)
    assert capsys.readouterr().err == "compiling 3 things\n"
