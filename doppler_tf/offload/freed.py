"""The free memory of one device in a plan: how much, by whom it was freed, and when by the run that the plan follows."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import NamedTuple


class Part(NamedTuple):
    """Bytes that one residency has left: `owner` is its number, -1 for memory that nothing has used before.

    `local`: ends of vertices on the same device have freed it, and no transfer.
    """

    time_s: float
    owner: int
    size_bytes: float
    local: bool = True


class Freed:
    """Parts by the time at which they became free."""

    def __init__(self, size_bytes: float):
        """Args: size_bytes: of the whole device."""
        self.left_bytes = size_bytes
        self._parts = [Part(0.0, -1, size_bytes)]

    def give(self, part: Part) -> None:
        """Adds what has become free."""
        if part.size_bytes > 0:
            insort(self._parts, part)
            self.left_bytes += part.size_bytes

    def ready_s(self, size_bytes: float) -> float:
        """When so many bytes are free, if those are taken first that became free first; infinite where they are not there."""
        time_s = -math.inf
        for part in self._parts:
            if size_bytes <= 0:
                return time_s
            time_s = part.time_s
            size_bytes -= part.size_bytes
        return time_s if size_bytes <= 0 else math.inf

    def take(self, size_bytes: float, local_by_s: float) -> list[Part]:
        """Removes so many bytes, which must be there: first local ones that became free last before `local_by_s`, which cost a vertex of
        the same device nothing; then those that became free first."""
        taken: list[Part] = []
        self.left_bytes -= size_bytes
        i = bisect_right(self._parts, local_by_s, key=lambda part: part.time_s) - 1
        while size_bytes > 0 and i >= 0:
            if self._parts[i].local and self._parts[i].owner >= 0:
                size_bytes = self._take(i, size_bytes, taken)
            i -= 1
        while size_bytes > 0:
            size_bytes = self._take(0, size_bytes, taken)
        return taken

    def _take(self, i: int, size_bytes: float, taken: list[Part]) -> float:
        """Takes of part i; returns the bytes that still lack."""
        part = self._parts[i]
        mine = min(part.size_bytes, size_bytes)
        taken.append(part._replace(size_bytes=mine))
        if part.size_bytes > mine:
            self._parts[i] = part._replace(size_bytes=part.size_bytes - mine)
        else:
            del self._parts[i]
        return size_bytes - mine
