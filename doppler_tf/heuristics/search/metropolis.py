"""A walk of small changes to one assignment, each accepted or taken back by its simulated makespan; compiled.

(The acceptance rule is that of Metropolis et al., J. Chemical Physics 21(6), 1953.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.fastsim.compiled import compiled, copy_to, inner
from doppler_tf.fastsim.prepared import held_bytes, makespan, makespan_bound, missing_links
from doppler_tf.heuristics.search.proposals import new_schedule, propose, read_schedule

# Random numbers in [0, 1) that one step takes.
DRAWS = 6
# The kinds of change, `..._CRITICAL` ones of a unit of the critical chain: a unit to any device, to a neighbour's, two units exchanged,
# what the network proposes; a set of units to one device, two devices exchanged within a set; a vertex close before or behind another one.
(ANYWHERE_CRITICAL, ANYWHERE, NEAR_CRITICAL, NEAR, SWAP_CRITICAL, SWAP, PROPOSED, GATHER, EXCHANGE,
 LATER_CRITICAL, LATER) = range(11)
# The share of each kind. If priorities are searched, a tenth of all changes are to them.
_DEVICES = (0.0375, 0.0375, 0.0875, 0.0875, 0.0625, 0.0625, 0.375, 0.1, 0.15)
_ORDER, _PRIORITIES = 0.1, (0.5, 0.5)
# What a missing link counts, where a device with twice as many bytes as it holds counts 1.
_WITHOUT_LINK = 1e6
# Bounds add seconds in a different order than makespans. An excess below this share may be rounding, and is simulated to its end.
_MARGIN = 1e-9
# Of so many assignments the first are looked through before they are simulated, the others if that has shown this share to be hopeless.
_EACH, _LOOKED_THROUGH, _WORTH = 1000, 32, 0.1


class WalkState(NamedTuple):
    """The state of a walk; its arrays are changed in place.

    Attributes:
      current, best: int32 [1, N], devices.
      priority: float64 [2, N], the queue keys of `current` and of `best`, in seconds; [2, 0] where they are not searched.
      levels: float64 [2], the makespans of `current` and `best`; infinite where not known yet, above all makespans where memory runs out.
      critical: int64 [2, N + E + 1], of `current` and of `best`: how many units are on the critical chain and can move, then these
        units, some more than once; none where memory runs out.
      begun_s: float64 [2, N], when the vertices of `current` and of `best` start.
      shares: float64 [11], how often each kind of change is made.
      looks: int64 [3]: the number of the last assignments, of those looked through, and of those that this showed to be hopeless.
    """

    current: np.ndarray
    best: np.ndarray
    priority: np.ndarray
    levels: np.ndarray
    critical: np.ndarray
    begun_s: np.ndarray
    shares: np.ndarray
    looks: np.ndarray


def walk_state(device: np.ndarray, num_edges: int, ordered: bool = False) -> WalkState:
    """The state before the first step. Args: device: int32 [N], where the walk begins; ordered: whether priorities are searched."""
    current = device[None].astype(np.int32)
    keys = np.zeros((2, len(device) if ordered else 0))
    return WalkState(current, current.copy(), keys, np.full(2, np.inf), np.zeros((2, len(device) + num_edges + 1), np.int64),
                     np.zeros((2, len(device))), kind_shares(ordered), np.zeros(3, np.int64))


def kind_shares(ordered: bool) -> np.ndarray:
    """float64 [11]: how often each kind of change is made. Args: ordered: whether priorities are searched."""
    of_order = _ORDER if ordered else 0.0
    return np.concatenate([(1 - of_order) * np.array(_DEVICES), of_order * np.array(_PRIORITIES)])


@inner
def _put(sets, unit, d, unit_device, devices, changed, old, count):
    """Moves a unit where it may go, and notes where it was; returns the number of notes."""
    if unit_device[unit] == d or not sets.allowed[unit, d]:
        return count
    changed[count], old[count] = unit, unit_device[unit]
    unit_device[unit] = d
    for i in range(sets.member_ptr[unit], sets.member_ptr[unit + 1]):
        devices[0, sets.member[i]] = d
    return count + 1


@compiled
def _kind(shares, number):
    """A random kind of change. Args: shares: see `WalkState`; number: random in [0, 1)."""
    last = 0
    for kind in range(len(shares)):
        if shares[kind] > 0.0:
            last = kind
            if number < shares[kind]:
                return kind
        number -= shares[kind]
    return last


@inner
def _unit(critical, chained, number, units):
    """A random unit, on the critical chain if `chained`; number: random in [0, 1)."""
    return critical[1 + int(number * critical[0])] if chained and critical[0] else int(number * units)


@inner
def _reorder(sets, kind, draw, critical, unit_device, keys, scale_s):
    """Moves a vertex close before or behind a vertex of the same device, in `keys`, float64 [N]; returns it and its former key."""
    units = len(sets.allowed)
    u = _unit(critical, kind == LATER_CRITICAL, draw[1], units)
    w = int(draw[2] * units)
    for _ in range(4 * sets.allowed.shape[1]):
        if unit_device[w] == unit_device[u] and w != u:
            break
        w = (w + 1) % units
    begin, end = sets.member_ptr[u], sets.member_ptr[u + 1]
    v = sets.member[begin + int(draw[3] * (end - begin))]
    begin, end = sets.member_ptr[w], sets.member_ptr[w + 1]
    old = keys[v]
    keys[v] = keys[sets.member[begin + int(draw[3] * (end - begin))]] + (2.0 * draw[4] - 1.0) * scale_s
    return v, old


@inner
def _change(sets, kind, draw, critical, unit_device, devices, changed, old):
    """Makes one random change of devices; returns how many units it moved.

    Args: kind: of change; critical: a row of `WalkState.critical`; changed, old: get the units and their former devices.
    """
    units, num_devices = sets.allowed.shape
    num_kinds = len(sets.kind_ptr) - 1
    chained = kind in (ANYWHERE_CRITICAL, NEAR_CRITICAL, SWAP_CRITICAL)
    u = _unit(critical, chained, draw[1], units)
    d = int(draw[2] * num_devices)
    if num_devices > 1 and d == unit_device[u]:
        d = (d + 1 + int(draw[3] * (num_devices - 1))) % num_devices
    near = sets.near_ptr[u + 1] - sets.near_ptr[u]
    if kind <= ANYWHERE or (kind >= GATHER and num_kinds == 0):
        return _put(sets, u, d, unit_device, devices, changed, old, 0)
    if kind <= NEAR and near:
        return _put(sets, u, unit_device[sets.near[sets.near_ptr[u] + int(draw[2] * near)]], unit_device, devices, changed, old, 0)
    if kind <= SWAP:
        w, here = int(draw[2] * units), unit_device[u]
        if not (sets.allowed[u, unit_device[w]] and sets.allowed[w, here]):
            return 0
        count = _put(sets, u, unit_device[w], unit_device, devices, changed, old, 0)
        return _put(sets, w, here, unit_device, devices, changed, old, count)
    c = int(draw[1] * num_kinds)
    first, last = sets.kind_ptr[c], sets.kind_ptr[c + 1]
    k = first + int(draw[3] * (last - first))
    begin, end = sets.set_ptr[k], sets.set_ptr[k + 1]
    count = 0
    if kind == GATHER:
        for i in range(begin, end):
            count = _put(sets, sets.set_unit[i], d, unit_device, devices, changed, old, count)
        return count
    a = unit_device[sets.set_unit[begin + int(draw[4] * (end - begin))]]
    for i in range(begin, end):
        unit = sets.set_unit[i]
        there = d if unit_device[unit] == a else (a if unit_device[unit] == d else unit_device[unit])
        count = _put(sets, unit, there, unit_device, devices, changed, old, count)
    return count


@inner(inline="always")
def _energy(devices, prepared, ceiling_s, limit_s, tail, waited_for, begun_s):
    """Makespan of `devices` (int32 [1, N]), or of one above `limit_s` a lower bound; where memory runs out, above `ceiling_s`, and more so
    the more bytes there are too many, or links that are missing; tail, waited_for, begun_s: see `makespan`."""
    seconds = makespan(devices, prepared, limit_s, tail, waited_for, begun_s)
    if seconds < np.inf:
        return seconds
    held, over = held_bytes(devices[0], prepared), _WITHOUT_LINK * missing_links(devices[0], prepared)
    for d in range(len(held)):
        if held[d] > prepared.memory_bytes[d]:
            over += held[d] / max(prepared.memory_bytes[d], 1.0) - 1.0
    return ceiling_s * (1.0 + over)


@inner
def _trace_back(sets, waited_for, num_devices, maker, critical):
    """Writes the movable units on the critical chain into `critical`, a row of `WalkState.critical`. It goes back from the last end by each
    vertex, or the producer of each transfer, that was awaited."""
    count, item, length = len(sets.unit_of), waited_for[-1], 0
    while item >= 0:
        unit = sets.unit_of[item if item < count else maker[(item - count) // num_devices]]
        if sets.movable[unit] and (length == 0 or critical[length] != unit):
            length += 1
            critical[length] = unit
        item = waited_for[item]
    critical[0] = length


@compiled
def walk(sets, prepared, proposals, state, draws, temperature, ceiling_s, measure):
    """As many steps as there are rows of draws; each makes a change and keeps it with probability min(1, exp(-loss / temperature)).

    Args:
      sets: MoveSets; prepared: Prepared; proposals: Proposals; state: WalkState, changed in place.
      draws: float64 [steps, DRAWS]; temperature: float64 [steps], 0: no loss is kept; ceiling_s: more than any makespan.
      measure: whether all losses are needed; else a simulation is abandoned once its assignment cannot be kept.

    Returns:
      the sum of the logarithms of all losses seen, and their number, where measured.
    """
    current, best, keys, levels, critical, started_s, shares, looks = state
    units = len(sets.allowed)
    unit_device = np.empty(units, np.int64)
    for u in range(units):
        unit_device[u] = current[0, sets.member[sets.member_ptr[u]]]
    changed, old = np.empty(units + 1, np.int64), np.empty(units + 1, np.int64)
    tail, num_devices = np.zeros(current.shape[1]), len(prepared.slots)
    scale_s = prepared.exec_s.mean()
    waited_for = np.empty(current.shape[1] + len(prepared.maker) * num_devices + 1, np.int32)
    schedule, begun_s, known = new_schedule(prepared, units), np.zeros(current.shape[1]), False
    copy_to(schedule.begun_s, started_s[0])
    log_loss, losses = 0.0, 0
    for step in range(len(draws)):
        # The very first step simulates `current` without a change.
        count, moved, old_key = 0, -1, 0.0
        if levels[0] < np.inf:
            kind = _kind(shares, draws[step, 0])
            if kind >= LATER_CRITICAL:
                moved, old_key = _reorder(sets, kind, draws[step], critical[0], unit_device, keys[0], scale_s)
            elif kind == PROPOSED:
                if not known and levels[0] < ceiling_s:
                    read_schedule(current, prepared, levels[0], critical[0], schedule)
                    known = True
                if known:
                    unit, d = propose(sets, prepared, current, unit_device, critical[0], schedule, proposals, draws[step, 1])
                    count = _put(sets, unit, d, unit_device, current, changed, old, 0) if unit >= 0 else 0
            else:
                count = _change(sets, kind, draws[step], critical[0], unit_device, current, changed, old)
            if count == 0 and moved < 0:
                continue
        chance, limit_s, least = draws[step, DRAWS - 1], np.inf, prepared.least_tail
        if chance > 0 and not measure:
            limit_s = (levels[0] - max(temperature[step], 1e-300) * np.log(chance)) * (1.0 + _MARGIN)
        level = 0.0
        if looks[0] == _EACH:
            looks[:] = 0
        looks[0] += 1
        if limit_s < np.inf and (looks[1] < _LOOKED_THROUGH or looks[2] > _WORTH * looks[1]):
            level, least = makespan_bound(current, prepared, limit_s, tail), tail
            looks[1] += 1
            looks[2] += level > limit_s
        if level <= limit_s:
            level = _energy(current, prepared, ceiling_s, limit_s, least, waited_for, begun_s)
        loss = level - levels[0]
        if measure and loss > 0 and level < ceiling_s:
            log_loss += np.log(loss)
            losses += 1
        if loss <= 0 or chance < np.exp(-loss / max(temperature[step], 1e-300)):
            levels[0], critical[0, 0], known = level, 0, False
            if level < ceiling_s:
                copy_to(schedule.begun_s, begun_s)
                _trace_back(sets, waited_for, num_devices, prepared.maker, critical[0])
            if level < levels[1]:
                levels[1] = level
                copy_to(best, current)
                copy_to(keys[1], keys[0])
                copy_to(critical[1, :1 + critical[0, 0]], critical[0, :1 + critical[0, 0]])
                copy_to(started_s[1], schedule.begun_s)
            continue
        for i in range(count - 1, -1, -1):
            unit_device[changed[i]] = old[i]
            for j in range(sets.member_ptr[changed[i]], sets.member_ptr[changed[i] + 1]):
                current[0, sets.member[j]] = old[i]
        if moved >= 0:
            keys[0, moved] = old_key
    copy_to(started_s[0], schedule.begun_s)
    return log_loss, losses
