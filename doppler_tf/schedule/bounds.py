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

# So many vertices at most, as the vertices before each take memory and time by their square: half a second, 50 MB.
_MOST_BEFORE = 20_000


@dataclass(frozen=True)
class Bounds:
    """Lower bounds in seconds.

    Attributes:
      work_s: no server finishes sooner than its devices together can do the work.
      path_s: no path finishes sooner than its vertices and the transfers that no choice of devices avoids.
      join_s: path_s, and where a vertex joins several inputs either it waits for a transfer or its device ran them all itself. Nor does a
        vertex start before all devices together can have done what has to end before it and cannot begin earlier than a given time,
        whatever that time is (Fernandez and Bussell, IEEE Transactions on Computers C-22(8), 1973).
    """

    work_s: float
    path_s: float
    join_s: float

    @property
    def best_s(self) -> float:
        """The largest of the bounds."""
        return max(self.work_s, self.path_s, self.join_s)


def lower_bounds(graph: DataflowGraph, costs: CostModel) -> Bounds:
    """All bounds; near-linear in vertices and edges times devices, and times the kinds of links that end at a device; `join_s` also takes
    the square of up to 20,000 vertices.

    If a host takes what does not fit, they hold for plans with it, too.
    """
    if costs.topology.host is not None and costs.tensor_bytes.sum() > costs.memory_bytes.min():
        costs = _by_host(costs)
    (work_s, share_s), path_s = _work_bound(graph, costs), _longest(graph, costs)
    bounds = work_s, path_s, max(path_s, _longest(graph, costs, share_s))
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


def _work_bound(graph: DataflowGraph, costs: CostModel) -> tuple[float, np.ndarray]:
    """Dual of the fractional scheduling program: for weights w >= 0, makespan >= sum_v min_d w_d exec(v, d) / sum_d w_d slots_d. With it
    the terms of the sum, float64 [N]: the seconds that all devices together take at least for each vertex.

    Weights tried: equal ones (bound by each vertex's best device), the devices' speeds (tight for uniformly faster devices), and equal ones
    of the devices that some vertex is restricted to, which bound what these alone may run.
    (Lenstra, Shmoys and Tardos 1990 give the linear program of unrelated machines.)
    """
    work = graph.work_vertices
    allowed = costs.allowed[work]
    total = costs.exec_s[work].sum(axis=0)

    def weighed_s(weights: np.ndarray) -> np.ndarray:
        return np.min(costs.exec_s[work] * weights, axis=1, where=allowed, initial=np.inf)

    restricted = () if allowed.all() else np.unique(allowed, axis=0)
    tried = [(weights, 1.0) for weights in (np.ones(costs.num_devices), *restricted)]
    if (total > 0).all():  # the speeds are rounded even where all costs are integers
        tried.append((total.min() / total, 1 - 4 * (work.size + costs.num_devices) * np.finfo(np.float64).eps))
    bounds = [float(np.sum(weighed_s(weights)) / np.sum(weights * costs.slots)) * exact for weights, exact in tried]
    weights, _ = tried[int(np.argmax(bounds))]
    share_s = np.zeros(graph.num_vertices)
    share_s[work] = weighed_s(weights) / np.sum(weights * costs.slots)
    # Their sums are rounded, too.
    return max(bounds), share_s * (1 - 4 * (graph.num_vertices + costs.num_devices) * np.finfo(np.float64).eps)


def _longest(graph: DataflowGraph, costs: CostModel, share_s: np.ndarray | None = None) -> float:
    """Earliest possible end by (vertex, device), each predecessor taking the device that suits the vertex best.

    With `share_s` (see `_work_bound`), at a vertex on device d: of the predecessors whose output cannot arrive from elsewhere by time t,
    all ran on d, one after the other (the argument of Papadimitriou and Yannakakis 1990, one level deep). And all that lies before a
    vertex and cannot begin before time t takes the devices their shares after t; on large graphs this is left out.
    """
    into = graph.predecessors
    # Edges that carry several outputs of one predecessor must stand side by side.
    edge = into.edge if graph.single_outputs else np.lexsort((graph.sources, graph.targets))
    joins, count = share_s is not None, graph.num_vertices
    before = np.zeros((count + 1 if joins and count <= _MOST_BEFORE else 0, -(-count // 64)), np.uint64)
    latest = _earliest_ends(graph.topological_order, into.ptr, graph.sources[edge], costs.exec_s, costs.allowed, graph.is_input,
                            costs.explicit_transfer_s[edge], costs.edge_bytes[edge], _link_kinds(costs.topology), costs.slots, joins,
                            np.zeros(count) if share_s is None else share_s, before)
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
def _earliest_ends(order, ptr, neighbour, exec_s, allowed, is_input, explicit_s, edge_bytes, links, slots, joins, share_s, before):
    """See `_longest`. Args: before: uint64 [N + 1, ...], all 0, to be filled with the vertices before each as bits, and before
    the end; of no rows: ignored."""
    count, num_devices = exec_s.shape
    begun, by_begin, seen = np.empty(count), np.empty(count, np.int64), 0  # earliest begins in ascending order, and whose they are
    end, first_end = np.full((count, num_devices), np.inf), np.full((count, len(links.origin_ptr) - 1), np.inf)
    latest = 0.0
    for v in order:
        if is_input[v]:
            end[v] = 0.0
            continue
        degree = ptr[v + 1] - ptr[v]
        arrival, begin, run = np.empty(degree), np.empty(degree), np.empty(degree)
        if len(before):
            _unite(before, v, neighbour[ptr[v]:ptr[v + 1]])
            crowded_s = _crowded(before[v], begun, by_begin, seen, share_s)
        else:
            crowded_s = 0.0
        earliest = np.inf
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
            start = max(start, crowded_s)
            earliest = min(earliest, start)
            end[v, d] = start + exec_s[v, d]
        if len(before):
            i = seen
            while i > 0 and begun[i - 1] > earliest:
                begun[i], by_begin[i] = begun[i - 1], by_begin[i - 1]
                i -= 1
            begun[i], by_begin[i] = earliest, v
            seen += 1
        for origin in range(first_end.shape[1]):
            for i in range(links.origin_ptr[origin], links.origin_ptr[origin + 1]):
                first_end[v, origin] = min(first_end[v, origin], end[v, links.device[i]])
        latest = max(latest, end[v].min())
    if len(before):
        _unite(before, count, order)
        latest = max(latest, _crowded(before[count], begun, by_begin, seen, share_s))
    return latest


@numba.njit(cache=True)
def _unite(before, v, producers):
    """Sets the bits of all producers of v, and of what lies before them."""
    for u in producers:
        for i in range(before.shape[1]):
            before[v, i] |= before[u, i]
        before[v, u >> 6] |= np.uint64(1) << np.uint64(u & 63)


@numba.njit(cache=True)
def _crowded(bits, begun, by_begin, seen, share_s):
    """Earliest time at which all vertices in `bits` have ended, by their begins and shares alone."""
    latest, total = 0.0, 0.0
    for i in range(seen - 1, -1, -1):
        u = by_begin[i]
        if bits[u >> 6] >> np.uint64(u & 63) & np.uint64(1):
            total += share_s[u]
            latest = max(latest, begun[i] + total)
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
