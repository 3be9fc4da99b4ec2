"""Additions to Numba: a disk cache that notices changes in several files, prefetching of cache lines, copies that compile fast."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_HERE = Path(__file__).parent


# For functions that only compiled functions call. A way in from Python takes Numba up to a second to compile; without it, Python's call
# ends the process.
inner = functools.partial(numba.njit, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def compiled(function: Callable) -> Callable:
    """Compiles a function that calls functions of other files, in this folder or its own. Numba's own cache notices changes only in the
    function's file."""
    function.__qualname__ += f"_{_sources(Path(function.__code__.co_filename).parent)}"
    return numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True)(function)


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


@intrinsic
def prefetch(typing_context, array, index):
    """Fetches `array[index]` into the caches, in compiled code. An index out of bounds has no effect."""

    def generate(context, builder, signature, arguments):
        kind, byte, number = signature.args[0], ir.IntType(8).as_pointer(), ir.IntType(32)
        place = cgutils.get_item_pointer(context, builder, kind, context.make_array(kind)(context, builder, arguments[0]), [arguments[1]])
        llvm = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
                                              "llvm.prefetch.p0")
        builder.call(llvm, [builder.bitcast(place, byte), number(0), number(3), number(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
