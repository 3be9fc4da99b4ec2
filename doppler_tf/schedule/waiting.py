"""Ordered queues of vertices and transfers that wait for a device or a link, near-linear at any length."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence

Entry = tuple  # (key, vertex or tensor that takes the place, ...), smallest first


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

    def fitting(self, left_bytes: Sequence[float]) -> Entry | None:
        """The first entry, None if nothing waits."""
        return self._heap[0] if self._heap else None

    def remove(self, entry: Entry) -> None:
        """Removes an entry, which must be the first."""
        heapq.heappop(self._heap)


class FittingQueue:
    """Entries that must fit on one device: a tournament tree over all tensors that may ever wait here, sorted by bytes.

    A node holds the first entry of those that wait below it. What fits is a prefix of the leaves, whose first entry is found in
    logarithmic time, in whatever order entries come and go.
    """

    def __init__(self, tensors: dict[int, float], device: int):
        """Args: tensors: bytes of every vertex or tensor that may wait here; device: where they take place."""
        self._device = device
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

    def fitting(self, left_bytes: Sequence[float]) -> Entry | None:
        """The first entry that fits; None if none does. Args: left_bytes: by device."""
        begin = len(self._bytes)
        end, found = begin + bisect_right(self._bytes, left_bytes[self._device]), None
        while begin < end:
            if begin & 1:
                found = _earlier(found, self._tree[begin])
                begin += 1
            if end & 1:
                end -= 1
                found = _earlier(found, self._tree[end])
            begin >>= 1
            end >>= 1
        return found

    def remove(self, entry: Entry) -> None:
        """Removes an entry."""
        i = self._leaf[entry[1]]
        self._tree[i] = None
        while (i := i >> 1) and self._tree[i] is entry:
            self._tree[i] = _earlier(self._tree[2 * i], self._tree[2 * i + 1])


class SharedQueue:
    """Transfers over several links that share a card: a queue for each destination, where they must fit."""

    def __init__(self, queues: dict[int, Queue | FittingQueue], destination: Sequence[int]):
        """Args: destination: of each transfer. The last number of an entry is its transfer."""
        self._queues, self._destination = queues, destination

    def first(self) -> Entry | None:
        """The first entry, whether it fits or not, None if nothing waits."""
        return min((entry for queue in self._queues.values() if (entry := queue.first()) is not None), default=None)

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        self._queues[self._destination[entry[-1]]].add(entry)

    def fitting(self, left_bytes: Sequence[float]) -> Entry | None:
        """The first entry that fits; None if none does. Args: left_bytes: by device."""
        return min((entry for queue in self._queues.values() if (entry := queue.fitting(left_bytes)) is not None), default=None)

    def remove(self, entry: Entry) -> None:
        """Removes an entry."""
        self._queues[self._destination[entry[-1]]].remove(entry)


def _earlier(a: Entry | None, b: Entry | None) -> Entry | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
