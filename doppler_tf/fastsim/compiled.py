"""Additions to Numba: a disk cache that notices changes in several files, functions without a way in, copies that compile fast."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

_HERE = Path(__file__).parent


# For functions that only compiled functions call. A way in from Python takes Numba up to a second to compile; without it, Python's call
# ends the process. Without `_nrt` a function counts no references to its arrays, for which list schedulers took five sixths of their time.
# One that allocates needs it: `inner(_nrt=True)`.
inner = functools.partial(numba.njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def compiled(function: Callable | None = None, allocates: bool = True) -> Callable:
    """Compiles a function that calls functions of other files, in this folder or its own. Numba's own cache notices changes only in the
    function's file. Args: allocates: whether it makes arrays; see `inner`."""
    if function is None:
        return functools.partial(compiled, allocates=allocates)
    function.__qualname__ += f"_{_sources(Path(function.__code__.co_filename).parent)}"
    return numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True, _nrt=allocates)(function)


@functools.cache
def _sources(folder: Path) -> str:
    """A hash of all files from which a compiled function of `folder` may call functions."""
    paths = sorted({*_HERE.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


@inner
def copy_to(target, source):
    """Copies an array into one of its shape. Numba takes 3 s to compile `target[:] = source`, whose error message has both shapes."""
    for i in np.ndindex(source.shape):
        target[i] = source[i]
