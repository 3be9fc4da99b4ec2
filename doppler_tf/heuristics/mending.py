"""Shared: assignments that cannot run are changed until they can: they keep to existing links, and take an order that fits in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numba
import numpy as np

from doppler_tf.errors import CostError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.links import IMPOSSIBLE, SOLVED, legal_devices, neighbours
from doppler_tf.schedule.assignment import Assignment, runnable


def legal(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Assignment:
    """The assignment, if it uses existing links alone; else one that does, and keeps what devices it can.

    Units move to permitted devices that are fast for them, spread over equal ones.

    Raises:
      CostError: no such assignment exists, or none was found; the message says which.
    """
    topology = costs.topology
    if topology.linked.all() or runnable(graph, costs, assignment.device):
        return assignment
    near, work = neighbours(graph, topology.linked), graph.work_vertices
    unit, count, devices = near.unit_of[work], len(near.ptr) - 1, costs.num_devices
    allowed, preferred, exec_s = np.empty((count, devices), bool), np.empty(count, np.int64), np.zeros((count, devices))
    allowed[unit], preferred[unit] = costs.allowed[work], assignment.device[work]
    np.add.at(exec_s, unit, costs.exec_s[work])
    turn = (np.arange(devices) - np.arange(count)[:, None]) % devices
    ranked = np.lexsort((turn, exec_s, np.arange(devices) != preferred[:, None]), axis=1)
    found, outcome = legal_devices(near, allowed, ranked)
    if outcome != SOLVED:
        among = next((own for group in _mutually_linked(topology.linked) if (own := allowed & group).any(axis=1).all()), None)
        if among is None:
            raise CostError(f"{graph.name}: links of {topology.name}: expected an assignment over existing links alone, got "
                            + ("none, as a complete search proved that there is none" if outcome == IMPOSSIBLE else
                               "none from a search that gave up, which does not prove that there is none")
                            + "; add links, or let vertices run on more devices")
        found = np.take_along_axis(ranked, np.argmax(np.take_along_axis(among, ranked, axis=1), axis=1)[:, None], axis=1)[:, 0]
    device = assignment.device.copy()
    device[work] = found[unit]
    return replace(assignment, device=device)


def _mutually_linked(linked: np.ndarray) -> Iterator[np.ndarray]:
    """bool [D]: for each device a group of devices around it, each linked with all others in both directions."""
    both = linked & linked.T
    for first in range(len(both)):
        group = np.arange(len(both)) == first
        for d in np.flatnonzero(both[first]).tolist():
            group[d] |= both[d][group].all()
        yield group


def frugal_orders(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Iterator[Assignment]:
    """The assignment in an order that holds few tensors at a time; then others, each with stretches of this order on devices.

    Stretches are equally long; then they end where few bytes are held, so that what one vertex takes is made on one device.

    The order is depth first from the exits. Of a vertex's producers the one whose own producers need most memory beyond its output comes
    first (Liu, "An application of generalized tree pebbling to sparse matrix factorization", 1987, for trees).
    """
    into = graph.predecessors
    order = _depth_first(graph.topological_order, into.ptr, into.vertex, np.where(graph.is_input, 0.0, costs.output_bytes),
                         np.flatnonzero(np.diff(graph.successors.ptr) == 0))
    order = order[~graph.is_input[order]].astype(np.int32)
    priority = np.zeros(graph.num_vertices)
    priority[order] = np.arange(order.size)
    yield replace(assignment, order=order, priority=priority)
    held_bytes = _held_bytes(graph, costs, order)
    by_room, devices, tried = np.argsort(-costs.memory_bytes, kind="stable"), costs.num_devices, set[bytes]()
    stretches = sorted({*(devices >> k for k in range(devices.bit_length())), 1} - {0}, reverse=True)
    for weight in (costs.mean_exec_s[order], costs.output_bytes[order]):
        begin = (np.cumsum(weight) - weight) / (weight.sum() or 1.0)
        for count in stretches:
            equal = np.minimum((begin * count).astype(np.int64), count - 1)
            for stretch in (equal, _ending_low(equal, held_bytes)):
                target = np.zeros(graph.num_vertices, np.int64)
                target[order] = stretch
                device = first_allowed(graph, costs, by_room[(target[:, None] + np.arange(devices)) % devices])
                if device.tobytes() not in tried:
                    tried.add(device.tobytes())
                    yield legal(graph, costs, Assignment(device, order, assignment.method, assignment.dispatch, priority))


def _held_bytes(graph: DataflowGraph, costs: CostModel, order: np.ndarray) -> np.ndarray:
    """float64 [M]: before each vertex of an order, the bytes of all tensors that were made by then and are still to be read."""
    position, edges = np.zeros(graph.num_vertices, np.int64), graph.work_edges
    position[order] = np.arange(order.size)
    tensors, made = np.unique(graph.edge_tensor[edges]), position[graph.tensor_producer]
    read = made.copy()
    np.maximum.at(read, graph.edge_tensor[edges], position[graph.targets[edges]])
    change = np.zeros(order.size + 1)
    np.add.at(change, made[tensors] + 1, costs.tensor_bytes[tensors])
    np.subtract.at(change, read[tensors] + 1, costs.tensor_bytes[tensors])
    return np.cumsum(change)[:-1]


def _ending_low(stretch: np.ndarray, held_bytes: np.ndarray) -> np.ndarray:
    """int64 [M]: stretches (ascending numbers from 0) that end where the fewest bytes are held, at most a quarter of one elsewhere."""
    count = int(stretch[-1]) + 1
    reach, ends = stretch.size // (4 * count), []
    for end in np.searchsorted(stretch, np.arange(1, count)).tolist():
        near = np.arange(max(0, end - reach), min(stretch.size, end + reach + 1))
        ends.append(near[np.lexsort((np.abs(near - end), held_bytes[near]))[0]])
    return np.searchsorted(np.sort(np.array(ends, np.int64)), np.arange(stretch.size), side="right")


def first_allowed(graph: DataflowGraph, costs: CostModel, ranked: np.ndarray) -> np.ndarray:
    """The first permitted device in each vertex's row of `ranked` [N, D]; a colocation group gets the device of its first vertex."""
    permitted = np.take_along_axis(costs.allowed, ranked, axis=1)
    device = np.take_along_axis(ranked, np.argmax(permitted, axis=1)[:, None], axis=1)[:, 0].astype(np.int32)
    device[graph.is_input] = -1
    members = np.flatnonzero((costs.colocate >= 0) & ~graph.is_input)
    first = np.full(len(graph.groups), graph.num_vertices)
    np.minimum.at(first, costs.colocate[members], members)
    device[members] = device[first[costs.colocate[members]]]
    return device


