"""Lower bounds on the makespan of any assignment under any dispatch rule. They prove how far an assignment can be from optimal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numba
import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment


@dataclass(frozen=True)
class Bounds:
    """Lower bounds in seconds.

    Attributes:
      work_s: no server finishes sooner than its devices together can do the work.
      path_s: no path finishes sooner than its vertices and the transfers that no choice of devices avoids.
      join_s: path_s, and where a vertex joins several inputs either it waits for a transfer or its device ran them all itself.
    """

    work_s: float
    path_s: float
    join_s: float

    @property
    def best_s(self) -> float:
        """The largest of the bounds."""
        return max(self.work_s, self.path_s, self.join_s)


def lower_bounds(graph: DataflowGraph, costs: CostModel) -> Bounds:
    """All bounds; near-linear in vertices and edges times devices, and times the kinds of links that end at a device.

    If a host takes what does not fit, they hold for plans with it, too.
    """
    if costs.topology.host is not None and costs.tensor_bytes.sum() > costs.memory_bytes.min():
        costs = _by_host(costs)
    path_s = _longest(graph, costs, joins=False)
    bounds = _work_bound(graph, costs), path_s, max(path_s, _longest(graph, costs, joins=True))
    return Bounds(*(bound * (1 - rounding(graph, costs)) for bound in bounds))


def bound_in_calls_s(graph: DataflowGraph, costs: CostModel) -> float:
    """Seconds that a run takes at least, in whatever larger calls: these save what a device takes for a kernel without work."""
    launch_s = [device.launch_s for device in costs.topology.devices]
    return lower_bounds(graph, replace(costs, exec_s=np.maximum(costs.exec_s - launch_s, 0.0))).best_s


def known_bound_s(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> float:
    """The largest bound that is known: of `lower_bounds`, and what a search has proved and left with its assignment."""
    return max(lower_bounds(graph, costs).best_s, assignment.proven_bound_s)


def rounding(graph: DataflowGraph, costs: CostModel) -> float:
    """The relative difference that rounding may cause between a schedule's sums and ours; 0 if all are sums of integers in float64."""
    seconds = np.concatenate([costs.exec_s.ravel(), costs.explicit_transfer_s])
    exact = np.array_equal(seconds, np.round(seconds)) and costs.exec_s.sum() + seconds[costs.exec_s.size:].sum() < 2**53
    return 0.0 if exact else 4 * (graph.num_vertices + graph.num_edges) * np.finfo(np.float64).eps


def _work_bound(graph: DataflowGraph, costs: CostModel) -> float:
    """Dual of the fractional scheduling program: for weights w >= 0, makespan >= sum_v min_d w_d exec(v, d) / sum_d w_d slots_d.

    Weights tried: equal ones (bound by each vertex's best device), the devices' speeds (tight for uniformly faster devices), and equal ones
    of the devices that some vertex is restricted to, which bound what these alone may run.
    (Lenstra, Shmoys and Tardos 1990 give the linear program of unrelated machines.)
    """
    work = graph.work_vertices
    allowed = costs.allowed[work]
    total = costs.exec_s[work].sum(axis=0)

    def bound(weights: np.ndarray) -> float:
        return float(np.sum(np.min(costs.exec_s[work] * weights, axis=1, where=allowed, initial=np.inf)) / np.sum(weights * costs.slots))

    restricted = () if allowed.all() else np.unique(allowed, axis=0)
    equal = max(map(bound, (np.ones(costs.num_devices), *restricted)))
    if not (total > 0).all():
        return equal
    # The speeds are rounded even where all costs are integers.
    return max(equal, bound(total.min() / total) * (1 - 4 * (work.size + costs.num_devices) * np.finfo(np.float64).eps))


def _longest(graph: DataflowGraph, costs: CostModel, joins: bool) -> float:
    """Earliest possible end by (vertex, device), each predecessor taking the device that suits the vertex best.

    With `joins`, at a vertex on device d: of the predecessors whose output cannot arrive from elsewhere by time t, all ran on d, one
    after the other (the argument of Papadimitriou and Yannakakis 1990, one level deep).
    """
    into = graph.predecessors
    # Edges that carry several outputs of one predecessor must stand side by side.
    edge = into.edge if graph.single_outputs else np.lexsort((graph.sources, graph.targets))
    latest = _earliest_ends(graph.topological_order, into.ptr, graph.sources[edge], costs.exec_s, costs.allowed, graph.is_input,
                            costs.explicit_transfer_s[edge], costs.edge_bytes[edge], _link_kinds(costs.topology), costs.slots, joins)
    # The bound ignores colocation groups. Ignoring a constraint can only lower it, so that it stays valid.
    return float(latest)


def _by_host(costs: CostModel) -> CostModel:
    """Costs by which no transfer takes longer than the second half of its way by the host: a plan may send a tensor so."""
    topology = costs.topology
    latency_s, bandwidth = topology.with_host.latency_s[-1:, :-1], topology.with_host.bandwidth_bytes_per_s[-1:, :-1]
    linked = bandwidth > 0
    links = replace(topology, bandwidth_bytes_per_s=np.maximum(topology.bandwidth_bytes_per_s, bandwidth),
                    latency_s=np.where(topology.links & linked, np.minimum(topology.latency_s, latency_s),
                                       np.where(topology.links, topology.latency_s, latency_s)))
    with np.errstate(divide="ignore", invalid="ignore"):
        least_s = np.where(linked, latency_s + costs.edge_bytes[:, None] / bandwidth, np.inf).min(axis=1)
    return replace(costs, topology=links, explicit_transfer_s=np.fmin(costs.explicit_transfer_s, np.where(
        np.isnan(costs.explicit_transfer_s), np.nan, least_s)))


