"""Idle time by cause: by hand, and on any run the causes make up all that is not busy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from doppler_tf.report.critical_chain import critical_chain
from doppler_tf.report.idle import CAUSES, idle_by_cause
from doppler_tf.schedule.simulator import simulate
from tests.report.test_critical_chain import LEFT, RIGHT, crowded, graph_of, machine, simulated
from tests.strategies import cases, cases_short_of_memory, makespan_or_inf


def idle_of(graph, topology, device, change=lambda trace: trace):
    costs, assignment, trace = simulated(graph, topology, device)
    rows = idle_by_cause(graph, costs, assignment, change(trace)).tolist()
    return [{cause: seconds for cause, seconds in zip(CAUSES, row, strict=True) if seconds} for row in rows]


def test_input_then_link_then_nothing_left():
    """The right waits 0-2 for a, 2-5 for its transfer; the left is done at 2."""
    assert idle_of(graph_of([2, 4], ["ab"], transfer_s=3.0), machine(), [LEFT, RIGHT]) == [{"finished": 7}, {"input": 2, "link": 3}]


def test_a_copy_on_its_way_is_no_cause_while_another_input_is_computed():
    """c joins a (ends at 1, its copy comes at 4) and b (ends at 6, its copy comes at 9)."""
    assert idle_of(graph_of([1, 5, 1], ["ac", "bc"], transfer_s=3.0), machine(), [LEFT, LEFT, RIGHT])[1] == {"input": 6, "link": 3}


def test_a_slot_for_every_vertex_that_waits():
    """Two slots: b and c wait for a beside it, one slot idles for one of them; d alone runs from 3 to 4."""
    found = idle_of(graph_of([2, 1, 1, 1], ["ab", "ac", "bd"]), machine(slots=2), [LEFT] * 4)
    assert found == [{"input": 2, "finished": 1}, {"finished": 8}]


def test_memory():
    """b is ready at 0, but fits only when a's output has left for the right at 7."""
    found = idle_of(graph_of([2, 1, 1], ["ac"], transfer_s=5.0), machine(memory_bytes=19), [LEFT, LEFT, RIGHT])
    assert found == [{"memory": 5}, {"input": 2, "link": 5}]


@pytest.mark.parametrize("memory_bytes", [None, 1000])
def test_on_a_wall_clock_a_late_start_is_overhead(memory_bytes):
    found = idle_of(graph_of([2, 1], ["ab"]), machine(memory_bytes=memory_bytes), [LEFT, LEFT],
                    lambda t: dataclasses.replace(t, start_s=np.array([0.25, 3.0]), end_s=np.array([2.5, 4.0])))
    assert found == [{"overhead": 0.75}, {"finished": 4}]


def test_memory_and_overhead_one_after_the_other():
    """As in `test_memory`, but b starts half a second after it fits."""
    found = idle_of(graph_of([2, 1, 1], ["ac"], transfer_s=5.0), machine(memory_bytes=19), [LEFT, LEFT, RIGHT],
                    lambda t: dataclasses.replace(t, start_s=np.array([0.0, 7.5, 7.0]), end_s=np.array([2.0, 8.5, 8.5])))
    assert found[0] == {"memory": 5, "overhead": 0.5}


def assert_make_up_all_that_is_not_busy(graph, costs, assignment, trace):
    idle = idle_by_cause(graph, costs, assignment, trace)
    busy = np.bincount(trace.device, trace.end_s - trace.start_s, costs.num_devices)
    np.testing.assert_allclose(idle.sum(axis=1), costs.slots * trace.makespan_s - busy, rtol=1e-12, atol=1e-12 * max(1.0, trace.makespan_s))
    assert (idle >= 0).all()
    assert (idle[:, CAUSES.index("overhead")] == 0).all()
    assert costs.limited_memory or (idle[:, CAUSES.index("memory")] == 0).all()
    return idle


@given(st.one_of(cases(), cases_short_of_memory()))
def test_the_causes_make_up_all_that_is_not_busy(case):
    assume(makespan_or_inf(case) < np.inf)
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    assert_make_up_all_that_is_not_busy(case.graph, case.costs, case.assignment, trace)


def test_the_causes_make_up_all_that_is_not_busy_whatever_they_are():
    total = sum(assert_make_up_all_that_is_not_busy(*crowded(seed)).sum(axis=0) for seed in range(80))
    assert [cause for cause, seconds in zip(CAUSES, total, strict=True) if seconds] == ["input", "link", "memory", "finished"]


@pytest.mark.parametrize("spread_s", [0.01, 0.5, 5.0])
def test_times_in_disorder_are_explained_too(spread_s):
    """Wall clocks may contradict the rules, within a tolerance: no walk in circles, no time below zero."""
    for seed in range(20):
        graph, costs, assignment, trace = crowded(seed)
        rng = np.random.default_rng(seed)
        start, sent = (np.maximum(times + rng.normal(0, spread_s, times.shape), 0) for times in (trace.start_s, trace.transfer_start_s))
        shaken = dataclasses.replace(trace, start_s=start, end_s=start + trace.end_s - trace.start_s, transfer_start_s=sent,
                                     transfer_end_s=sent + trace.transfer_end_s - trace.transfer_start_s)
        assert (idle_by_cause(graph, costs, assignment, shaken) >= 0).all()
        chain = critical_chain(graph, costs, assignment, shaken)
        assert all(e.waiting_s >= 0 for e in chain)
        assert sum(e.seconds + e.waiting_s for e in chain) == pytest.approx(shaken.end_s.max())
