"""Imports TensorFlow for commands: with Keras 2, with compiled code kept on disk, and without its messages."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import ModuleType

from doppler_tf.notes import hush_libraries, is_verbose


@functools.cache  # so that the folder of compiled code is searched only once
def prepare_tensorflow() -> None:
    """Sets the environment variables with which the agents need TensorFlow; call it before importing TensorFlow."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    importlib.import_module("agents.compile_cache").keep_compiled()


def import_quietly(name: str) -> ModuleType:
    """Imports a module of `agents` or `runtime`.

    While TensorFlow and Gym (which TF-Agents imports) are imported, they write lines to file descriptor 2, whatever TF_CPP_MIN_LOG_LEVEL
    says. Unless -v is given, these lines are dropped, and TensorFlow logs nothing later. Errors are exceptions and are not lost.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if name.partition(".")[0] == "agents":
        prepare_tensorflow()
    if is_verbose():
        return importlib.import_module(name)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        return importlib.import_module(name)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        hush_libraries()
