"""Which unit should move to which device: a small network that was trained to tell moves that shorten a run; compiled.

It reads the schedule that a search stands at, in units that do not depend on the size of the graph. `benchmarks/pretrain.py` trains it on
generated graphs. (Learned proposals for a search: Paliwal et al., REGAL, arXiv 1905.02494; Correia et al., Neural SA, arXiv 2203.02201.)
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import NamedTuple

import numpy as np

from doppler_tf.errors import FormatError, field_error
from doppler_tf.fastsim.compiled import compiled, copy_to, inner
from doppler_tf.fastsim.prepared import makespan_bound
from doppler_tf.fastsim.queues import edge_cost

# What the network knows of a move from device a to b. Seconds count in mean vertices (the first five logarithmically), or as shares of the
# makespan.
FEATURES = (
    "inputs at b after the present start", "exec at b more than at a", "time to the end from b more than from a",
    "transfers from and to b more than those of a", "path through b longer than through a",
    "b busy when the inputs arrive", "b busy for a while then", "a busy for a while then", "waited at a, in mean vertices",
    "neighbours at a", "neighbours at b", "exec at a", "work of a", "work of b", "path through a", "path through b", "neighbours",
    "present start", "critical", "work of links to a", "work of links to b", "work of links from a", "work of links from b")
_LOGARITHMIC = 5
SCHEMA = "doppler-proposals/1"
# A makespan is divided into so many intervals, for each of which the busy seconds of devices are summed; "a while" is so many.
_INTERVALS, _WHILE = 64, 4
# A proposal is the best of so many random moves, more for larger graphs, whose simulations take longer: one for so many units.
_MOST, _FEWEST, _UNITS = 32, 2, 32
# This share of these moves is of units anywhere, the others are of units on the critical chain; this share is to a neighbour's device.
_ANYWHERE, _NEAR = 0.1, 0.5
# Scores count so much beside the noise that makes proposals differ.
_SHARPNESS = 2.0


class Proposals(NamedTuple):
    """The network, two hidden layers of H units.

    Attributes:
      first, second, last: float64 [F, H], [H, H], [H], weights; first_bias, second_bias: float64 [H].
      preference: float64 [U, D], added to the scores of units on devices, or [0, 0].
    """

    first: np.ndarray
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray
    last: np.ndarray
    preference: np.ndarray = np.zeros((0, 0))


class Schedule(NamedTuple):
    """The run that a search stands at; its arrays are changed in place.

    Attributes:
      begun_s: float64 [N], starts of vertices; tail_s: float64 [N], the least seconds from these to the end of all that depends on them.
      busy_s: float64 [D, 64], busy seconds of devices in each interval; work_s: float64 [D]; link_s: float64 [num_link_lanes],
        seconds of transfers by lane.
      critical: bool [U], whether a unit is on the critical chain.
      scales_s: float64 [3]: the makespan, the mean exec, the mean work of a device.
    """

    begun_s: np.ndarray
    tail_s: np.ndarray
    busy_s: np.ndarray
    work_s: np.ndarray
    link_s: np.ndarray
    critical: np.ndarray
    scales_s: np.ndarray


def read_proposals(text: str, where: str) -> Proposals:
    """Reads `doppler-proposals/1`. Raises FormatError for another schema or other features than these."""
    record = json.loads(text)
    if record.get("schema") != SCHEMA:
        raise field_error(FormatError, where, "", "schema", SCHEMA, record.get("schema"))
    if record["features"] != list(FEATURES):
        raise field_error(FormatError, where, "", "features", "those of this version", record["features"], "run make pretrain")
    return Proposals(**{name: np.array(record["weights"][name]) for name in Proposals._fields if name != "preference"})


@functools.cache
def shipped_proposals() -> Proposals:
    """The network that comes with the project."""
    return read_proposals((resources.files(__package__) / "proposals.json").read_text(), "proposals.json")


@compiled
def new_schedule(p, units):
    """An empty schedule. Args: p: Prepared; units: their number."""
    count, devices = p.exec_s.shape
    return Schedule(np.zeros(count), np.zeros(count), np.zeros((devices, _INTERVALS)), np.zeros(devices), np.zeros(p.num_link_lanes),
                    np.zeros(units, np.bool_), np.zeros(3))


@compiled
def read_schedule(devices, prepared, makespan_s, critical, schedule):
    """Fills all of a schedule but its starts.

    Args: devices: int32 [1, N]; prepared: Prepared; critical: int64, how many units are on the critical chain, then these units.
    """
    begun_s, tail_s, busy_s, work_s, link_s, on_chain, scales_s = schedule
    makespan_bound(devices, prepared, np.inf, tail_s)
    busy_s[:], work_s[:], link_s[:], on_chain[:] = 0.0, 0.0, 0.0, False
    width_s, exec_s, vertices = max(makespan_s, 1e-300) / _INTERVALS, 0.0, 0
    for v in range(len(begun_s)):
        if prepared.incoming[v] < 0:
            continue
        d = devices[0, v]
        lasts_s = prepared.exec_s[v, d]
        work_s[d] += lasts_s
        exec_s, vertices = exec_s + lasts_s, vertices + 1
        begin, end = min(float(_INTERVALS), begun_s[v] / width_s), min(float(_INTERVALS), (begun_s[v] + lasts_s) / width_s)
        i = int(begin)
        while i < end:
            busy_s[d, i] += (min(end, i + 1.0) - max(begin, float(i))) * width_s
            i += 1
        if prepared.link_slots >= 0:
            for i in range(prepared.ptr[v], prepared.ptr[v + 1]):
                there = devices[0, prepared.edges[i].vertex]
                if there != d:
                    lane, cost = prepared.link_lane[d, there], prepared.edges[i].cost
                    link_s[lane] += edge_cost(cost, d, there, prepared.latency_s, prepared.bandwidth)
    for i in range(1, critical[0] + 1):
        on_chain[critical[i]] = True
    scales_s[0], scales_s[1], scales_s[2] = makespan_s, max(exec_s / max(vertices, 1), 1e-300), max(work_s.mean(), 1e-300)


@inner
def _busy(schedule, d, begin_s, end_s):
    """The share of a time in which a device is busy."""
    width_s = max(schedule.scales_s[0], 1e-300) / _INTERVALS
    begin, end, total = min(float(_INTERVALS), begin_s / width_s), min(float(_INTERVALS), end_s / width_s), 0.0
    if end <= begin:
        end = begin + 1e-9
    i = int(begin)
    while i < min(end, float(_INTERVALS)):
        total += schedule.busy_s[d, i] / width_s * (min(end, i + 1.0) - max(begin, float(i)))
        i += 1
    return total / (end - begin)


@inner
def _at(device, d, sent_s, cost, p, outward):
    """Seconds at which a tensor is at the other end of an edge, and of its transfer. Args: device: of the neighbour; d: of the unit."""
    if device == d:
        return sent_s, 0.0
    transfer_s = edge_cost(cost, d, device, p.latency_s, p.bandwidth) if outward else edge_cost(cost, device, d, p.latency_s, p.bandwidth)
    return sent_s + transfer_s, transfer_s


@compiled(allocates=False)
def read_move(unit, a, b, sets, p, devices, schedule, x):
    """Fills `x`, float64 [F], with what is known of the move of a unit from device a to b. Args: as in `propose`."""
    begun_s, tail_s, _, work_s, link_s, on_chain, scales_s = schedule
    makespan_s, mean_s, work_mean_s = scales_s
    first_s, neighbours = np.inf, 0
    x[:] = 0.0
    for k in range(2):
        d = b if k else a
        arrival_s, exec_s, after_s, transfers_s, near, links_in_s, links_out_s = 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0
        for i in range(sets.member_ptr[unit], sets.member_ptr[unit + 1]):
            v = sets.member[i]
            exec_s += p.exec_s[v, d]
            first_s = min(first_s, begun_s[v])
            for j in range(p.in_ptr[v], p.in_ptr[v + 1]):
                u = p.maker[p.in_tensor[j]]
                if p.incoming[u] < 0 or sets.unit_of[u] == unit:
                    continue
                for e in range(p.ptr[u], p.ptr[u + 1]):
                    if p.edges[e].vertex == v and p.edges[e].tensor == p.in_tensor[j]:
                        there = devices[0, u]
                        at_s, transfer_s = _at(there, d, begun_s[u] + p.exec_s[u, there], p.edges[e].cost, p, False)
                        arrival_s, transfers_s, near = max(arrival_s, at_s), transfers_s + transfer_s, near + (there == d)
                        links_in_s = max(links_in_s, link_s[p.link_lane[there, d]])
                        neighbours += k
            for e in range(p.ptr[v], p.ptr[v + 1]):
                w = p.edges[e].vertex
                if sets.unit_of[w] == unit:
                    continue
                there = devices[0, w]
                at_s, transfer_s = _at(there, d, tail_s[w], p.edges[e].cost, p, True)
                after_s, transfers_s, near = max(after_s, at_s), transfers_s + transfer_s, near + (there == d)
                links_out_s = max(links_out_s, link_s[p.link_lane[d, there]])
                neighbours += k
        # First what is said of a, then b's beside it.
        begin_s = arrival_s if k else first_s
        sign = 1.0 if k else -1.0
        x[0] += sign * begin_s / mean_s
        x[1] += sign * exec_s / mean_s
        x[2] += sign * after_s / mean_s
        x[3] += sign * transfers_s / mean_s
        x[4] += sign * (begin_s + exec_s + after_s) / mean_s
        while_s = _WHILE * makespan_s / _INTERVALS
        if k:
            later_s = max(arrival_s, first_s)
            x[5], x[6] = _busy(schedule, d, arrival_s, arrival_s + exec_s), _busy(schedule, d, later_s, later_s + while_s)
        else:
            x[7], x[8] = _busy(schedule, d, arrival_s, arrival_s + while_s), np.log1p(max(0.0, first_s - arrival_s) / mean_s)
            x[11] = np.log1p(exec_s / mean_s)
        x[9 + k], x[12 + k], x[14 + k] = near, work_s[d] / work_mean_s, (begin_s + exec_s + after_s) / max(makespan_s, 1e-300)
        x[19 + k], x[21 + k] = links_in_s / max(makespan_s, 1e-300), links_out_s / max(makespan_s, 1e-300)
    for i in range(_LOGARITHMIC):
        x[i] = np.sign(x[i]) * np.log1p(abs(x[i]))
    x[9], x[10], x[16] = x[9] / max(neighbours, 1), x[10] / max(neighbours, 1), np.log1p(neighbours)
    x[17], x[18] = first_s / max(makespan_s, 1e-300), on_chain[unit]


@compiled(allocates=False)
def score(proposals, x, hidden, deeper):
    """The network's output, larger for moves that more probably shorten the run. Args: x: float64 [F]; hidden, deeper: float64 [H]."""
    copy_to(hidden, proposals.first_bias)
    copy_to(deeper, proposals.second_bias)
    total = 0.0
    for i in range(len(x)):
        for j in range(len(hidden)):
            hidden[j] += x[i] * proposals.first[i, j]
    for i in range(len(hidden)):
        for j in range(len(deeper)):
            deeper[j] += max(hidden[i], 0.0) * proposals.second[i, j]
    for j in range(len(deeper)):
        total += max(deeper[j], 0.0) * proposals.last[j]
    return total


