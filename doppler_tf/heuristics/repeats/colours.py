"""Colour refinement: vertices have the same colour if they are alike, and so are their neighbours, and so on for some rounds.

(Weisfeiler and Leman, Nauchno-Tekhnicheskaya Informatsia 2(9), 1968.)
"""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

# Colours are kept after so many rounds. They tell apart what differs within so many edges.
_ROUNDS = (1, 2, 4, 8, 16, 32)
# The step of SplitMix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)


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


def own_colours(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """uint64 [N]: equal for vertices that are alike without their neighbours in the graph."""
    outputs = _hashed(costs.tensor_bytes, np.arange(graph.num_tensors) - graph.tensor_ptr[graph.tensor_producer])
    return _hashed(*costs.exec_s.T, *costs.allowed.T, _summed(graph.tensor_producer, outputs, graph.num_vertices), costs.colocate >= 0)


def joined(graph: DataflowGraph, costs: CostModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of work vertices with edges between them: sources, targets, and a hash of these edges."""
    edges = graph.work_edges
    label = _hashed(np.nan_to_num(costs.explicit_transfer_s[edges], nan=-1.0), costs.edge_bytes[edges], graph.edge_output[edges])
    keys = graph.sources[edges].astype(np.int64) * graph.num_vertices + graph.targets[edges]
    pairs, row = np.unique(keys, return_inverse=True)
    return ((pairs // graph.num_vertices).astype(np.int32), (pairs % graph.num_vertices).astype(np.int32),
            _summed(row, label, len(pairs)))


def refined(own: np.ndarray, source: np.ndarray, target: np.ndarray, label: np.ndarray) -> np.ndarray:
    """uint64 [len(_ROUNDS), N]: the colours after these rounds, the finest first."""
    colour, kept = own, []
    for done in range(1, _ROUNDS[-1] + 1):
        before = _summed(target, _mixed(colour[source] + label), len(own))
        after = _summed(source, _mixed(colour[target] ^ label), len(own))
        colour = _hashed(own, colour, before, after)
        if done in _ROUNDS:
            kept.insert(0, colour)
    return np.stack(kept)