@numba.njit(cache=True, nogil=True)
def _depth_first(topological, ptr, producer, output_bytes, exits):
    """int64 [N]: the order of `frugal_orders`. Args: exits: vertices without consumers."""
    count = len(topological)
    need, ranked = np.zeros(count), producer.copy()
    for v in topological:
        begin, end = ptr[v], ptr[v + 1]
        beyond = np.empty(end - begin)
        for i in range(begin, end):
            beyond[i - begin] = output_bytes[producer[i]] - need[producer[i]]
        ranked[begin:end] = producer[begin:end][np.argsort(beyond, kind="mergesort")]
        held = 0.0
        for i in range(begin, end):
            need[v] = max(need[v], held + need[ranked[i]])
            held += output_bytes[ranked[i]]
        need[v] = max(need[v], held + output_bytes[v])
    order, made = np.empty(count, np.int64), 0
    opened, done, stack = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.empty(len(producer) + count, np.int64)
    for last in exits:
        stack[0], height = last, 1
        while height:
            v = stack[height - 1]
            if opened[v]:
                height -= 1
                if not done[v]:
                    done[v] = True
                    order[made] = v
                    made += 1
                continue
            opened[v] = True
            for i in range(ptr[v + 1] - 1, ptr[v] - 1, -1):
                if not opened[ranked[i]]:
                    stack[height] = ranked[i]
                    height += 1
    return order[:made]
