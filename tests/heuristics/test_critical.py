"""The critical chain that compiled searches know of: without a gap in the simulator's trace, and up to date."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from data.layered import Layered, layered_graph
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal, preset
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.budget import Budget
from doppler_tf.heuristics.search.metropolis import ANYWHERE, ANYWHERE_CRITICAL, DRAWS, WalkState, kind_shares, walk, walk_state
from doppler_tf.heuristics.search.move_sets import move_sets
from doppler_tf.heuristics.search.proposals import shipped_proposals
from doppler_tf.heuristics.search.walker import Walker
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from tests.heuristics.one_simulation import simulated
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf


@given(case=cases(constrained=True, noise=False) | cases_short_of_memory())
def test_what_was_awaited_leads_from_the_last_end_to_the_begin_without_a_gap(case):
    case = replace(case, noise=None)
    assume(makespan_or_inf(case) < np.inf)
    graph, costs, trace = case.graph, case.costs, simulate(case.graph, case.costs, case.assignment, case.rule)
    count, num_devices = graph.num_vertices, costs.num_devices
    devices, awaited = case.assignment.device[None].astype(np.int32), np.empty(count + graph.num_tensors * num_devices + 1, np.int32)
    prepared = case.prepared
    begun_s = np.zeros(count)
    assert simulated(devices, prepared, np.inf, prepared.least_tail, awaited, begun_s) == trace.makespan_s
    assert begun_s[trace.vertex].tolist() == trace.start_s.tolist()
    sent = count + trace.tensor(graph) * num_devices + trace.destination
    begin_s = dict(zip([*trace.vertex.tolist(), *sent.tolist()], [*trace.start_s.tolist(), *trace.transfer_start_s.tolist()], strict=True))
    end_s = dict(zip([*trace.vertex.tolist(), *sent.tolist()], [*trace.end_s.tolist(), *trace.transfer_end_s.tolist()], strict=True))
    item, elements = int(awaited[-1]), 0
    assert end_s[item] == trace.makespan_s
    while (before := int(awaited[item])) >= 0:
        # Of links that never wait, and where memory cannot run short, the transfer between is left out.
        sent_by = range(graph.tensor_ptr[before], graph.tensor_ptr[before + 1]) if before < count and item < count else ()
        arrived = [end_s.get(count + t * num_devices + devices[0, item]) for t in sent_by] if costs.topology.link_slots is None else []
        assert begin_s[item] in (end_s[before], *arrived)
        item, elements = before, elements + 1
        assert elements < len(begin_s)
    assert begin_s[item] == 0


def looked(graph, costs, device) -> WalkState:
    """The state after the first step of a walk, which changes nothing."""
    state = walk_state(device, graph.num_edges)
    walk(move_sets(graph, costs), FastSimulator(graph, costs).prepared(), shipped_proposals(), state, np.zeros((1, DRAWS)), np.zeros(1),
         99.0, False)
    return state


def chained(link_slots: int | None):
    """a -> b and c with 4 s between devices, c waits behind b for the second one; d by itself ends before."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in (("a", 3), ("b", 2), ("c", 6), ("d", 5))],
                               [{"source": "a", "target": "b", "transfer_s": 4}, {"source": "a", "target": "c", "transfer_s": 4}])
    return graph, build_costs(graph, replace(ideal(3), link_slots=link_slots)), np.array([0, 1, 1, 2], np.int32)


@pytest.mark.parametrize("link_slots", [None, 1])
def test_units_of_the_chain_by_hand(link_slots):
    state = looked(*chained(link_slots))
    assert state.levels.tolist() == [15, 15]
    for row in state.critical:
        assert row[1:1 + row[0]].tolist() == [2, 1, 0]  # a's transfer is a's, too


@pytest.mark.parametrize(("kind", "draw", "moved"), [
    (ANYWHERE_CRITICAL, 0.01, 2), (ANYWHERE_CRITICAL, 0.5, 1), (ANYWHERE_CRITICAL, 0.99, 0),
    (ANYWHERE, 0.01, 0), (ANYWHERE, 0.5, 2), (ANYWHERE, 0.99, 3)])
def test_a_unit_is_taken_from_the_chain_or_from_anywhere(kind, draw, moved):
    graph, costs, device = chained(None)
    state, draws = walk_state(device, graph.num_edges), np.zeros((2, DRAWS))
    draws[1, :3] = kind_shares(False)[:kind].sum() + 1e-6, draw, 0.4  # to the second device, or where it is there already to the third
    walk(move_sets(graph, costs), FastSimulator(graph, costs).prepared(), shipped_proposals(), state, draws, np.full(2, np.inf),
         99.0, False)
    assert np.flatnonzero(state.current[0] != device).tolist() == [moved]


@pytest.mark.parametrize("link_slots", [None, 1])
def test_the_chain_is_that_of_where_the_search_stands_and_of_its_best(link_slots):
    graph = layered_graph(Layered(40, 6, 1.5, 2, 5, 1e10, 8e6, 0.5), 0)
    costs = build_costs(graph, replace(preset("p100x4"), link_slots=link_slots))
    start = Assignment(np.zeros(graph.num_vertices, np.int32), graph.work_vertices)
    walker = Walker("walk", Problem(graph, costs), np.random.default_rng(0), Budget(10_000), start)

    def chains(critical):
        return [row[1:1 + row[0]].tolist() for row in critical]

    def fresh(device):
        return chains(looked(graph, costs, device[0]).critical)[0]

    for _ in range(3):
        walker.walk(np.full(400, 0.03 * walker.state.levels[1]))
        assert (walker.state.current != walker.state.best).any()
        assert chains(walker.state.critical) == [fresh(walker.state.current), fresh(walker.state.best)]
        walker.return_to_best()  # or to the steadiest
        assert chains(walker.state.critical) == [fresh(walker.state.current), fresh(walker.state.best)]


def test_units_that_cannot_move_are_left_out():
    nodes = [{"id": v, "exec_s": 1} | ({"pin": 0} if v == "b" else {}) for v in "abc"]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b", "transfer_s": 1}, {"source": "b", "target": "c", "transfer_s": 1}])
    state = looked(graph, build_costs(graph, ideal(2)), np.zeros(3, np.int32))
    assert state.critical[0, :3].tolist() == [2, 2, 0]


def test_where_memory_runs_out_no_chain_is_known():
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 6} for v in "ab"], [])
    topology = ideal(2)
    costs = build_costs(graph, replace(topology, devices=tuple(replace(device, memory_bytes=10) for device in topology.devices)))
    state = looked(graph, costs, np.zeros(2, np.int32))
    assert state.levels[0] > 99
    assert state.critical[:, 0].tolist() == [0, 0]
