"""Graph partitioning: balanced parts with little transfer between them; it does not consider when vertices run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.heuristics.constructive.balancing import linear_sum_assignment
from doppler_tf.heuristics.judging import over_links
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

# METIS needs integer weights. The largest is scaled to this.
_LARGEST_WEIGHT = 10_000
# With at most this many units per device METIS produces empty parts. With no more than MANY, or one unit that outweighs others, a half of
# its recursion may be empty, about which METIS complains on standard output.
_FEW_UNITS, _MANY_UNITS = 2, 8


@over_links
def partition(problem: Problem, rng: np.random.Generator) -> Assignment:
    """METIS: one part per device, with the device's share of the work and the least transfer between parts.

    (Karypis and Kumar, SIAM J. Scientific Computing 20(1), 1998.) With up to two units per device it balances the work only. Weights are
    the mean exec and transfer. Each part then goes to the device that suits its pins and exec best. What may not go there goes to the
    fastest device that may run it. If a device is full, vertices move to the device with most room.
    """
    graph, costs, own = problem.graph, problem.costs, problem.units
    unit_of = own.unit_of[graph.work_vertices]
    exec_s = np.zeros((own.num_units, costs.num_devices))
    np.add.at(exec_s, unit_of, costs.exec_s[graph.work_vertices])
    part = np.zeros(own.num_units, np.int64)
    if own.num_units <= _FEW_UNITS * costs.num_devices:
        part = _balanced_parts(exec_s.mean(axis=1), problem.work_shares)
    elif costs.num_devices > 1:
        part = _metis_parts(problem, exec_s, int(rng.integers(2**31 - 1)))
    cost = np.zeros((costs.num_devices, costs.num_devices))
    # Breaking a pin costs more than the exec of everything.
    unit_cost = np.where(own.allowed, exec_s, 1.0 + exec_s.sum())
    np.add.at(cost, part, unit_cost)
    device = linear_sum_assignment(cost)[part]
    forbidden = ~own.allowed[np.arange(own.num_units), device]
    device[forbidden] = np.argmin(np.where(own.allowed, exec_s, np.inf)[forbidden], axis=1)
    output_bytes = np.bincount(unit_of, costs.output_bytes[graph.work_vertices], own.num_units)
    _relieve_full_devices(device, own.allowed, output_bytes, costs.memory_bytes)
    placed = np.full(graph.num_vertices, -1, np.int32)
    placed[graph.work_vertices] = device[unit_of]
    return Assignment(placed, problem.order, "partition")


def _balanced_parts(exec_s: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """int64 [U]: a part for each unit. The longest unit comes first, and each goes where the smallest fraction of the share is used."""
    part, used_s = np.zeros(len(exec_s), np.int64), np.zeros(len(shares))
    for u in np.argsort(-exec_s, kind="stable").tolist():
        part[u] = np.argmin((used_s + exec_s[u]) / shares)
        used_s[part[u]] += exec_s[u]
    return part


def _metis_parts(problem: Problem, exec_s: np.ndarray, seed: int) -> np.ndarray:
    """int64 [U]: METIS's part of each unit."""
    unit_of, edges, count = problem.units.unit_of, problem.graph.work_edges, len(exec_s)
    a, b = unit_of[problem.graph.sources[edges]].astype(np.int64), unit_of[problem.graph.targets[edges]].astype(np.int64)
    across = a != b
    keys, place = np.unique(np.concatenate([(a * count + b)[across], (b * count + a)[across]]), return_inverse=True)
    transfer_s = np.bincount(place, np.tile(problem.costs.mean_transfer_s[edges][across], 2), len(keys))
    pairs, unit_s, shares = _Pairs(keys // count, keys % count, transfer_s), exec_s.mean(axis=1), problem.work_shares
    if count > _MANY_UNITS * len(shares) and unit_s.max() < shares.min() * unit_s.sum() / 2:
        return _metis(pairs, unit_s, shares, seed)
    part = np.zeros(count, np.int64)
    halves = [(np.arange(count), pairs, 0, len(shares))]
    while halves:  # METIS's recursion, which ends at an empty half
        members, pairs, first, end = halves.pop()
        if end - first == 1 or not members.size:
            part[members] = first
            continue
        middle = (first + end) // 2
        both = np.array([shares[first:middle].sum(), shares[middle:end].sum()])
        half = _metis(pairs, unit_s[members], both / both.sum(), seed)
        halves += [(members[half == k], pairs.within(half == k), *ends) for k, ends in enumerate(((first, middle), (middle, end)))]
    return part


class _Pairs(NamedTuple):
    """Units with transfers between them: each pair both ways, in order, and the seconds of its transfers."""

    first: np.ndarray
    second: np.ndarray
    transfer_s: np.ndarray

    def within(self, kept: np.ndarray) -> _Pairs:
        """Those between the units that are kept, which are counted anew. Args: kept: bool, by unit."""
        number, rows = np.cumsum(kept) - 1, kept[self.first] & kept[self.second]
        return _Pairs(number[self.first[rows]], number[self.second[rows]], self.transfer_s[rows])


def _metis(pairs: _Pairs, unit_s: np.ndarray, shares: np.ndarray, seed: int) -> np.ndarray:
    """int64 [U]: the parts in one call. Args: shares: of the work, by part."""
    import pymetis

    begin = np.concatenate([[0], np.cumsum(np.bincount(pairs.first, minlength=len(unit_s)))])
    found = pymetis.part_graph(len(shares), xadj=begin.tolist(), adjncy=pairs.second.tolist(), vweights=_integers(unit_s).tolist(),
                               eweights=np.maximum(_integers(pairs.transfer_s), 1).tolist(), tpwgts=shares.tolist(),
                               recursive=len(shares) <= 8, options=pymetis.Options(seed=seed))
    return np.array(found.vertex_part, np.int64)


def _integers(seconds: np.ndarray) -> np.ndarray:
    return np.round(seconds * (_LARGEST_WEIGHT / (seconds.max(initial=0.0) or 1.0))).astype(np.int64)


def _relieve_full_devices(device: np.ndarray, allowed: np.ndarray, output_bytes: np.ndarray, memory_bytes: np.ndarray) -> None:
    """Moves units, large outputs first, from devices whose memory is exceeded to the permitted device with most room."""
    room = memory_bytes - np.bincount(device, output_bytes, len(memory_bytes))
    for u in np.argsort(-output_bytes, kind="stable").tolist() if (room < 0).any() else []:
        target = int(np.argmax(np.where(allowed[u], room, -np.inf)))
        if room[device[u]] < 0 and room[target] >= output_bytes[u]:
            room[device[u]] += output_bytes[u]
            room[target] -= output_bytes[u]
            device[u] = target
