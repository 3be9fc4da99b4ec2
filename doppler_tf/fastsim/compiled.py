"""Compilation of what is made of several files."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numba

_HERE = Path(__file__).parent


def compiled(function: Callable) -> Callable:
    """Compiles a function that calls those of other files, here or in its own folder; Numba's cache alone would heed no change but in
    the function's own."""
    function.__qualname__ += f"_{_sources(Path(function.__code__.co_filename).parent)}"
    return numba.njit(cache=True, nogil=True)(function)


@functools.cache
def _sources(folder: Path) -> str:
    """A hash of all that a compiled function of `folder` may be made of."""
    paths = sorted({*_HERE.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]
