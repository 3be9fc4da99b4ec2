"""Compilation of what is made of several files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numba

_SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:12]


def compiled(function: Callable) -> Callable:
    """Compiles a function that calls those of other files; Numba's cache alone would heed no change but in the function's own."""
    function.__qualname__ += f"_{_SOURCES}"
    return numba.njit(cache=True, nogil=True)(function)