class _LinkKinds(NamedTuple):
    """Equal links that end at a device are of one kind: only the earliest of the devices that they come from matters.

    Attributes:
      ptr: int64 [D + 1], kinds by the device where they end; latency_s, bandwidth: float64 [K]; origin: int64 [K], a set of devices.
      origin_ptr: int64 [S + 1], device: int64: the sets, each of which may belong to several kinds.
    """

    ptr: np.ndarray
    latency_s: np.ndarray
    bandwidth: np.ndarray
    origin: np.ndarray
    origin_ptr: np.ndarray
    device: np.ndarray


def _link_kinds(topology: Topology) -> _LinkKinds:
    ptr, kinds, numbers = [0], [], dict[bytes, int]()
    for d in range(topology.num_devices):
        others = np.flatnonzero(topology.links[:, d])
        links = np.stack([topology.latency_s[others, d], topology.bandwidth_bytes_per_s[others, d]], axis=1)
        values, kind = np.unique(links, axis=0, return_inverse=True)
        kinds += [(*value, numbers.setdefault(others[kind.ravel() == k].tobytes(), len(numbers))) for k, value in enumerate(values)]
        ptr.append(len(kinds))
    columns = np.array(kinds).reshape(-1, 3).T
    sets = [np.frombuffer(each, np.int64) for each in numbers]
    return _LinkKinds(np.array(ptr), columns[0].copy(), columns[1].copy(), columns[2].astype(np.int64),
                      np.cumsum([0, *map(len, sets)]), np.concatenate(sets) if sets else np.zeros(0, np.int64))


@numba.njit(cache=True)
def _earliest_ends(order, ptr, neighbour, exec_s, allowed, is_input, explicit_s, edge_bytes, links, slots, joins):
    count, num_devices = exec_s.shape
    end, first_end = np.full((count, num_devices), np.inf), np.full((count, len(links.origin_ptr) - 1), np.inf)
    latest = 0.0
    for v in order:
        if is_input[v]:
            end[v] = 0.0
            continue
        degree = ptr[v + 1] - ptr[v]
        arrival, begin, run = np.empty(degree), np.empty(degree), np.empty(degree)
        for d in range(num_devices):
            if not allowed[v, d]:
                continue
            size, after = 0, ptr[v]
            start = 0.0
            while after < ptr[v + 1]:
                first, u = after, neighbour[after]
                while after < ptr[v + 1] and neighbour[after] == u:
                    after += 1
                if is_input[u]:
                    continue
                remote = np.inf
                for kind in range(links.ptr[d], links.ptr[d + 1]):
                    longest = 0.0
                    for i in range(first, after):
                        cost = explicit_s[i]
                        if np.isnan(cost):
                            cost = links.latency_s[kind] + edge_bytes[i] / links.bandwidth[kind]
                        longest = max(longest, cost)
                    remote = min(remote, first_end[u, links.origin[kind]] + longest)
                start = max(start, min(end[u, d], remote))
                arrival[size] = remote
                run[size] = exec_s[u, d] if allowed[u, d] else np.inf
                begin[size] = end[u, d] - run[size] if allowed[u, d] else np.inf
                size += 1
            if joins and size > 1:
                start = max(start, _join(arrival[:size], begin[:size], run[:size], slots[d]))
            end[v, d] = start + exec_s[v, d]
        for origin in range(first_end.shape[1]):
            for i in range(links.origin_ptr[origin], links.origin_ptr[origin + 1]):
                first_end[v, origin] = min(first_end[v, origin], end[v, links.device[i]])
        latest = max(latest, end[v].min())
    return latest


@numba.njit(cache=True)
def _latest_first(arrival):
    """The places of arrivals by time, the latest first: a Shell sort, as Numba compiles `np.argsort` for 3 s."""
    order, gap = np.arange(len(arrival)), len(arrival) // 2
    while gap > 0:
        for i in range(gap, len(order)):
            k, j = order[i], i
            while j >= gap and (arrival[order[j - gap]] < arrival[k] or (arrival[order[j - gap]] == arrival[k] and order[j - gap] > k)):
                order[j] = order[j - gap]
                j -= gap
            order[j] = k
        gap = gap * 5 // 11 if gap > 2 else gap - 1
    return order


@numba.njit(cache=True)
def _join(arrival, begin, run, slots):
    """Earliest time at which all inputs are on one device: the least, over how many of the latest arrivals are run there, of
    max(what still arrives, earliest begin of those run there + their run time)."""
    by_arrival = _latest_first(arrival)
    best = arrival[by_arrival[0]]
    first, total = np.inf, 0.0
    for i in range(len(arrival)):
        k = by_arrival[i]
        first = min(first, begin[k])
        total += run[k]
        rest = arrival[by_arrival[i + 1]] if i + 1 < len(arrival) else 0.0
        best = min(best, max(rest, first + total / slots))
    return best
