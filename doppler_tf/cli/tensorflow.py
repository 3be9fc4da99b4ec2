"""TensorFlow as the command line wants it: with Keras 2, its compiled code kept on disk, and quiet."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import ModuleType

_CHATTER_WANTED = "TF_CPP_MIN_LOG_LEVEL" in os.environ


@functools.cache  # once is enough, and the folder of compiled code is not looked through again
def prepare_tensorflow() -> None:
    """Sets what TensorFlow reads from the environment for the agents; call it before TensorFlow is imported."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    importlib.import_module("agents.compile_cache").keep_compiled()


def import_quietly(name: str) -> ModuleType:
    """Imports a module of `agents` or `runtime`.

    TensorFlow writes some lines to file descriptor 2 when it is imported, whatever TF_CPP_MIN_LOG_LEVEL says, and Gym (below TF-Agents)
    some more; they are dropped, unless the user has set that variable. Errors are exceptions and are not lost.
    """
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    if name.partition(".")[0] == "agents":
        prepare_tensorflow()
    if _CHATTER_WANTED:
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
