"""TensorFlow's operations without chance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.python.framework import config as tensorflow_config


@contextmanager
def deterministic_operations() -> Iterator[None]:
    """Within it every operation of the process gives the same for the same inputs; afterwards the mode is as before.

    The module is private: in public, TensorFlow only switches the mode on. Left on, it would make operations of the caller fail that
    have no deterministic version.
    """
    before = tensorflow_config.is_op_determinism_enabled()
    tensorflow_config.enable_op_determinism()
    try:
        yield
    finally:
        if not before:
            tensorflow_config.disable_op_determinism()
