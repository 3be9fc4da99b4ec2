"""Minimises a sum of tables over choices: each variable is eliminated by the best choice for every choice of its neighbours.

(Bertele and Brioschi, "Nonserial dynamic programming", Academic Press, 1972. On a tree this is dynamic programming from the leaves.)
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np

# Entries of the largest table that is made. One of this size takes about a millisecond.
_MOST_ENTRIES = 1 << 18
# Turns without a gain, each with other variables fixed, after which the search ends.
_IDLE_TURNS = 3
# Costs by the choices of some variables, which are named by their numbers.
Factor = tuple[tuple[int, ...], np.ndarray]


def minimise(counts: Sequence[int], factors: Sequence[Factor]) -> list[int]:
    """A choice for every variable, such that the sum of all tables is least, or as small as is found.

    Where no table grows too large the result is optimal, as on every tree. Elsewhere some variables keep their present choice while the
    others are eliminated, in turns with other variables fixed, until nothing improves. No turn makes the sum larger.

    Args:
      counts: choices by variable.
      factors: (variables, table of costs by their choices).
    """
    # A variable with one choice has no axis, so that the number of axes stays small.
    factors = [(tuple(i for i in scope if counts[i] > 1), table.reshape([counts[i] for i in scope if counts[i] > 1]))
               for scope, table in factors]
    factors = [(scope, table) for scope, table in factors if scope]
    chosen, fixed, idle = _one_by_one(counts, factors), set[int](), 0
    best = _cost(factors, chosen)
    while idle < _IDLE_TURNS:
        found, fixed = _eliminate(counts, factors, chosen, fixed)
        cost = _cost(factors, found)
        idle, best, chosen = (0, cost, found) if cost < best else (idle + 1, best, chosen)
        if not fixed:
            break
    return chosen


def _cost(factors: Sequence[Factor], chosen: Sequence[int]) -> float:
    return sum(float(table[tuple(chosen[i] for i in scope)]) for scope, table in factors)


def _one_by_one(counts: Sequence[int], factors: Sequence[Factor]) -> list[int]:
    """Each variable in turn takes the best choice given those before it."""
    mine: list[list[Factor]] = [[] for _ in counts]
    for factor in factors:
        mine[max(factor[0])].append(factor)
    chosen: list[int] = []
    for i, tables in enumerate(mine):
        total = np.zeros(counts[i])
        for scope, table in tables:
            total = total + table[tuple(slice(None) if j == i else chosen[j] for j in scope)]
        chosen.append(int(np.argmin(total)))
    return chosen


def _eliminate(counts: Sequence[int], factors: Sequence[Factor], chosen: Sequence[int], spared: set[int]) -> tuple[list[int], set[int]]:
    """The best choices where some variables keep theirs, and these variables.

    The variable whose table is smallest is eliminated first. When the smallest is too large, the variable with the most neighbours keeps
    its choice; one of `spared` does so only if no other is left.
    """
    tables: list[dict[int, Factor]] = [{} for _ in counts]  # of each variable, by number of the factor
    near: list[set[int]] = [set() for _ in counts]
    number = itertools.count()

    def add(scope: tuple[int, ...], table: np.ndarray) -> None:
        key = next(number)
        for i in scope:
            tables[i][key] = scope, table
            near[i].update(scope)
            near[i].discard(i)

    def take(i: int) -> list[Factor]:
        """All tables of a variable, which no other has any longer."""
        taken = tables[i]
        for key, (scope, _) in taken.items():
            for j in scope:
                if j != i:
                    del tables[j][key]
        for j in near[i]:
            near[j].discard(i)
        tables[i] = {}
        return list(taken.values())

    def entries(i: int) -> int:
        return math.prod(counts[j] for j in near[i]) * counts[i]

    for scope, table in factors:
        add(scope, table)
    result, fixed, left = list(chosen), set[int](), set(range(len(counts)))
    waiting = [(entries(i), i) for i in left]
    heapq.heapify(waiting)
    decided: list[tuple[int, list[int], np.ndarray]] = []
    while left:
        size, i = heapq.heappop(waiting)
        if i not in left or size != entries(i):
            continue  # a later entry is right
        if size > _MOST_ENTRIES:
            heapq.heappush(waiting, (size, i))
            i = max(left, key=lambda j: (j not in spared, len(near[j]), j))
            fixed.add(i)
            left.discard(i)
            beside = sorted(near[i])
            for scope, table in take(i):
                if len(scope) > 1:
                    add(tuple(j for j in scope if j != i), table[tuple(result[i] if j == i else slice(None) for j in scope)])
        else:
            left.discard(i)
            beside = sorted(near[i])
            total = np.zeros([counts[j] for j in (*beside, i)])
            for scope, table in take(i):
                total += _spread(scope, table, (*beside, i))
            decided.append((i, beside, total.argmin(axis=-1)))
            if beside:
                add(tuple(beside), total.min(axis=-1))
        for j in beside:
            heapq.heappush(waiting, (entries(j), j))
    for i, beside, best in reversed(decided):
        result[i] = int(best[tuple(result[j] for j in beside)])
    return result, fixed


def _spread(scope: tuple[int, ...], table: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A table with its axes among `axes`, to be added."""
    order = sorted(range(len(scope)), key=lambda k: axes.index(scope[k]))
    shape = [1] * len(axes)
    for k in order:
        shape[axes.index(scope[k])] = table.shape[k]
    return table.transpose(order).reshape(shape)
