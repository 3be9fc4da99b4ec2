"""Repetition in a graph: a part of it that follows several times, such as the layers of a model, matched vertex by vertex.

A *shift* takes each vertex of one copy to its counterpart in the next. It is an isomorphism between the part where it is defined and the
part where it arrives. A vertex, its counterpart, the counterpart of that, and so on, are a *chain*.

From two vertices with like neighbourhoods the shift spreads along edges, as in matching for subgraph isomorphism (Cordella et al., IEEE
PAMI 26(10), 2004), but without backtracking.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.compiled import compiled, inner
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.repeats.colours import joined, own_colours, refined

# Pairs of vertices from which the matching may begin, one after another, in what is not matched yet. What covers less than one part in so
# many of the graph is not kept.
_ATTEMPTS = 8
# Vertices around another that are looked at to find the closest.
_NEAR = 1000


class Repetition(NamedTuple):
    """The chains of a graph.

    Attributes:
      chain: int32 [N], the chain of each vertex, -1 where nothing repeats; position: int32 [N], its place in the chain.
      vertex: int32 [sum of lengths], chain c is `vertex[ptr[c]:ptr[c + 1]]`, at least two.
    """

    chain: np.ndarray
    position: np.ndarray
    ptr: np.ndarray
    vertex: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64 [C]: vertices of each chain."""
        return np.diff(self.ptr)

    def next_vertex(self) -> np.ndarray:
        """int32 [N]: the shift, -1 where it is not defined."""
        shift = np.full(len(self.chain), -1, np.int32)
        inside = np.flatnonzero(self.chain[self.vertex[:-1]] == self.chain[self.vertex[1:]])
        shift[self.vertex[inside]] = self.vertex[inside + 1]
        return shift


def find_repetition(graph: DataflowGraph, costs: CostModel) -> Repetition | None:
    """The chains of a graph; None if vertices tied by chain were more than half as many as all, or fewer than devices.

    Counterparts have the same costs, permitted devices and output sizes. Edges between two vertices have the same costs as those between
    their counterparts.
    """
    own = own_colours(graph, costs)
    source, target, label = joined(graph, costs)
    outward, inward = _by_vertex(source, target, label, len(own)), _by_vertex(target, source, label, len(own))
    colours, level, work = refined(own, source, target, label), graph.level, graph.work_vertices
    shift, back = np.full((2, len(own)), -1, np.int32)
    tried = np.zeros(len(own), bool)
    for _ in range(_ATTEMPTS):
        free = work[(shift[work] < 0) & (back[work] < 0) & ~tried[work]]
        u, candidates = _begin(colours, level, free)
        if u < 0:
            break
        tried[u] = True
        more = shift.copy(), back.copy()
        if spread(u, candidates, own, colours, outward, inward, *more) * _ATTEMPTS >= work.size:
            shift, back = more
    found = _chains(shift, back)
    tied = work.size - len(found.vertex) + len(found.lengths)
    return found if 2 * tied <= work.size and tied >= costs.num_devices else None


