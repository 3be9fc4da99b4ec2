"""The critical chain that compiled searches know of, which is that of the simulator's trace."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings

from doppler_tf.costs import build_costs
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.single import makespan
from doppler_tf.formats.records import graph_from_records
from doppler_tf.heuristics.chain import DRAWS, walk
from doppler_tf.heuristics.kin import kin
from doppler_tf.simulator import simulate
from doppler_tf.topology import ideal
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf


@numba.njit
def simulated(devices, prepared, awaited):
    return makespan(devices, prepared, np.inf, prepared.least_tail, awaited)


@settings(max_examples=200, deadline=None)
@given(case=cases(constrained=True, noise=False) | cases_short_of_memory())
def test_what_was_awaited_leads_from_the_last_end_to_the_begin_without_a_gap(case):
    case = replace(case, noise=None)
    assume(makespan_or_inf(case) < np.inf)
    graph, costs, trace = case.graph, case.costs, simulate(case.graph, case.costs, case.assignment, case.rule)
    count, num_devices = graph.num_vertices, costs.num_devices
    devices, awaited = case.assignment.device[None].astype(np.int32), np.empty(count * (num_devices + 1) + 1, np.int32)
    assert simulated(devices, FastSimulator(graph, costs, case.rule).prepared(case.assignment.order), awaited) == trace.makespan_s
    sent = count + trace.producer * num_devices + trace.destination
    begin_s = dict(zip([*trace.vertex.tolist(), *sent.tolist()], [*trace.start_s.tolist(), *trace.transfer_start_s.tolist()], strict=True))
    end_s = dict(zip([*trace.vertex.tolist(), *sent.tolist()], [*trace.end_s.tolist(), *trace.transfer_end_s.tolist()], strict=True))
    item, elements = int(awaited[-1]), 0
    assert end_s[item] == trace.makespan_s
    while (before := int(awaited[item])) >= 0:
        # Of links that never wait the transfer between is left out.
        arrived = end_s.get(count + before * num_devices + devices[0, item]) if item < count and before < count else None
        assert begin_s[item] in (end_s[before], arrived)
        item, elements = before, elements + 1
        assert elements < len(begin_s)
    assert begin_s[item] == 0


def look(graph, costs, *found):
    """The first step of a walk, which takes things as they are; found: see `walk`."""
    prepared = FastSimulator(graph, costs).prepared()
    walk(kin(graph, costs), prepared, np.zeros((1, DRAWS)), np.zeros(1), 99.0, *found, False, np.zeros(3, np.int64))


@pytest.mark.parametrize("link_slots", [None, 1])
def test_units_of_the_chain_by_hand(link_slots):
    """a -> b with 4 s between devices, c waits behind b for the second one; d by itself ends before."""
    graph = graph_from_records([{"id": v, "exec_s": s} for v, s in (("a", 3), ("b", 2), ("c", 6), ("d", 5))],
                               [{"source": "a", "target": "b", "transfer_s": 4}, {"source": "a", "target": "c", "transfer_s": 4}])
    costs = build_costs(graph, replace(ideal(3), link_slots=link_slots))
    current, levels = np.array([[0, 1, 1, 2]], np.int32), np.array([np.inf, np.inf])
    best, critical = current.copy(), np.full((2, graph.num_vertices + graph.num_edges + 1), -1)
    look(graph, costs, current, best, levels, critical)
    assert levels.tolist() == [15, 15]
    for row in critical:
        assert row[1:1 + row[0]].tolist() == [2, 1, 0]  # a's transfer is a's, too


def test_where_memory_runs_out_no_chain_is_known():
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 6} for v in "ab"], [])
    topology = ideal(2)
    costs = build_costs(graph, replace(topology, devices=tuple(replace(device, memory_bytes=10) for device in topology.devices)))
    current, levels = np.zeros((1, 2), np.int32), np.array([np.inf, np.inf])
    critical = np.full((2, 3), -1)
    look(graph, costs, current, current.copy(), levels, critical)
    assert levels[0] > 99
    assert critical[:, 0].tolist() == [0, 0]
