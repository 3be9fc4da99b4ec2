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

# A vertex is compared with all before it in topological order, or with the nearest of them. At most so many edges are looked at, and as
# many pairs of what cannot arrive in time: some tenths of a second.
_MOST_LOOKS = 30_000_000


@dataclass(frozen=True)
class Bounds:
    """Lower bounds in seconds.

    Attributes:
      work_s: no server finishes sooner than its devices together can do the work.
      path_s: no path finishes sooner than its vertices and the transfers that no choice of devices avoids.
      join_s: path_s, and of all that lies before a vertex, what is not on its device has a transfer before it. So its device ran all that
        could not arrive in time from elsewhere (Papadimitriou and Yannakakis, SIAM J. Computing 19(2), 1990). And all devices together did
        what cannot begin earlier than a given time, whatever that time is (Fernandez and Bussell, IEEE Transactions on Computers C-22(8),
        1973); all but one ended a transfer earlier.
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
    vertices times edges, up to 30 million.

    If a host takes what does not fit, they hold for plans with it, too.
    """
    if costs.topology.host is not None and costs.tensor_bytes.sum() > costs.memory_bytes.min():
        costs = _by_host(costs)
    (work_s, shares), path_s = _work_bound(graph, costs), _longest(graph, costs)
    bounds = work_s, path_s, max(path_s, _longest(graph, costs, shares))
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


class _Shares(NamedTuple):
    """What all devices together take at least. Attributes: share_s: float64 [N], seconds for each vertex; most: what one device can do of
    what all can, at most."""

    share_s: np.ndarray
    most: float


