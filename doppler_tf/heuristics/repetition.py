"""Repetition in a graph: a part of it that follows several times, such as the layers of a model, matched vertex by vertex.

A *shift* takes each vertex of one copy to its counterpart in the next. It is an isomorphism between the part where it is defined and the
part where it arrives. A vertex, its counterpart, the counterpart of that, and so on, are a *chain*.

Neighbourhoods are compared by colour refinement (Weisfeiler and Leman, 1968). From one pair of vertices the shift spreads along edges, as in
matching for subgraph isomorphism (Cordella et al., IEEE PAMI 26(10), 2004), but without backtracking.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from doppler_tf.costs import CostModel
from doppler_tf.fastsim.compiled import compiled
from doppler_tf.graph import DataflowGraph

# Colours are kept after so many rounds of refinement: they tell apart what differs within so many edges. They only choose where the matching
# begins and which of several counterparts it prefers.
_ROUNDS = (1, 2, 4, 8, 16, 32)
# Pairs of vertices from which the matching may begin, one after another, in what is not matched yet. What covers less than one part in so
# many of the graph is not kept.
_ATTEMPTS = 8


# The step of SplitMix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)


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
    """The chains of a graph; None if vertices that are tied by chain were more than half as many as all.

    Counterparts have the same costs, permitted devices and output sizes. Edges between two vertices have the same costs as
    those between their counterparts.
    """
    own = _own_colours(graph, costs)
    source, target, label = _edges(graph, costs)
    out, into = _sorted_rows(source, target, label, len(own)), _sorted_rows(target, source, label, len(own))
    colours, level, work = _refined(own, source, target, label), _levels(graph), graph.work_vertices
    shift, back = np.full((2, len(own)), -1, np.int32)
    tried = np.zeros(len(own), bool)
    for _ in range(_ATTEMPTS):
        free = work[(shift[work] < 0) & (back[work] < 0) & ~tried[work]]
        u, w, colour = _begin(colours, level, free)
        if u < 0:
            break
        tried[u] = True
        more = shift.copy(), back.copy()
        if spread(u, w, own, colour, *out, *into, *more) * _ATTEMPTS >= work.size:
            shift, back = more
    found = _chains(shift, back)
    tied = work.size - len(found.vertex) + len(found.lengths)
    return found if 2 * tied <= work.size else None


def _mixed(value: np.ndarray) -> np.ndarray:
    """Scrambles uint64 numbers (the finaliser of SplitMix64; Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _hashed(*columns: np.ndarray) -> np.ndarray:
    """uint64 [rows]: a hash of each row of some columns of numbers."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = column if column.dtype == np.uint64 else np.ascontiguousarray(column + 0.0, np.float64).view(np.uint64)
        total = _mixed(total + _STEP + bits)
    return total


def _summed(keys: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """uint64 [count]: the sum of the values of each key, modulo 2^64."""
    total = np.zeros(count, np.uint64)
    np.add.at(total, keys, values)
    return total


def _own_colours(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """uint64 [N]: equal for vertices that are alike without their neighbours in the graph."""
    outputs = _hashed(costs.tensor_bytes, np.arange(graph.num_tensors) - graph.tensor_ptr[graph.tensor_producer])
    return _hashed(*costs.exec_s.T, *costs.allowed.T, _summed(graph.tensor_producer, outputs, graph.num_vertices), costs.colocate >= 0)


def _edges(graph: DataflowGraph, costs: CostModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of work vertices with edges between them: sources, targets, and a hash of these edges."""
    edges = graph.work_edges
    label = _hashed(np.nan_to_num(costs.explicit_transfer_s[edges], nan=-1.0), costs.edge_bytes[edges], graph.edge_output[edges])
    keys = graph.sources[edges].astype(np.int64) * graph.num_vertices + graph.targets[edges]
    pairs, row = np.unique(keys, return_inverse=True)
    return ((pairs // graph.num_vertices).astype(np.int32), (pairs % graph.num_vertices).astype(np.int32),
            _summed(row, label, len(pairs)))


def _sorted_rows(keys: np.ndarray, others: np.ndarray, label: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.lexsort((others, keys))
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))]), others[order], label[order]


def _refined(own: np.ndarray, source: np.ndarray, target: np.ndarray, label: np.ndarray) -> list[np.ndarray]:
    """uint64 [N] for each of `_ROUNDS`, the finest first: the colours after it."""
    colour, kept = own, []
    for done in range(1, _ROUNDS[-1] + 1):
        before = _summed(target, _mixed(colour[source] + label), len(own))
        after = _summed(source, _mixed(colour[target] ^ label), len(own))
        colour = _hashed(own, colour, before, after)
        if done in _ROUNDS:
            kept.insert(0, colour)
    return kept


