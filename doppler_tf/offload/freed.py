"""The free memory of one device in a plan: how much, by whom it was freed, and when by the run that the plan follows."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import NamedTuple


class Part(NamedTuple):
    """Bytes that one residency has left: `owner` is its number, -1 for memory that nothing has used before."""

    time_s: float
    owner: int
    size_bytes: float


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

    def take(self, size_bytes: float, by_s: float) -> list[Part]:
        """Removes so many bytes, which must be there: those that became free last before `by_s`, so that others keep what may start sooner;
        if these do not suffice, those that become free first after it."""
        taken, parts = [], self._parts
        self.left_bytes -= size_bytes
        at = bisect_right(parts, by_s, key=lambda part: part.time_s)
        while size_bytes > 0:
            i = at - 1 if at > 0 else 0
            time_s, owner, part_bytes = parts[i]
            if part_bytes > size_bytes:
                parts[i] = Part(time_s, owner, part_bytes - size_bytes)
                taken.append(Part(time_s, owner, size_bytes))
                break
            taken.append(parts.pop(i))
            size_bytes -= part_bytes
            at = max(at - 1, 0)
        return taken
