"""What holds for every graph, topology and assignment: the rules of time, two simulators and a naive third, the bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import assume, event, given
from hypothesis import strategies as st

from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.schedule.assignment import plan_transfers
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import memory_profiles
from doppler_tf.schedule.validation import validate_trace
from tests.naive_simulator import NaiveSimulator
from tests.strategies import Case, assignments, cases, cases_short_of_memory, graphs, makespan_or_inf, topologies


def run(case: Case):
    return simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)


def fast_makespan(case: Case) -> float:
    fast = FastSimulator(case.graph, case.costs, case.rule, case.noise)
    return float(fast.makespans_of([case.assignment])[0])


def assert_equal_to_naive(case: Case, trace) -> None:
    """Every start and end, not only the makespan."""
    naive = NaiveSimulator(case.graph, case.costs, case.assignment, case.rule, case.noise)
    assert naive.makespan_s() == trace.makespan_s
    started = {("run", v, d): s for v, d, s in zip(trace.vertex.tolist(), trace.device.tolist(), trace.start_s.tolist(), strict=True)}
    ended = dict(zip(started, trace.end_s.tolist(), strict=True))
    sends = [("send", *each) for each in zip(trace.producer.tolist(), trace.destination.tolist(), trace.output.tolist(), strict=True)]
    started.update(zip(sends, trace.transfer_start_s.tolist(), strict=True))
    ended.update(zip(sends, trace.transfer_end_s.tolist(), strict=True))
    assert started == naive.started
    assert ended == naive.ended


@given(cases())
def test_traces_are_valid_and_work_conserving_and_the_simulators_agree(case):
    trace = run(case)
    report = validate_trace(case.graph, case.costs, case.assignment, trace)
    assert report.violations == ()
    assert report.idle == ()
    assert fast_makespan(case) == trace.makespan_s
    assert_equal_to_naive(case, trace)


@given(cases_short_of_memory())
def test_memory_limits_delay_or_deadlock_alike_everywhere(case):
    makespan_s = makespan_or_inf(case)
    assert fast_makespan(case) == makespan_s
    event("deadlock" if makespan_s == math.inf else "runs")
    if makespan_s == math.inf:
        assert NaiveSimulator(case.graph, case.costs, case.assignment, case.rule, case.noise).makespan_s() == math.inf
        return
    trace = run(case)
    report = validate_trace(case.graph, case.costs, case.assignment, trace)
    assert report.violations == ()
    assert report.idle == ()
    for profile, limit in zip(memory_profiles(case.graph, case.costs, case.assignment, trace), case.costs.memory_bytes, strict=True):
        assert profile.used_bytes.max() <= limit
    assert_equal_to_naive(case, trace)


@given(cases())
def test_repeats_bit_for_bit(case):
    first, second = run(case), run(case)
    for name in ("vertex", "device", "start_s", "end_s", "producer", "source", "destination", "transfer_start_s", "transfer_end_s"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


@given(cases(constrained=True, noise=False))
def test_no_run_beats_a_bound(case):
    makespan_s, bounds = run(case).makespan_s, lower_bounds(case.graph, case.costs)
    for bound in (bounds.work_s, bounds.path_s, bounds.join_s):
        assert makespan_s >= bound * (1 - 1e-12)
    assert bounds.best_s == max(bounds.work_s, bounds.path_s, bounds.join_s)


@given(cases(max_devices=1, noise=False))
def test_one_device_with_one_slot_takes_the_sum(case):
    assume(case.costs.slots[0] == 1)
    trace = run(case)
    assert math.isclose(trace.makespan_s, math.fsum(case.costs.exec_s[:, 0].tolist()), rel_tol=1e-12, abs_tol=0)
    assert trace.producer.size == 0


@given(st.data())
def test_batches_equal_single_runs(data):
    """More rows than run serially, so that threads share them; deadlocks among them."""
    case = data.draw(cases_short_of_memory())
    rows = [data.draw(assignments(case.graph, case.costs)) for _ in range(3)] * 7
    fast = FastSimulator(case.graph, case.costs, case.rule, case.noise)
    got = fast.makespans_of(rows)
    assert got.tolist() == [makespan_or_inf(Case(case.graph, case.costs, a, case.rule, case.noise)) for a in rows[:3]] * 7


@given(st.data())
def test_transfers_go_once_to_each_destination_at_the_largest_cost(data):
    case = data.draw(cases(noise=False))
    graph, device = case.graph, case.assignment.device
    expected: dict[tuple[int, int, int], float] = {}
    for e, (u, k, v) in enumerate(zip(graph.sources.tolist(), graph.edge_output.tolist(), graph.targets.tolist(), strict=True)):
        if not graph.is_input[u] and device[u] != device[v]:
            key = (u, k, int(device[v]))
            expected[key] = max(expected.get(key, 0.0), float(case.costs.transfer_s(e, device[u], device[v])))
    plan = plan_transfers(graph, case.costs, device)
    output = plan.tensor - graph.tensor_ptr[plan.producer]
    keys = list(zip(plan.producer.tolist(), output.tolist(), plan.destination.tolist(), strict=True))
    assert keys == sorted(expected)
    assert plan.cost_s.tolist() == [expected[key] for key in keys]
    assert plan.source.tolist() == device[plan.producer].tolist()
    for e, t in enumerate(plan.of_edge.tolist()):
        u, k, d = int(graph.sources[e]), int(graph.edge_output[e]), int(device[graph.targets[e]])
        assert (keys[t] == (u, k, d)) if t >= 0 else (graph.is_input[u] or device[u] == d)


@st.composite
def tiny(draw) -> Case:
    topology = draw(topologies(2, 2))
    graph = draw(graphs(topology, max_layers=3, max_width=2, constrained=True))
    costs = build_costs(graph, topology)
    return Case(graph, costs, draw(assignments(graph, costs)), "fifo", None)


@given(tiny())
def test_the_best_of_all_assignments_respects_the_bounds(case):
    """All assignments of at most 6 vertices to 2 devices that pins and groups allow."""
    graph, costs = case.graph, case.costs
    work = graph.work_vertices
    every = np.full((2 ** work.size, graph.num_vertices), -1, np.int32)
    every[:, work] = list(itertools.product((0, 1), repeat=work.size))
    legal = costs.allowed[work, every[:, work]].all(axis=1)
    for g in range(len(graph.groups)):
        members = work[graph.colocate[work] == g]
        legal &= (every[:, members] == every[:, members[:1]]).all(axis=1)
    best = FastSimulator(graph, costs).makespans(every[legal]).min()
    assert best >= lower_bounds(graph, costs).best_s * (1 - 1e-12)
    event(f"tight: {best <= lower_bounds(graph, costs).best_s * (1 + 1e-12)}")