def _work_bound(graph: DataflowGraph, costs: CostModel) -> tuple[float, _Shares]:
    """Dual of the fractional scheduling program: for weights w >= 0, makespan >= sum_v min_d w_d exec(v, d) / sum_d w_d slots_d. With it
    the terms of the sum.

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
    share_s *= 1 - 4 * (graph.num_vertices + costs.num_devices) * np.finfo(np.float64).eps
    return max(bounds), _Shares(share_s, float(np.max(weights * costs.slots) / np.sum(weights * costs.slots)))


def _longest(graph: DataflowGraph, costs: CostModel, shares: _Shares | None = None) -> float:
    """Earliest possible end by (vertex, device), each predecessor taking the device that suits the vertex best.

    With `shares` a vertex waits for all before it, too, whose least times on any device and least transfers count (see `Bounds`).
    """
    into = graph.predecessors
    # Edges that carry several outputs of one predecessor must stand side by side.
    edge = into.edge if graph.single_outputs else np.lexsort((graph.sources, graph.targets))
    count = graph.num_vertices
    window = 0 if shares is None else min(count, _MOST_LOOKS // max(count, len(edge), 1))
    most_late = int((_MOST_LOOKS / max(count * costs.num_devices, 1)) ** 0.5) + 1
    share_s, most = (np.zeros(count), 1.0) if shares is None else shares
    latest = _earliest_ends(graph.topological_order, into.ptr, graph.sources[edge], costs.exec_s, costs.allowed, graph.is_input,
                            costs.explicit_transfer_s[edge], costs.edge_bytes[edge], _link_kinds(costs.topology), costs.slots.max(),
                            window, most_late, share_s, most)
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
def _earliest_ends(order, ptr, neighbour, exec_s, allowed, is_input, explicit_s, edge_bytes, links, slots, window, most_late, share_s,
                   most):
    """See `_longest`. Args: window: with how many others a vertex is compared; most_late: how many of these, the nearest, may be what its
    device ran; share_s, most: see `_Shares`."""
    count, num_devices = exec_s.shape
    end, first_end = np.full((count, num_devices), np.inf), np.full((count, len(links.origin_ptr) - 1), np.inf)
    least_exec_s, least_s, ended = np.zeros(count), np.zeros(len(neighbour)), np.zeros(count)  # on any device, by any link
    by_begin, seen, begun = np.empty(count, np.int64), 0, np.empty(count)  # in ascending order of their earliest begins
    mark, here, elsewhere = np.full(count, -1), np.empty(count), np.empty(count)
    latest = 0.0
    for at in range(count):
        v = order[at]
        if is_input[v]:
            end[v] = 0.0
            continue
        earliest, least = 0.0, np.inf
        for i in range(ptr[v], ptr[v + 1]):
            earliest = max(earliest, ended[neighbour[i]])
            least_s[i] = explicit_s[i]
            if np.isnan(explicit_s[i]):
                least_s[i] = np.inf
                for kind in range(len(links.latency_s)):
                    least_s[i] = min(least_s[i], links.latency_s[kind] + edge_bytes[i] / links.bandwidth[kind])
        if window:
            begin = max(0, at - window)
            _ways(at, begin, order, ptr, neighbour, is_input, least_s, least_exec_s, mark, here, elsewhere)
            late = _late(earliest, at, begin, order, mark, elsewhere, ended, most_late)
            earliest = max(earliest, _crowded(at, by_begin, max(0, seen - window), seen, mark, elsewhere, begun, share_s, most))
        begun[v] = np.inf
        for d in range(num_devices):
            if not allowed[v, d]:
                continue
            least = min(least, exec_s[v, d])
            after, start = ptr[v], earliest
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
            if window:
                start = _joined(start, late.copy(), elsewhere, ended, end[:, d], exec_s[:, d], slots)
            begun[v] = min(begun[v], start)
            end[v, d] = start + exec_s[v, d]
        least_exec_s[v], ended[v] = least, end[v].min()
        i = seen
        while i > 0 and begun[by_begin[i - 1]] > begun[v]:
            by_begin[i] = by_begin[i - 1]
            i -= 1
        by_begin[i], seen = v, seen + 1
        for origin in range(first_end.shape[1]):
            for i in range(links.origin_ptr[origin], links.origin_ptr[origin + 1]):
                first_end[v, origin] = min(first_end[v, origin], end[v, links.device[i]])
        latest = max(latest, ended[v])
    if window:
        mark[:], elsewhere[:] = count, 0.0
        latest = max(latest, _crowded(count, by_begin, 0, seen, mark, elsewhere, begun, share_s, most))
    return latest


@numba.njit(cache=True)
def _ways(at, begin, order, ptr, neighbour, is_input, least_s, exec_s, mark, here, elsewhere):
    """For all that lies before the vertex at place `at`, from the place `begin` on: sets `mark` to `at`, and the least seconds from its
    end to the start of the vertex, `here` on whatever device it runs, `elsewhere` on another than the vertex."""
    v = order[at]
    mark[v], here[v], elsewhere[v] = at, 0.0, np.inf
    for place in range(at, begin - 1, -1):
        w = order[place]
        if mark[w] != at:
            continue
        lasts_s = exec_s[w] if place < at else 0.0
        for i in range(ptr[w], ptr[w + 1]):
            u = neighbour[i]
            if is_input[u]:
                continue
            if mark[u] != at:
                mark[u], here[u], elsewhere[u] = at, 0.0, 0.0
            here[u] = max(here[u], lasts_s + here[w])
            elsewhere[u] = max(elsewhere[u], lasts_s + min(least_s[i] + here[w], elsewhere[w]))


@numba.njit(cache=True)
def _late(start, at, begin, order, mark, elsewhere, ended, most):
    """What lies before the vertex at place `at` and cannot arrive by `start` from elsewhere, the nearest `most`."""
    late, count = np.empty(min(most, at - begin), np.int64), 0
    for place in range(at - 1, begin - 1, -1):
        u = order[place]
        if count == len(late):
            break
        if mark[u] == at and ended[u] + elsewhere[u] > start:
            late[count] = u
            count += 1
    return late[:count]


@numba.njit(cache=True)
def _joined(start, late, elsewhere, ended, end, exec_s, slots):
    """When a vertex starts at the earliest on a device: of those before it, so many that arrive last from elsewhere ran there."""
    for size in range(len(late)):
        last = size
        for i in range(size + 1, len(late)):
            if ended[late[i]] + elsewhere[late[i]] > ended[late[last]] + elsewhere[late[last]]:
                last = i
        u = late[last]
        arrival = ended[u] + elsewhere[u]
        if arrival <= start:
            break
        if end[u] == np.inf:
            return arrival
        # The first `size` are sorted by their begins, the latest first.
        late[last] = late[size]
        i, begin = size, end[u] - exec_s[u]
        while i > 0 and end[late[i - 1]] - exec_s[late[i - 1]] < begin:
            late[i] = late[i - 1]
            i -= 1
        late[i] = u
        ran, total = start, 0.0
        for i in range(size + 1):
            total += exec_s[late[i]]
            ran = max(ran, end[late[i]] - exec_s[late[i]] + total / slots)
        if ran >= arrival:
            return arrival
        start = ran
    return start


@numba.njit(cache=True)
def _crowded(at, by_begin, first, seen, mark, elsewhere, begun, share_s, most):
    """Earliest time by which all that is marked with `at` can have ended, if what runs on other devices than one ends the least seconds of
    `elsewhere` before."""
    latest, total, least = 0.0, 0.0, np.inf
    for i in range(seen - 1, first - 1, -1):
        u = by_begin[i]
        if mark[u] == at:
            total += share_s[u]
            least = min(least, elsewhere[u])
            alone_s = total / most
            spread_s = total + (1.0 - most) * least if most < 1.0 else alone_s
            latest = max(latest, begun[u] + min(alone_s, spread_s))
    return latest
