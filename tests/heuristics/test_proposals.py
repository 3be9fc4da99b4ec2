"""The network that proposes moves: what it reads by hand, what it may propose, and that it knows moves that shorten a run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pretrain import HELD_OUT
from data.generated import FAMILIES, generated_problem
from doppler_tf.errors import FormatError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.compiled import compiled
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget
from doppler_tf.heuristics.search.metropolis import _kind, kind_shares
from doppler_tf.heuristics.search.move_sets import move_sets
from doppler_tf.heuristics.search.proposals import (
    FEATURES,
    SCHEMA,
    Proposals,
    new_schedule,
    propose,
    read_move,
    read_proposals,
    read_schedule,
    score,
    shipped_proposals,
)
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment
from tests.messages import assert_says, refusal
from tests.strategies import cases


def schedule_of(graph, costs, device: list[int]):
    """Sets, prepared arrays and the schedule of an assignment under `fifo`."""
    walker = Walker("walk", Problem(graph, costs), np.random.default_rng(0), Budget(1), Assignment(np.array(device, np.int32)))
    sets, prepared = move_sets(graph, costs), FastSimulator(graph, costs).prepared()
    schedule = new_schedule(prepared, sets.num_units)
    schedule.begun_s[:] = walker.state.begun_s[0]
    read_schedule(walker.state.current, prepared, walker.state.levels[0], walker.state.critical[0], schedule)
    return sets, prepared, schedule, walker.state


def chained(link_slots: int | None):
    """a -> b and c with 4 s between devices, c waits behind b for the second one; d by itself ends before."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in (("a", 3), ("b", 2), ("c", 6), ("d", 5))],
                               [{"source": "a", "target": "b", "transfer_s": 4}, {"source": "a", "target": "c", "transfer_s": 4}])
    return graph, build_costs(graph, replace(ideal(3), link_slots=link_slots)), [0, 1, 1, 2]


@pytest.mark.parametrize("link_slots", [None, 1])
def test_features_by_hand(link_slots):
    """c, which starts at 9 behind b, would find its input at 3 beside a; a mean vertex takes 4 s, a device has 16 / 3 s of work."""
    graph, costs, device = chained(link_slots)
    sets, prepared, schedule, state = schedule_of(graph, costs, device)
    assert schedule.begun_s.tolist() == [0, 7, 9, 0]
    assert schedule.tail_s.tolist() == [13, 2, 6, 5]
    assert schedule.scales_s.tolist() == [15, 4, 16 / 3]
    x = np.empty(len(FEATURES))
    read_move(2, 1, 0, sets, prepared, state.current, schedule, x)
    link = 8 / 15 if link_slots else 0.0  # one transfer serves b and c, but each edge counts
    expected = {
        "inputs at b after the present start": -np.log1p(6 / 4), "exec at b more than at a": 0,
        "time to the end from b more than from a": 0,
        "transfers from and to b more than those of a": -np.log1p(4 / 4), "path through b longer than through a": -np.log1p(6 / 4),
        "b busy when the inputs arrive": 0, "b busy for a while then": 0, "a busy for a while then": 1.0,
        "waited at a, in mean vertices": np.log1p(2 / 4), "neighbours at a": 0, "neighbours at b": 1, "exec at a": np.log1p(6 / 4),
        "work of a": 8 / (16 / 3), "work of b": 3 / (16 / 3), "path through a": 1.0, "path through b": 9 / 15, "neighbours": np.log1p(1),
        "present start": 9 / 15, "critical": 1, "work of links to a": link, "work of links to b": 0, "work of links from a": 0,
        "work of links from b": 0}
    for name, value in zip(FEATURES, x.tolist(), strict=True):
        assert value == pytest.approx(expected[name], abs=0.03 if "busy" in name else 1e-12), name  # busy seconds are summed by interval


def test_features_do_not_know_how_large_the_graph_is_nor_its_unit_of_time():
    """The same graph in other seconds, and with a component of its own for devices that no other vertex uses."""
    problem = generated_problem(3, (40, 60), 4, "layered")
    graph, device = problem.graph, np.random.default_rng(0).integers(4, size=problem.graph.num_vertices)
    nodes = [{"id": v, "exec_s": 1 + v % 5} for v in range(graph.num_vertices)]
    edges = [{"source": int(u), "target": int(w), "transfer_s": 1 + (u + w) % 3}
             for u, w in zip(graph.sources, graph.targets, strict=True)]
    found = []
    for factor in (1.0, 1e-3):
        scaled = graph_from_records([{**node, "exec_s": factor * node["exec_s"]} for node in nodes],
                                    [{**edge, "transfer_s": factor * edge["transfer_s"]} for edge in edges])
        costs = build_costs(scaled, ideal(4))
        sets, prepared, schedule, state = schedule_of(scaled, costs, device.tolist())
        rows = np.empty((sets.num_units, len(FEATURES)))
        for unit, row in enumerate(rows):
            read_move(unit, int(device[unit]), int(device[unit] + 1) % 4, sets, prepared, state.current, schedule, row)
        found.append(rows)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@given(case=cases(min_devices=2, constrained=True, noise=False), number=st.floats(0, 1, exclude_max=True))
