"""Small pieces join a neighbour where that costs no parallelism.

A piece is *small* if it takes less time than starting it does. It is *light* if it only passes over its tensors: elementwise operations,
reductions, copies. It is *heavy* if it is neither. Two heavy pieces never join. The rules, until none applies:

1. Chain: a piece joins its only producer, if it is the only consumer of that.
2. Small: a small piece joins its only producer, or its only consumer. It prefers the producer if it makes less than it takes.
3. Update: a light piece joins its only consumer, if both are light and that one updates variables: those stay on one device.

Pieces of different devices never join, nor does one that has a device join one that has none.

Each rule joins a piece with its only consumer or its only producer, so no circle can arise: a path from one to the other that leads
through a third piece would need a second consumer or a second producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Below these, starting an operation takes longer than the operation itself, on CPUs (some 50 us) as on GPUs.
SMALL_FLOPS, SMALL_BYTES = 1e6, 1 << 19


@dataclass
class Cost:
    """An estimate of a piece.

    Attributes:
      moved_bytes: inputs and outputs of its operations; views move nothing.
      taken_bytes, made_bytes: what it takes from other pieces and makes for them.
      absorbed_flops, absorbed_bytes: of small pieces that have joined it.
      colocate: the variables or other state that it changes together with other pieces, as one name.
      pin: the text of its device; "": it has none.
      solid: holds a loop or branch, whose time is not known, or has taken a heavy piece in.
    """

    flops: float
    moved_bytes: float
    taken_bytes: float
    made_bytes: float
    light: bool
    colocate: str | None = None
    pin: str = ""
    solid: bool = False
    absorbed_flops: float = field(default=0.0)
    absorbed_bytes: float = field(default=0.0)

    @property
    def small(self) -> bool:
        return not self.solid and self.flops <= SMALL_FLOPS and self.moved_bytes <= SMALL_BYTES

    @property
    def heavy(self) -> bool:
        return not self.small and not self.light


def grouped(after: Sequence[Iterable[int]], costs: Sequence[Cost]) -> list[list[int]]:
    """The pieces that join, as lists of their numbers.

    Args:
      after: for each piece, the pieces whose outputs it takes or that must run before it.
      costs: of each piece; they are changed.
    """
    return _Grouping(after, list(costs)).groups()


class _Grouping:
    def __init__(self, after: Sequence[Iterable[int]], costs: list[Cost]):
        self._costs = costs
        self._producers = [set(before) for before in after]
        self._consumers: list[set[int]] = [set() for _ in after]
        for v, before in enumerate(self._producers):
            for u in before:
                self._consumers[u].add(v)
        self._members: list[list[int]] = [[v] for v in range(len(costs))]

    def groups(self) -> list[list[int]]:
        for rule in (self._chain, self._small, self._update, self._chain, self._small):
            queue = deque(range(len(self._members)))  # producers first: what follows a heavy piece joins that, not the next one
            while queue:
                v = queue.popleft()
                if self._members[v] and (other := rule(v)) is not None:
                    queue += self._join(v, other)
        return [sorted(members) for members in self._members if members]

    def _chain(self, v: int) -> int | None:
        if len(self._producers[v]) != 1:
            return None
        (u,) = self._producers[v]
        both_heavy = self._costs[u].heavy and self._costs[v].heavy
        return u if len(self._consumers[u]) == 1 and not both_heavy and self._may_join(v, u) else None

    def _small(self, v: int) -> int | None:
        cost = self._costs[v]
        if not cost.small:
            return None
        neighbours = [next(iter(side)) for side in (self._producers[v], self._consumers[v]) if len(side) == 1]
        if cost.made_bytes > cost.taken_bytes:
            neighbours.reverse()
        return next((w for w in neighbours if self._may_join(v, w)
                     and self._costs[w].absorbed_flops + cost.flops <= SMALL_FLOPS
                     and self._costs[w].absorbed_bytes + cost.moved_bytes <= SMALL_BYTES), None)

    def _update(self, v: int) -> int | None:
        if len(self._consumers[v]) != 1:
            return None
        (w,) = self._consumers[v]
        one, other = self._costs[v], self._costs[w]
        return w if other.colocate and one.light and other.light and self._may_join(v, w) else None

    def _may_join(self, v: int, w: int) -> bool:
        """State stays where it is: no heavy piece follows it, and only small pieces bring the states of two together."""
        one, other = self._costs[v], self._costs[w]
        if one.pin != other.pin:
            return False
        if one.colocate == other.colocate:
            return True
        if one.colocate and other.colocate:
            return one.small and other.small
        return not (one if one.colocate is None else other).heavy

    def _join(self, v: int, w: int) -> list[int]:
        """w takes v in; returns the pieces for which a rule may apply now."""
        one, other = self._costs[v], self._costs[w]
        absorbed = one.small or not other.small
        other.absorbed_flops += one.absorbed_flops + (one.flops if absorbed else 0)
        other.absorbed_bytes += one.absorbed_bytes + (one.moved_bytes if absorbed else 0)
        other.flops += one.flops
        other.moved_bytes += one.moved_bytes
        if v in self._producers[w]:
            other.taken_bytes += one.taken_bytes
        else:
            other.made_bytes += one.made_bytes
        other.light &= one.light
        other.solid |= one.solid or one.heavy
        other.colocate = other.colocate or one.colocate
        for sides, opposite in ((self._producers, self._consumers), (self._consumers, self._producers)):
            for u in sides[v]:
                opposite[u].discard(v)
                if u != w:
                    opposite[u].add(w)
                    sides[w].add(u)
            sides[w].discard(v)
            sides[v] = set()
        self._members[w] += self._members[v]
        self._members[v] = []
        return [w, *self._producers[w], *self._consumers[w]]
