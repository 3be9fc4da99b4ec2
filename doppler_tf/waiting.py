"""Ordered queues of vertices and transfers that wait for a device or a link, near-linear at any length."""

from __future__ import annotations

import heapq
from bisect import bisect_right

Entry = tuple  # (key, vertex whose tensor takes the place, ...), smallest first


class Queue:
    """A queue of entries that always fit in memory."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def first(self) -> Entry | None:
        """The first entry, None if nothing waits."""
        return self._heap[0] if self._heap else None

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        heapq.heappush(self._heap, entry)

    def take(self, left_bytes: float) -> Entry | None:
        """Removes and returns the first entry, None if nothing waits."""
        return heapq.heappop(self._heap) if self._heap else None


class FittingQueue:
    """Entries that must fit: a tournament tree over all tensors that may ever wait here, sorted by bytes.

    A node holds the first entry of those that wait below it. What fits is a prefix of the leaves, whose first entry is found in
    logarithmic time, in whatever order entries come and go.
    """

    def __init__(self, tensors: dict[int, float]):
        """Args: tensors: bytes by vertex of every tensor that may wait here."""
        ordered = sorted(tensors, key=tensors.__getitem__)
        self._bytes = [tensors[v] for v in ordered]
        self._leaf = {v: len(ordered) + i for i, v in enumerate(ordered)}
        self._tree: list[Entry | None] = [None] * max(2 * len(ordered), 2)

    def first(self) -> Entry | None:
        """The first entry, whether it fits or not, None if nothing waits."""
        return self._tree[1]

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        i = self._leaf[entry[1]]
        while i and ((other := self._tree[i]) is None or entry < other):
            self._tree[i] = entry
            i >>= 1

    def take(self, left_bytes: float) -> Entry | None:
        """Removes and returns the first entry of at most `left_bytes`; None if no entry fits."""
        begin = len(self._bytes)
        end, found = begin + bisect_right(self._bytes, left_bytes), None
        while begin < end:
            if begin & 1:
                found = _earlier(found, self._tree[begin])
                begin += 1
            if end & 1:
                end -= 1
                found = _earlier(found, self._tree[end])
            begin >>= 1
            end >>= 1
        if found is not None:
            self._remove(found)
        return found

    def _remove(self, entry: Entry) -> None:
        i = self._leaf[entry[1]]
        self._tree[i] = None
        while (i := i >> 1) and self._tree[i] is entry:
            self._tree[i] = _earlier(self._tree[2 * i], self._tree[2 * i + 1])


def _earlier(a: Entry | None, b: Entry | None) -> Entry | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