def test_a_proposal_is_a_permitted_move_to_another_device(case, number):
    graph, costs = case.graph, case.costs
    sets, prepared, schedule, state = schedule_of(graph, costs, case.assignment.device.tolist())
    units = np.array([state.current[0, sets.member[begin]] for begin in sets.member_ptr[:-1]], np.int64)
    unit, device = propose(sets, prepared, state.current, units, state.critical[0], schedule, shipped_proposals(), number)
    if unit >= 0:
        assert sets.allowed[unit, device]
        assert device != units[unit]
    else:
        assert device == -1


def test_a_preference_decides_if_it_is_strong():
    graph, costs, device = chained(1)
    sets, prepared, schedule, state = schedule_of(graph, costs, device)
    preference = np.zeros((4, 3))
    preference[2, 0] = 1e6
    proposals = shipped_proposals()._replace(preference=preference)
    found = [propose(sets, prepared, state.current, np.array(device), state.critical[0], schedule, proposals, number)
             for number in np.random.default_rng(0).random(200)]
    plain = [propose(sets, prepared, state.current, np.array(device), state.critical[0], schedule, shipped_proposals(), number)
             for number in np.random.default_rng(0).random(200)]
    assert found.count((2, 0)) > plain.count((2, 0))
    assert len(set(plain)) > 3


@compiled
def scored(proposals, x):
    return score(proposals, x, np.empty(len(proposals.first_bias)), np.empty(len(proposals.second_bias)))


def test_the_score_is_that_of_the_network():
    proposals, x = shipped_proposals(), np.random.default_rng(0).normal(size=len(FEATURES))
    hidden = np.maximum(x @ proposals.first + proposals.first_bias, 0)
    assert scored(proposals, x) == pytest.approx(np.maximum(hidden @ proposals.second + proposals.second_bias, 0) @ proposals.last)


@compiled
def kinds(shares, numbers):
    found = np.zeros(len(shares), np.int64)
    for number in numbers:
        found[_kind(shares, number)] += 1
    return found


@pytest.mark.parametrize("ordered", [False, True])
def test_kinds_of_change_follow_their_shares(ordered):
    shares = kind_shares(ordered)
    assert shares.sum() == pytest.approx(1)
    assert kinds(shares, (np.arange(10_000) + 0.5) / 10_000) == pytest.approx(1e4 * shares, abs=1.1)


def test_shipped_proposals_shorten_a_run_more_often_than_random_ones():
    """On graphs that it was not trained on, where a climb without them has been for a while."""
    untrained = Proposals(*(np.zeros_like(weights) for weights in shipped_proposals()))
    shortened = {"trained": [], "random": []}
    for seed in range(HELD_OUT, HELD_OUT + 10):
        graph, costs, _ = generated_problem(seed, (300, 400), 8, FAMILIES[seed % len(FAMILIES)])
        walker = Walker("walk", Problem(graph, costs), np.random.default_rng(0), Budget(10**6), proposals=untrained)
        walker.walk(np.zeros(graph.num_vertices // 2))
        sets, prepared = move_sets(graph, costs), FastSimulator(graph, costs).prepared()
        schedule = new_schedule(prepared, sets.num_units)
        schedule.begun_s[:] = walker.state.begun_s[0]
        current, level_s, critical = walker.state.current, walker.state.levels[0], walker.state.critical[0]
        read_schedule(current, prepared, level_s, critical, schedule)
        units = np.array([current[0, sets.member[begin]] for begin in sets.member_ptr[:-1]], np.int64)
        for name, network in (("trained", shipped_proposals()), ("random", untrained)):
            moved = []
            for number in np.random.default_rng(1).random(300):
                unit, device = propose(sets, prepared, current, units, critical, schedule, network, number)
                moved.append(np.where((sets.unit_of == unit) & (unit >= 0), device, current[0]))
            shortened[name].append((FastSimulator(graph, costs).makespans(np.stack(moved)) < level_s * (1 - 1e-9)).mean())
    assert np.mean(shortened["trained"]) > 1.5 * np.mean(shortened["random"])


@pytest.mark.parametrize(("change", "fragments"), [
    ({"schema": "doppler-graph/1"}, ["proposals.json: schema: expected doppler-proposals/1, got 'doppler-graph/1'"]),
    ({"features": ["exec"]}, ["features: expected those of this version", "run make pretrain"])])
def test_other_files_are_refused(change, fragments):
    record = {"schema": SCHEMA, "features": list(FEATURES), "weights": {}} | change
    assert_says(refusal(FormatError, read_proposals, json.dumps(record), "proposals.json"), *fragments)
