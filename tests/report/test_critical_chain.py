"""The critical chain by hand, and on any run: it fills the makespan without a gap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.report.critical_chain import WAITED_FOR, critical_chain
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import memory_profiles
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf

A, B, C, D = range(4)
LEFT, RIGHT = 0, 1


def machine(slots: int = 1, memory_bytes: int | None = None) -> Topology:
    """Two devices, the left of which may be short of memory."""
    devices = [{"name": "left", "slots": slots, "memory_bytes": memory_bytes}, {"name": "right", "slots": slots}]
    return Topology.from_json({"devices": devices, "link_slots": 1})


def graph_of(seconds, edges=(), transfer_s=1.0):
    nodes = [{"id": name, "exec_s": s, "output_bytes": 10} for name, s in zip("abcdefg", seconds, strict=False)]
    return graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": transfer_s} for u, v in edges])


def simulated(graph, topology, device):
    costs, assignment = build_costs(graph, topology), Assignment(np.array(device, np.int32))
    return costs, assignment, simulate(graph, costs, assignment)


def chain_of(graph, topology, device):
    return critical_chain(graph, *simulated(graph, topology, device))


def short(chain):
    return [(e.vertex, e.source, e.destination, e.start_s, e.end_s, e.waited_for) for e in chain]


def test_inputs_and_a_transfer():
    chain = chain_of(graph_of([2, 1, 3], ["ab", "bc"]), machine(), [LEFT, LEFT, RIGHT])
    assert short(chain) == [(A, LEFT, LEFT, 0, 2, "nothing"), (B, LEFT, LEFT, 2, 3, "input"), (B, LEFT, RIGHT, 3, 4, "input"),
                            (C, RIGHT, RIGHT, 4, 7, "transfer")]
    assert [e.is_transfer for e in chain] == [False, False, True, False]
    assert sum(e.seconds for e in chain) == 7
    assert {e.waiting_s for e in chain} == {0}


def test_the_slot_of_a_device():
    assert short(chain_of(graph_of([2, 3]), machine(), [LEFT, LEFT])) == [(A, 0, 0, 0, 2, "nothing"), (B, 0, 0, 2, 5, "device")]


def test_the_first_of_several_slots_to_be_free():
    assert short(chain_of(graph_of([5, 2, 4]), machine(slots=2), [LEFT] * 3)) == [(B, 0, 0, 0, 2, "nothing"), (C, 0, 0, 2, 6, "device")]


def test_the_slot_of_a_link():
    chain = chain_of(graph_of([2, 1, 1, 1], ["ac", "bd"], transfer_s=4.0), machine(), [LEFT, LEFT, RIGHT, RIGHT])
    assert short(chain) == [(A, 0, 0, 0, 2, "nothing"), (A, 0, 1, 2, 6, "input"), (B, 0, 1, 6, 10, "link"), (D, 1, 1, 10, 11, "transfer")]


def test_memory():
    """a's output lies on the left until c, on the right, has its copy at 7; b, ready at 0, does not fit beside a before."""
    chain = chain_of(graph_of([2, 1, 1], ["ac"], transfer_s=5.0), machine(slots=2, memory_bytes=19), [LEFT, LEFT, RIGHT])
    assert short(chain)[0] == (A, 0, 0, 0, 2, "nothing")
    assert short(chain)[1:] == [(A, 0, 1, 2, 7, "input"), (B, 0, 0, 7, 8, "memory")]


def test_on_a_wall_clock_what_is_left_over_is_waiting():
    graph = graph_of([2, 1], ["ab"])
    costs, assignment, trace = simulated(graph, machine(), [LEFT, LEFT])
    late = dataclasses.replace(trace, start_s=np.array([0.25, 3.0]), end_s=np.array([2.5, 4.0]))
    chain = critical_chain(graph, costs, assignment, late)
    assert [(e.vertex, e.waited_for, e.waiting_s) for e in chain] == [(A, "nothing", 0.25), (B, "input", 0.5)]
    assert sum(e.seconds + e.waiting_s for e in chain) == late.makespan_s


def test_instants_full_of_vertices_of_no_length():
    chain = chain_of(graph_of([2, 0, 0, 0], ["ab", "bc", "cd"], transfer_s=0.0), machine(), [LEFT, RIGHT, LEFT, RIGHT])
    assert (chain[0].vertex, chain[-1].end_s) == (A, 2)
    assert all(e.waiting_s == 0 for e in chain)


def crowded(seed):
    """(graph, costs, assignment, trace): equal times, one to three devices, links with one slot, the least memory that lets it end."""
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(10, 60)), int(rng.integers(1, 4))
    nodes = [{"id": v, "exec_s": int(rng.integers(0, 4)), "output_bytes": int(rng.integers(0, 10))} for v in range(count)]
    edges = [{"source": u, "target": v, "transfer_s": int(rng.integers(0, 4))}
             for v in range(1, count) for u in {*rng.integers(max(0, v - 12), v, rng.integers(0, 4)).tolist()}]
    graph, assignment = graph_from_records(nodes, edges), Assignment(rng.integers(0, devices, count).astype(np.int32))
    slots, limits, found = int(rng.integers(1, 3)), [None] * devices, None
    while True:
        of_device = [{"name": f"d{d}", "slots": slots, "memory_bytes": limit} for d, limit in enumerate(limits)]
        costs = build_costs(graph, Topology.from_json({"devices": of_device, "link_slots": 1}))
        try:
            trace = simulate(graph, costs, assignment)
        except DeadlockError:
            return found
        found = graph, costs, assignment, trace
        limits = [max(int(profile.used_bytes.max()) - 1, 0) for profile in memory_profiles(*found)]


def assert_fills_the_makespan(chain, trace):
    assert chain[0].start_s == 0
    assert chain[-1].end_s == trace.makespan_s
    assert [e.start_s for e in chain[1:]] == [e.end_s for e in chain[:-1]]
    assert {e.waiting_s for e in chain} == {0}
    assert [i for i, e in enumerate(chain) if e.waited_for == "nothing"] == [0]


@given(cases())
def test_the_chain_fills_the_makespan(case):
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    assert_fills_the_makespan(critical_chain(case.graph, case.costs, case.assignment, trace), trace)


@given(cases_short_of_memory())
def test_the_chain_fills_the_makespan_when_memory_is_short(case):
    assume(makespan_or_inf(case) < np.inf)
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    assert_fills_the_makespan(critical_chain(case.graph, case.costs, case.assignment, trace), trace)


def test_the_chain_fills_the_makespan_whatever_is_waited_for():
    seen = set()
    for seed in range(80):
        run = crowded(seed)
        chain = critical_chain(*run)
        assert_fills_the_makespan(chain, run[-1])
        seen.update(e.waited_for for e in chain)
    assert seen == {*WAITED_FOR}


@pytest.mark.parametrize("edges", [[(v, v + 1) for v in range(19_999)], []])
def test_long_chains(edges):
    """Twenty thousand elements, by inputs and by slots."""
    nodes = [{"id": v, "exec_s": 1, "output_bytes": 1} for v in range(20_000)]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in edges])
    chain = chain_of(graph, machine(memory_bytes=10**9), [LEFT] * 20_000)
    assert [e.vertex for e in chain] == list(range(20_000))
