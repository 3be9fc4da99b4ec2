"""The paper's enumerative optimizer: distributes each meta-op's vertices evenly over the devices with the least transfer."""

from __future__ import annotations

import math

import numpy as np

from doppler_tf.fastsim.compiled import compiled, copy_to
from doppler_tf.fastsim.queues import edge_cost
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.constructive.balancing import linear_sum_assignment
from doppler_tf.heuristics.constructive.planning import PlanningData
from doppler_tf.heuristics.judging import over_links
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import Assignment

# The most distributions that are enumerated, and the most vertices that are distributed together.
_MOST_DISTRIBUTIONS, _MOST_AT_ONCE = 50_000, 128


@over_links
def enumerative(problem: Problem, rng: np.random.Generator) -> Assignment:
    """Takes meta-ops in topological order, and distributes first their shards, then their other vertices, evenly with the least transfer.

    (EnumerativeOptimizer of DOPPLER, Yao et al. 2026.) The number of vertices on a device is proportional to its speed, within one. A copy
    that is already on a device costs nothing. Ties go to devices with less work. Up to 50,000 distributions are enumerated. If there are
    more, a linear assignment problem over each vertex's own transfers is solved exactly; its result differs only if vertices of one group
    share inputs. Vertices without a meta-op form groups by level. A group of more than 128 is distributed in portions. Pinned vertices
    count towards their device's share. Vertices that only some devices can run are distributed first, over these. If a device's memory is
    full, its vertices go to the cheapest device with room.
    """
    state = _State(problem.planning, len(problem.graph.groups))
    for members in _groups(problem.graph):
        for begin in range(0, len(members), _MOST_AT_ONCE):
            state.place(members[begin:begin + _MOST_AT_ONCE], problem.work_shares)
    return Assignment(state.device, problem.order, "enumerative")


def _groups(graph: DataflowGraph) -> list[np.ndarray]:
    """Groups of vertices that are distributed together, in the order in which they are placed."""
    level = graph.level
    first: dict[str, int] = {}
    for v in graph.topological_order.tolist():
        if not graph.is_input[v] and graph.meta_op[v] is not None:
            first.setdefault(graph.meta_op[v], len(first))
    begin = {meta_op: math.inf for meta_op in first}
    for v in graph.work_vertices.tolist():
        if graph.meta_op[v] is not None:
            begin[graph.meta_op[v]] = min(begin[graph.meta_op[v]], int(level[v]))
    members: dict[tuple, list[int]] = {}
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            name = graph.meta_op[v]
            # Other vertices of a meta-op come after its shards, level by level.
            key = (int(level[v]), -1, 0, 0) if name is None else (begin[name], first[name], 0, 0) if graph.role[v] == "shard" else (
                begin[name], first[name], 1, int(level[v]))
            members.setdefault(key, []).append(v)
    return [np.array(members[key]) for key in sorted(members)]


