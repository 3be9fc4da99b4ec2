"""What all runs of one assignment share, worked out once."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.dispatch import Dispatcher


class Plan:
    """An assignment that is ready to be run, as often as one likes, one run at a time.

    Attributes:
      dispatcher: begins anew with each run.
      vertex_bytes, tensor_bytes: of all outputs of a vertex, and of a tensor.
      input_bytes: float64 [D], inputs are resident where they are used, from the start.
      devices: (device, threads) of those that run a vertex.
      links: (source, destination, threads) of those that a tensor crosses.
      is_single: whether there is one vertex to run.
      loads: those on the host, each of which hands a tensor on; none without a host.
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, dispatcher: Dispatcher):
        self.graph, self.costs, self.assignment, self.dispatcher = graph, costs, assignment, dispatcher
        self.vertex_bytes: list[float] = costs.output_bytes.tolist()
        self.tensor_bytes: list[float] = costs.tensor_bytes.tolist()
        self.input_bytes = _input_bytes(graph, costs, assignment)
        transfers, link_slots = dispatcher.transfers, costs.topology.link_slots
        used, vertices = np.unique(assignment.device[graph.work_vertices], return_counts=True)
        self.devices = [(d, min(count, int(costs.slots[d]))) for d, count in zip(used.tolist(), vertices.tolist(), strict=True)]
        crossed, copies = np.unique(np.stack([transfers.source, transfers.destination]), axis=1, return_counts=True)
        self.links = [(s, d, min(count, link_slots or 1)) for (s, d), count in zip(crossed.T.tolist(), copies.tolist(), strict=True)]
        self.is_single = graph.work_vertices.size == 1
        host = costs.topology.host_device
        self.loads = frozenset[int]() if host is None else frozenset(graph.targets[assignment.device[graph.targets] == host].tolist())


def _input_bytes(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> np.ndarray:
    edges = graph.is_input[graph.sources]
    # One number for a pair: NumPy's comparison of pairs makes a TypeError of a Ctrl-C.
    pairs = graph.edge_tensor[edges].astype(np.int64) * costs.num_devices + assignment.device[graph.targets[edges]]
    tensor, device = np.divmod(np.unique(pairs), costs.num_devices)
    return np.bincount(device, costs.tensor_bytes[tensor], costs.num_devices)
