"""Memory of this process: what is dropped goes back to the machine, and how much there is."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from pathlib import Path

# What is dropped is small up to this part of the available memory.
_SMALL = 0.01
# By the version of control groups: where they are, and their files for the limit and for what is taken.
_GROUPS = {2: (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
           1: (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")}


def give_memory_back(dropped_bytes: float = math.inf) -> None:
    """Collects what is dropped: TensorFlow's functions refer to themselves, and the C library keeps what is freed.

    Args:
      dropped_bytes: about as many. A small part of what is left waits for Python, as a look at all objects takes some tenths of a second.
    """
    if dropped_bytes < _SMALL * available_bytes():
        return
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def available_bytes() -> float:
    """What this process may still take, of the machine and of its control groups; infinity where the system does not tell."""
    left = [math.inf]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        left.append(1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                root, limit, taken = _GROUPS[1 if controllers else 2]
                for group in {root / path.lstrip("/"), root}:  # a container may see its own group as the root
                    left.append(_left_in(group, limit, taken))
    return max(0.0, min(left))


def _left_in(group: Path, limit: str, taken: str) -> float:
    try:
        # Files in memory count as taken, and make way.
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return float(int((group / limit).read_text()) - int((group / taken).read_text()) + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such group, or "max"
        return math.inf