class _State:
    """A partial assignment."""

    def __init__(self, p: PlanningData, groups: int):
        (count, devices), self._p = p.exec_s.shape, p
        self.device, self._group_device = np.full(count, -1, np.int32), np.full(groups + 1, -1, np.int64)
        self._sent_s = np.zeros((p.num_tensors, devices))  # the cost of the copies that have been sent
        self._load_s, self._room = np.zeros(devices), p.memory_bytes.copy()

    def place(self, vertices: np.ndarray, share: np.ndarray) -> None:
        """Distributes one group. Args: share: float64 [D], sums to 1."""
        p = self._p
        fixed, free, colocated = [], [], []
        seen = set()
        for v in vertices.tolist():
            group = int(p.colocate[v])
            if p.allowed[v].sum() == 1 or (group >= 0 and self._group_device[group] >= 0):
                fixed.append(v)
            elif group in seen:
                colocated.append(v)
            else:
                free.append(v)
                seen.update([group] if group >= 0 else [])
        num_fixed = np.zeros(len(share), np.int64)
        for v in fixed:
            d = int(np.argmax(p.allowed[v])) if p.allowed[v].sum() == 1 else int(self._group_device[p.colocate[v]])
            self._put(v, d)
            num_fixed[d] += 1
        unplaced = np.array(free, np.int64)
        for allowed in sorted(np.unique(p.allowed[unplaced], axis=0), key=np.sum):
            alike = (p.allowed[unplaced] == allowed).all(axis=1)
            members, unplaced = unplaced[alike], unplaced[~alike]
            due = (len(vertices) - len(unplaced)) * share * allowed / share[allowed].sum()
            places = np.maximum(np.floor(due + 1e-9).astype(np.int64) - num_fixed, 0)
            while places.sum() > len(members):
                places[np.argmax(places)] -= 1
            devices = self._distribution(members, places, len(members) - int(places.sum()), allowed)
            num_fixed += np.bincount(devices, minlength=len(share))
            for v, d in zip(members.tolist(), devices.tolist(), strict=True):
                self._put(v, self._with_room(v, d))
        for v in colocated:
            self._put(v, int(self._group_device[p.colocate[v]]))

    def _distribution(self, free: np.ndarray, places: np.ndarray, extras: int, allowed: np.ndarray) -> np.ndarray:
        """int64 [len(free)] devices: `places` [D] on each device, and one more on `extras` of those allowed, or more than one if these are
        fewer."""
        extra_places = np.where(allowed, -(-extras // int(allowed.sum())), 0)
        most = places + extra_places
        # An upper bound: the number of distributions if every device had its most places.
        distributions = math.lgamma(most.sum() + 1) - sum(math.lgamma(n + 1) for n in most.tolist())
        transfer_s = _transfers(self._p, free, self.device, self._sent_s)
        if distributions <= math.log(_MOST_DISTRIBUTIONS):
            return _cheapest(self._p, free, self.device, self._sent_s, self._load_s, places, extra_places, extras)
        columns = np.repeat(np.arange(len(places)), most)
        cost = np.full((len(columns), len(columns)), np.inf)
        # A tie goes to the device with less work.
        scale = transfer_s.max() or 1.0
        cost[:len(free)] = (transfer_s + 1e-6 * scale * self._load_s / (self._load_s.max() or 1.0))[:, columns]
        extra = np.concatenate([np.arange(m) >= n for m, n in zip(most.tolist(), places.tolist(), strict=True)])
        cost[len(free):, extra] = 0.0
        return columns[linear_sum_assignment(cost)[:len(free)]]

    def _with_room(self, v: int, d: int) -> int:
        """d if its memory has room, else the cheapest permitted device with room, else d."""
        room = (self._room >= self._p.output_bytes[v]) & self._p.allowed[v]
        if room[d] or not room.any():
            return d
        cost = _transfers(self._p, np.array([v]), self.device, self._sent_s)[0]
        return int(np.argmin(np.where(room, cost, np.inf)))

    def _put(self, v: int, d: int) -> None:
        self.device[v] = d
        self._room[d] -= self._p.output_bytes[v]
        self._load_s[d] += self._p.exec_s[v, d]
        if self._p.colocate[v] >= 0:
            self._group_device[self._p.colocate[v]] = d
        _send(self._p, v, d, self.device, self._sent_s)


@compiled
def _transfers(p, vertices, device, sent_s):
    """float64 [n, D]: the cost of the transfers that each vertex alone would add on each device."""
    cost_s = np.zeros((len(vertices), p.exec_s.shape[1]))
    for k in range(len(vertices)):
        v = vertices[k]
        for i in range(p.in_ptr[v], p.in_ptr[v + 1]):
            u, tensor = p.in_edges[i].vertex, p.in_edges[i].tensor
            for d in range(p.exec_s.shape[1]):
                if device[u] >= 0 and device[u] != d:
                    cost_s[k, d] += max(0.0, edge_cost(p.in_edges[i].cost, device[u], d, p.latency_s, p.bandwidth) - sent_s[tensor, d])
    return cost_s


@compiled
def _send(p, v, d, device, sent_s):
    """Records the copies that v needs on d."""
    for i in range(p.in_ptr[v], p.in_ptr[v + 1]):
        u, tensor = p.in_edges[i].vertex, p.in_edges[i].tensor
        if device[u] >= 0 and device[u] != d:
            sent_s[tensor, d] = max(sent_s[tensor, d], edge_cost(p.in_edges[i].cost, device[u], d, p.latency_s, p.bandwidth))


@compiled
def _cheapest(p, vertices, device, sent_s, load_s, places, extra_places, extras):
    """int64 [n]: the distribution with the least transfer, counting each copy once; ties go to the least work on the chosen devices.

    Each device takes `places` vertices and up to `extra_places` more, `extras` in total. The search is depth first and skips branches that
    already cost more than the best.
    """
    count, num_devices = len(vertices), len(places)
    choice, best = np.full(count, -1), np.full(count, -1)
    cost_s, work_s, best_s, best_work_s = np.zeros(count + 1), np.zeros(count + 1), np.inf, np.inf
    used, extras_left = np.zeros(num_devices, np.int64), extras
    ptr = np.zeros(count + 1, np.int64)
    for k in range(count):
        ptr[k + 1] = ptr[k] + p.in_ptr[vertices[k] + 1] - p.in_ptr[vertices[k]]
    before = np.empty(ptr[count])
    k = 0
    while k >= 0:
        if k < count and choice[k] >= 0:
            # Backtracks: undoes the last choice.
            v, d = vertices[k], choice[k]
            for j in range(ptr[k + 1] - ptr[k] - 1, -1, -1):
                sent_s[p.in_edges[p.in_ptr[v] + j].tensor, d] = before[ptr[k] + j]
            used[d] -= 1
            extras_left += used[d] >= places[d]
        elif k == count:
            if cost_s[k] < best_s or (cost_s[k] == best_s and work_s[k] < best_work_s):
                best_s, best_work_s = cost_s[k], work_s[k]
                copy_to(best, choice)
            k -= 1
            continue
        d = choice[k] + 1
        while d < num_devices and not (used[d] < places[d] or (used[d] < places[d] + extra_places[d] and extras_left > 0)):
            d += 1
        if d == num_devices:
            choice[k] = -1
            k -= 1
            continue
        v = vertices[k]
        choice[k] = d
        extras_left -= used[d] >= places[d]
        used[d] += 1
        cost_s[k + 1], work_s[k + 1] = cost_s[k], work_s[k] + load_s[d] + used[d] * p.exec_s[v, d]
        for j in range(ptr[k + 1] - ptr[k]):
            edge = p.in_edges[p.in_ptr[v] + j]
            u, tensor = edge.vertex, edge.tensor
            before[ptr[k] + j] = sent_s[tensor, d]
            if device[u] >= 0 and device[u] != d:
                cost = edge_cost(edge.cost, device[u], d, p.latency_s, p.bandwidth)
                if cost > sent_s[tensor, d]:
                    cost_s[k + 1] += cost - sent_s[tensor, d]
                    sent_s[tensor, d] = cost
        if cost_s[k + 1] <= best_s:
            k += 1
    return best
