"""The queue of vertices that wait for a device, or of transfers that wait for a link."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Entry = tuple  # (key, vertex or tensor, ...), smallest first


class Queue:
    """Entries by key."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def first(self) -> Entry | None:
        """The first entry, None if nothing waits."""
        return self._heap[0] if self._heap else None

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        heapq.heappush(self._heap, entry)

    def take(self, fits: Callable[[Entry], bool] | None) -> Entry | None:
        """Removes the first entry that fits, and returns it; None if none does. Args: fits: None: all do."""
        heap = self._heap
        if heap and (fits is None or fits(heap[0])):
            return heapq.heappop(heap)
        found = None if fits is None else min(filter(fits, heap), default=None)
        if found is not None:
            heap.remove(found)
            heapq.heapify(heap)
        return found
