"""Graph partitioning: balanced parts with little transfer between them; it does not consider when vertices run."""

from __future__ import annotations

import numpy as np

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics.balancing import linear_sum_assignment, work_shares
from doppler_tf.heuristics.mending import over_links
from doppler_tf.heuristics.move_sets import units

# METIS needs integer weights. The largest is scaled to this.
_LARGEST_WEIGHT = 10_000
# With at most this many units per device, METIS can produce empty parts and complains on standard output.
_FEW_UNITS = 2


@over_links
def partition(graph: DataflowGraph, costs: CostModel, rng: np.random.Generator) -> Assignment:
    """METIS: one part per device, with the device's share of the work and the least transfer between parts.

    (Karypis and Kumar, SIAM J. Scientific Computing 20(1), 1998.) With up to two units per device it balances the work only. Weights are
    the mean exec and transfer. Each part then goes to the device that suits its pins and exec best. What may not go there goes to the
    fastest device that may run it. If a device is full, vertices move to the device with most room.
    """
    own = units(graph, costs)
    unit_of = own.unit_of[graph.work_vertices]
    exec_s = np.zeros((own.num_units, costs.num_devices))
    np.add.at(exec_s, unit_of, costs.exec_s[graph.work_vertices])
    part = np.zeros(own.num_units, np.int64)
    if own.num_units <= _FEW_UNITS * costs.num_devices:
        part = _balanced_parts(exec_s.mean(axis=1), work_shares(graph, costs))
    elif costs.num_devices > 1:
        part = _metis_parts(graph, costs, own.unit_of, exec_s, int(rng.integers(2**31 - 1)))
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
    return Assignment(placed, graph.topological_order[~graph.is_input[graph.topological_order]], "partition")


def _balanced_parts(exec_s: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """int64 [U]: a part for each unit. The longest unit comes first, and each goes where the smallest fraction of the share is used."""
    part, used_s = np.zeros(len(exec_s), np.int64), np.zeros(len(shares))
    for u in np.argsort(-exec_s, kind="stable").tolist():
        part[u] = np.argmin((used_s + exec_s[u]) / shares)
        used_s[part[u]] += exec_s[u]
    return part


def _metis_parts(graph: DataflowGraph, costs: CostModel, unit_of: np.ndarray, exec_s: np.ndarray, seed: int) -> np.ndarray:
    """int64 [U]: METIS's part of each unit."""
    import pymetis

    count, edges = len(exec_s), graph.work_edges
    a, b = unit_of[graph.sources[edges]].astype(np.int64), unit_of[graph.targets[edges]].astype(np.int64)
    across = a != b
    keys, inverse = np.unique(np.concatenate([a * count + b, b * count + a])[np.tile(across, 2)], return_inverse=True)
    transfer_s = np.bincount(inverse, np.tile(costs.mean_transfer_s[edges], 2)[np.tile(across, 2)], len(keys))
    pointers = np.concatenate([[0], np.cumsum(np.bincount(keys // count, minlength=count))])
    found = pymetis.part_graph(costs.num_devices, xadj=pointers.tolist(), adjncy=(keys % count).tolist(),
                               vweights=_integers(exec_s.mean(axis=1)).tolist(), eweights=np.maximum(_integers(transfer_s), 1).tolist(),
                               tpwgts=work_shares(graph, costs).tolist(), recursive=costs.num_devices <= 8,
                               options=pymetis.Options(seed=seed))
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