@inner
def _random(state):
    """A number in [0, 1), and the next state. (xorshift64*: Vigna, ACM TOMS 42(4), 2016.)"""
    state ^= state >> np.uint64(12)
    state ^= state << np.uint64(25)
    state ^= state >> np.uint64(27)
    return np.float64((state * np.uint64(2685821657736338717)) >> np.uint64(11)) / 2.0**53, state


@compiled
def propose(sets, p, devices, unit_device, critical, schedule, proposals, number):
    """A unit and its new device; -1, -1 if no move was found.

    Args:
      sets: MoveSets; p: Prepared; devices: int32 [1, N]; unit_device: int64 [U]; critical: see `read_schedule`; schedule: Schedule.
      number: random in [0, 1).
    """
    units, num_devices = sets.allowed.shape
    x, hidden, deeper = np.empty(len(proposals.first)), np.empty(len(proposals.first_bias)), np.empty(len(proposals.second_bias))
    state = np.uint64(number * 2.0**53) * np.uint64(2) + np.uint64(1)
    best, best_unit, best_device = -np.inf, -1, -1
    for _ in range(min(_MOST, max(_FEWEST, units // _UNITS))):
        anywhere, state = _random(state)
        which, state = _random(state)
        near, state = _random(state)
        where, state = _random(state)
        luck, state = _random(state)
        unit = int(which * units) if anywhere < _ANYWHERE or critical[0] == 0 else critical[1 + int(which * critical[0])]
        neighbours = sets.near_ptr[unit + 1] - sets.near_ptr[unit]
        if near < _NEAR and neighbours:
            d = unit_device[sets.near[sets.near_ptr[unit] + int(where * neighbours)]]
        else:
            d = int(where * num_devices)
        if d == unit_device[unit] or not sets.allowed[unit, d]:
            continue
        read_move(unit, unit_device[unit], d, sets, p, devices, schedule, x)
        value = _SHARPNESS * score(proposals, x, hidden, deeper) - np.log(-np.log(max(luck, 1e-300)))  # Gumbel: a softmax sample
        if len(proposals.preference):
            value += proposals.preference[unit, d]
        if value > best:
            best, best_unit, best_device = value, unit, d
    return best_unit, best_device
