"""Memory that nothing needs any more goes back to the machine."""

import contextlib
import ctypes
import gc


def give_memory_back() -> None:
    """Collects what is dropped: TensorFlow's functions refer to themselves, and the C library keeps what is freed."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