def _by_vertex(keys: np.ndarray, others: np.ndarray, label: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The other ends and the labels of the edges of vertex v, from `ptr[v]` to `ptr[v + 1]`, in ascending order: ptr, others, labels."""
    order = np.lexsort((others, keys))
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))]), others[order], label[order]


def _begin(colours: np.ndarray, level: np.ndarray, free: np.ndarray) -> tuple[int, np.ndarray]:
    """A free vertex, and those that look like it on the next level with such; -1 and none if there are none.

    They are as many levels apart as most free vertices are from the next level with their colour. Of these the vertex is in the middle.
    """
    for colour in colours:
        ordered = free[np.lexsort((free, level[free], colour[free]))]
        alike = colour[ordered[1:]] == colour[ordered[:-1]]
        first = np.flatnonzero(np.append(True, ~alike | (level[ordered[1:]] > level[ordered[:-1]]))[:ordered.size])
        here = ordered[first]
        follows = np.flatnonzero(colour[here[1:]] == colour[here[:-1]])
        if follows.size:
            steps = level[here[follows + 1]] - level[here[follows]]
            usual = follows[steps == np.argmax(np.bincount(steps))]
            k = usual[len(usual) // 2]
            w = here[k + 1]
            return int(here[k]), ordered[(colour[ordered] == colour[w]) & (level[ordered] == level[w])].astype(np.int64)
    return -1, np.empty(0, np.int64)


@inner
def _label(edges, a, b):
    """The hash of the edges between a and b, and whether there are any."""
    ptr, other, label = edges
    low, high = ptr[a], ptr[a + 1]
    while low < high:
        middle = (low + high) // 2
        if other[middle] < b:
            low = middle + 1
        else:
            high = middle
    return (label[low], True) if low < ptr[a + 1] and other[low] == b else (np.uint64(0), False)


@inner
def _agree(u, w, edges, shift, back):
    """Whether the edges of u in one direction to matched vertices are those of w to their counterparts."""
    ptr, other, label = edges
    count = 0
    for i in range(ptr[u], ptr[u + 1]):
        x = shift[other[i]]
        if x >= 0:
            found, some = _label(edges, w, x)
            if not some or found != label[i]:
                return False
            count += 1
    for i in range(ptr[w], ptr[w + 1]):
        count -= back[other[i]] >= 0
    return count == 0


@inner
def _counterparts(v, own, colours, outward, inward, shift, back, fit):
    """Fills `fit` with the free vertices that v may be matched to: of those that fit, the ones that look most like it.

    Returns: how many, and the neighbour of v with whose counterpart they share an edge.
    """
    # Of the neighbours of v, the one whose counterpart has the fewest neighbours in that direction is looked through.
    least, at, ahead = len(own) + 1, -1, True
    for forth, (here, there) in ((True, (inward, outward)), (False, (outward, inward))):
        for i in range(here[0][v], here[0][v + 1]):
            x = shift[here[1][i]]
            if x >= 0 and there[0][x + 1] - there[0][x] < least:
                least, at, ahead = there[0][x + 1] - there[0][x], here[1][i], forth
    ptr, other, _ = outward if ahead else inward
    count, unlike = 0, len(colours)
    for i in range(ptr[shift[at]], ptr[shift[at] + 1]):
        y = other[i]
        if y == v or back[y] >= 0 or own[y] != own[v]:
            continue
        k = 0
        while k < unlike and colours[k, y] != colours[k, v]:
            k += 1
        if (k == unlike < len(colours) and colours[k, y] != colours[k, v]) or not (
                _agree(v, y, inward, shift, back) and _agree(v, y, outward, shift, back)):
            continue
        if k < unlike:
            count, unlike = 0, k
        fit[count] = y
        count += 1
    return count, at


@inner(_nrt=True)
def _nearest(v, fit, count, step, outward, inward, seen):
    """Of the first `count` vertices in `fit` the one closest to v by edges. Of several, the one whose number is closest to v + step.

    Args: seen: int64 [N], marks of earlier calls, all other than v + 1.
    """
    reached = [v]
    seen[v], begin = v + 1, 0
    while True:
        chosen = -1
        for i in range(count):
            y = fit[i]
            if (seen[y] == v + 1 or begin == len(reached)) and (chosen < 0 or abs(y - v - step) < abs(chosen - v - step)):
                chosen = y
        if chosen >= 0:
            return chosen
        end = len(reached)
        if end > _NEAR:
            begin = end
        while begin < end:
            x = reached[begin]
            begin += 1
            for ptr, other, _ in (outward, inward):
                for i in range(ptr[x], ptr[x + 1]):
                    if seen[other[i]] != v + 1:
                        seen[other[i]] = v + 1
                        reached.append(other[i])


@compiled
def spread(u, candidates, own, colours, outward, inward, shift, back):
    """Matches u to a candidate, then their neighbours, and so on, as long as counterparts agree; returns how many vertices it matched.

    A vertex with one counterpart that fits is matched before one with several. Of several it takes the closest, so that what passes
    through all copies is matched to itself, and then the one whose number is as far off as that of the neighbour which led there: graphs
    are often written copy by copy.

    Args:
      candidates: int64, at least one.
      own: uint64 [N]; colours: uint64 [K, N], the finest first; outward, inward: edges by source and by target, see `_by_vertex`.
      shift, back: int32 [N], filled with the counterparts in both directions; -1: none yet.
    """
    fit, waits, seen = np.empty(len(own), np.int64), np.zeros(len(own), np.bool_), np.zeros(len(own), np.int64)
    w = _nearest(u, candidates, len(candidates), candidates[0] - u, outward, inward, seen)
    if not (_agree(u, w, inward, shift, back) and _agree(u, w, outward, shift, back)):
        return 0
    shift[u], back[w], matched = w, u, 1
    todo, waiting, first, fresh = [u], [u], 1, u
    todo.pop()
    while True:
        if fresh >= 0:
            for ptr, other, _ in (inward, outward):
                for i in range(ptr[fresh], ptr[fresh + 1]):
                    todo.append(other[i])
            fresh = -1
        while not todo and first < len(waiting) and shift[waiting[first]] >= 0:
            first += 1
        if not todo and first == len(waiting):
            return matched
        forced = len(todo) > 0
        if forced:
            v = todo.pop()
        else:
            v = waiting[first]
            first += 1
        if shift[v] >= 0:
            continue
        count, at = _counterparts(v, own, colours, outward, inward, shift, back, fit)
        if count > 1 and forced:
            if not waits[v]:
                waits[v] = True
                waiting.append(v)
        elif count:
            chosen = fit[0] if count == 1 else _nearest(v, fit, count, shift[at] - at, outward, inward, seen)
            shift[v], back[chosen], fresh, matched = chosen, v, v, matched + 1


def _chains(shift: np.ndarray, back: np.ndarray) -> Repetition:
    """The chains of a shift. Those that close to a circle are left out."""
    chain, position = np.full(len(shift), -1, np.int32), np.zeros(len(shift), np.int32)
    heads = np.flatnonzero((back < 0) & (shift >= 0)).astype(np.int32)
    here, rows, place = heads, np.arange(len(heads), dtype=np.int32), 0
    while here.size:
        chain[here], position[here] = rows, place
        on = shift[here] >= 0
        here, rows, place = shift[here[on]], rows[on], place + 1
    vertex = np.lexsort((position, chain))[int((chain < 0).sum()):].astype(np.int32)
    return Repetition(chain, position, np.concatenate([[0], np.cumsum(np.bincount(chain[vertex], minlength=len(heads)))]), vertex)
