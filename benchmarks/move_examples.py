"""Moves of a graph that shorten a run and moves that do not: what the network that proposes moves is trained on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler_tf.heuristics.judging import ranks
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget
from doppler_tf.heuristics.search.proposals import FEATURES, Proposals, new_schedule, read_move, read_schedule
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment

HIDDEN = 16
# Moves that are judged wherever a search is looked at. These shares of them are of critical units, and to a neighbour's device.
_MOVES, _CRITICAL, _NEAR = 250, 0.7, 0.5
# A search is looked at after so many steps by unit, each time this factor later, as long as it took no more steps than these.
_FIRST, _LATER, _LOOKS, _MOST_STEPS = 0.1, 1.5, 16, 20_000
# A move shortens a run if it gains this share; less may be rounding.
_ROUNDING = 1e-9


class Examples(NamedTuple):
    """Moves of one graph. Attributes: features: float32 [M, F]; shortens: bool [M], whether the move shortened the run."""

    features: np.ndarray
    shortens: np.ndarray


def untrained() -> Proposals:
    """A network with weights of zero, which finds all moves alike."""
    return Proposals(np.zeros((len(FEATURES), HIDDEN)), np.zeros(HIDDEN), np.zeros((HIDDEN, HIDDEN)), np.zeros(HIDDEN), np.zeros(HIDDEN))


def examples(problem: Problem, seed: int) -> Examples:
    """Random moves from where hill climbing with an untrained network comes by, each simulated under `fifo` or `order`."""
    rng, ordered = np.random.default_rng(seed), problem.dispatch == "order"
    walker = Walker("examples", problem, rng, Budget(2**40), proposals=untrained())
    sets, prepared = problem.move_sets, problem.prepared(problem.dispatch, walker.state.priority[0] if ordered else None)
    simulator, steps, features, shortens = problem.simulator(problem.dispatch), _FIRST * sets.num_units, [], []
    for _ in range(_LOOKS):
        if walker.steps + steps > _MOST_STEPS:
            break
        walker.walk(np.zeros(int(steps) + 1))
        steps *= _LATER
        moves = _random_moves(sets, walker.state.current[0], walker.state.critical[0], rng)
        if not moves:
            continue
        schedule = new_schedule(prepared, sets.num_units)
        schedule.begun_s[:] = walker.state.begun_s[0]
        current, level_s = walker.state.current, float(walker.state.levels[0])
        read_schedule(current, prepared, level_s, walker.state.critical[0], schedule)
        priority = ranks(walker.state.priority[0]) if ordered else None
        x, moved = np.zeros((len(moves), len(FEATURES))), []
        for row, (unit, device) in zip(x, moves, strict=True):
            members = sets.member[sets.member_ptr[unit]:sets.member_ptr[unit + 1]]
            read_move(unit, int(current[0, members[0]]), device, sets, prepared, current, schedule, row)
            devices = current[0].copy()
            devices[members] = device
            moved.append(Assignment(devices, None, priority=priority))
        features.append(x.astype(np.float32))
        shortens.append(simulator.makespans_of(moved) < level_s * (1 - _ROUNDING))
    return Examples(np.concatenate([np.zeros((0, len(FEATURES)), np.float32), *features]), np.concatenate([np.zeros(0, bool), *shortens]))


def _random_moves(sets, device: np.ndarray, critical: np.ndarray, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Units and other devices that permit them."""
    moves = []
    for _ in range(_MOVES):
        chained = critical[0] and rng.random() < _CRITICAL
        unit = int(critical[1 + rng.integers(critical[0])] if chained else rng.integers(sets.num_units))
        near = sets.near[sets.near_ptr[unit]:sets.near_ptr[unit + 1]]
        beside = near.size and rng.random() < _NEAR
        to = int(device[sets.member[sets.member_ptr[rng.choice(near)]]] if beside else rng.integers(sets.allowed.shape[1]))
        if to != device[sets.member[sets.member_ptr[unit]]] and sets.allowed[unit, to]:
            moves.append((unit, to))
    return moves
