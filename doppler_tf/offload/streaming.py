"""The problem in which inputs come from the host: close to what a plan makes of an assignment if they do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.dispatch import queue_keys


class Streaming:
    """A problem whose inputs are vertices of the host, the last device, that take no time and are sent to each device that needs them.

    Attributes:
      problem: without limits of memory. Searches find assignments for it that send few inputs, and these when nobody waits for them.
    """

    def __init__(self, limited: CostModel, free: Problem):
        """Args: limited: costs with the limits; free: the problem without them, see `roomy`."""
        graph, costs, count = free.graph, free.costs, free.graph.num_vertices
        self._limited, self._free, from_input = limited, free, graph.is_input[graph.sources]
        exec_s = np.full((count, costs.num_devices + 1), np.inf)
        exec_s[:, :-1] = np.where(costs.allowed & ~graph.is_input[:, None], costs.exec_s, np.inf)
        exec_s[graph.is_input, -1] = 0.0
        made = replace(graph, is_input=np.zeros(count, bool), exec_s=exec_s, tensor_bytes=costs.tensor_bytes, kernel=(None,) * count,
                       pin=(None,) * count, colocate=np.where(graph.is_input, -1, graph.colocate).astype(np.int32),
                       edge_bytes=np.where(from_input, costs.tensor_bytes[graph.edge_tensor], graph.edge_bytes),
                       transfer_s=np.where(from_input, np.nan, graph.transfer_s))
        self.problem = Problem(made, build_costs(made, costs.topology.with_host), free.dispatch)
        # What is on a device from the start needs no link from the host.
        wide, self._linked = costs.topology.with_host, costs.topology.with_host.linked[-1]
        bandwidth = wide.bandwidth_bytes_per_s.copy()
        bandwidth[-1, ~self._linked] = 1.0
        self._all_linked = replace(wide, bandwidth_bytes_per_s=bandwidth)

    def own(self, assignment: Assignment) -> Assignment:
        """An assignment of the graph, from one of `problem`."""
        is_input, order = self._free.graph.is_input, assignment.order
        return replace(assignment, device=np.where(is_input, -1, assignment.device).astype(np.int32), proven_bound_s=0.0,
                       order=None if order is None else order[~is_input[order]])

    def estimate_s(self, assignment: Assignment) -> float:
        """Simulated seconds of an assignment of the graph, if inputs are on their devices from the start where there is room for them,
        those that are used first before others, and are sent once from the host otherwise; infinity where no link leads from there."""
        graph, costs, rule = self._free.graph, self.problem.costs, assignment.dispatch
        starts_s = self._free.simulator(rule).starts_s(assignment)
        if starts_s is None:
            return math.inf
        edges = np.flatnonzero(graph.is_input[graph.sources])
        where = graph.edge_tensor[edges].astype(np.int64) * costs.num_devices + assignment.device[graph.targets[edges]]
        pairs, of_edge = np.unique(where, return_inverse=True)
        first_s = np.full(len(pairs), np.inf)
        np.minimum.at(first_s, of_edge, starts_s[graph.targets[edges]])
        there, left_bytes = np.zeros(len(pairs), bool), self._limited.memory_bytes.tolist()
        for i in np.argsort(first_s, kind="stable").tolist():
            size, d = costs.tensor_bytes[pairs[i] // costs.num_devices], int(pairs[i] % costs.num_devices)
            if size <= left_bytes[d]:
                there[i], left_bytes[d] = True, left_bytes[d] - size
        if not self._linked[pairs[~there] % costs.num_devices].all():
            return math.inf
        explicit_s = costs.explicit_transfer_s.copy()
        explicit_s[edges[there[of_edge]]] = 0.0
        device = np.where(graph.is_input, costs.num_devices - 1, assignment.device).astype(np.int32)
        keys = queue_keys(graph, self._free.costs, assignment, rule)
        if keys is not None:  # an input is as urgent as its most urgent consumer
            keys = keys.copy()
            keys[graph.is_input] = np.inf
            np.minimum.at(keys, graph.sources[edges], keys[graph.targets[edges]])
            keys[np.isinf(keys)] = 0.0  # of what nobody takes
        costs = replace(costs, topology=self._all_linked, explicit_transfer_s=explicit_s)
        simulator = FastSimulator(self.problem.graph, costs, "fifo" if keys is None else "order")
        return float(simulator.makespans_of([replace(assignment, device=device, order=None, priority=keys)])[0])