def _levels(graph: DataflowGraph) -> np.ndarray:
    """int64 [N]: edges on the longest path that leads to a vertex."""
    level = np.empty(graph.num_vertices, np.int64)
    for depth, vertices in enumerate(graph.levels):
        level[vertices] = depth
    return level


def _begin(colours: list[np.ndarray], level: np.ndarray, free: np.ndarray) -> tuple[int, int, np.ndarray]:
    """Two free vertices that look alike, one after the other, and the colours by which they do; (-1, -1, ...) if there are none.

    They are as many levels apart as most free vertices are from the next level with their colour. Of these they are in the middle.
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
            return int(here[k]), int(here[k + 1]), colour
    return -1, -1, level


@numba.njit(nogil=True)
def _label(ptr, other, label, a, b):
    """The hash of the edges between a and b, and whether there are any."""
    low, high = ptr[a], ptr[a + 1]
    while low < high:
        middle = (low + high) // 2
        if other[middle] < b:
            low = middle + 1
        else:
            high = middle
    return (label[low], True) if low < ptr[a + 1] and other[low] == b else (np.uint64(0), False)


@numba.njit(nogil=True)
def _agree(u, w, ptr, other, label, shift, back):
    """Whether the edges of u in one direction to matched vertices are those of w to their counterparts."""
    count = 0
    for i in range(ptr[u], ptr[u + 1]):
        x = shift[other[i]]
        if x >= 0:
            found, some = _label(ptr, other, label, w, x)
            if not some or found != label[i]:
                return False
            count += 1
    for i in range(ptr[w], ptr[w + 1]):
        count -= back[other[i]] >= 0
    return count == 0


@compiled
def spread(u, w, own, colour, out_ptr, out, out_label, in_ptr, into, in_label, shift, back):
    """Matches u to w, then their neighbours, and so on, as long as counterparts agree; returns how many vertices it matched.

    A vertex with one counterpart that fits is matched before one with several. Of several, those of the same colour go first, then the one
    whose number is as far off as that of the neighbour which led there.

    Args:
      own, colour: uint64 [N]; out_ptr, out, out_label, in_ptr, into, in_label: edges by source and by target.
      shift, back: int32 [N], filled with the counterparts in both directions; -1: none yet.
    """
    count = len(own)
    todo, waiting = [(u, w)], [(u, w)]
    todo.clear()
    waiting.clear()
    first, matched = 0, 0
    waits = np.zeros(count, np.bool_)
    shift[u], back[w] = w, u
    pending = [(u, w)]
    best = np.empty(count, np.int64)
    while True:
        while pending:
            a, b = pending.pop()
            matched += 1
            for i in range(in_ptr[a], in_ptr[a + 1]):
                if shift[into[i]] == -1:
                    todo.append((into[i], a))
            for i in range(out_ptr[a], out_ptr[a + 1]):
                if shift[out[i]] == -1:
                    todo.append((out[i], a))
        forced = len(todo) > 0
        if forced:
            v, _ = todo.pop()
        else:
            while first < len(waiting) and shift[waiting[first][0]] != -1:
                first += 1
            if first == len(waiting):
                return matched
            v, _ = waiting[first]
            first += 1
        if shift[v] != -1:
            continue
        # The counterparts of v are among the neighbours of the counterpart of a neighbour; the one with the fewest is looked through.
        least, at, ahead = count + 1, -1, True
        for i in range(in_ptr[v], in_ptr[v + 1]):
            x = shift[into[i]]
            if x >= 0 and out_ptr[x + 1] - out_ptr[x] < least:
                least, at, ahead = out_ptr[x + 1] - out_ptr[x], into[i], True
        for i in range(out_ptr[v], out_ptr[v + 1]):
            x = shift[out[i]]
            if x >= 0 and in_ptr[x + 1] - in_ptr[x] < least:
                least, at, ahead = in_ptr[x + 1] - in_ptr[x], out[i], False
        x = shift[at]
        begin, end = (out_ptr[x], out_ptr[x + 1]) if ahead else (in_ptr[x], in_ptr[x + 1])
        fit, alike = 0, False
        for i in range(begin, end):
            y = out[i] if ahead else into[i]
            if y == v or back[y] != -1 or own[y] != own[v]:
                continue
            same = colour[y] == colour[v]
            if (alike and not same) or not (_agree(v, y, in_ptr, into, in_label, shift, back)
                                            and _agree(v, y, out_ptr, out, out_label, shift, back)):
                continue
            if same and not alike:
                fit, alike = 0, True
            best[fit] = y
            fit += 1
        if fit == 0:
            continue
        if fit > 1 and forced:
            if not waits[v]:
                waits[v] = True
                waiting.append((v, v))
            continue
        chosen = best[0]
        for i in range(1, fit):
            if abs(best[i] - v - (x - at)) < abs(chosen - v - (x - at)):
                chosen = best[i]
        shift[v], back[chosen] = chosen, v
        pending.append((v, chosen))


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
