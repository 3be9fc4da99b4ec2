"""Plans with a host: any order of execution ends, within every limit, and does what was asked; what cannot fit is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Host, Topology
from doppler_tf.offload.compiler import LATE, ON_DEMAND, PLANNED
from doppler_tf.offload.planning import in_any_order, plan_offload, without_limits
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.offloaded import KEPT, kept_on_host, offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from tests.naive_simulator import NaiveSimulator
from tests.strategies import cases, cases_that_need_a_host, examples


@given(cases_that_need_a_host(), st.sampled_from([PLANNED, LATE, ON_DEMAND]), st.integers(0, 99))
def test_whatever_the_order_a_plan_ends_within_its_limits(case, style, seed):
    """Also where the dispatcher looks at no limit: the plan alone is enough."""
    _, planned = plan_offload(case.graph, case.costs, dataclasses.replace(case.assignment, dispatch=case.rule), style)
    graph, costs, assignment = offloaded(case.graph, case.costs, planned)
    noise = draw_noise(graph.num_vertices, costs.num_devices, 0.5, seed)
    for rule in DISPATCH_RULES:
        for factors in (None, noise):
            for limits in (costs, without_limits(costs)):
                trace = Simulator(rule, factors).execute(graph, limits, assignment)
                report = validate_trace(graph, costs, assignment, trace)
                assert report.violations == ()
                assert report.idle == ()
                assert (peak_bytes(graph, costs, assignment, trace) <= costs.memory_bytes).all()


@given(cases_that_need_a_host(), st.integers(0, 99))
def test_what_may_run_short_in_another_order_gets_a_plan(case, seed):
    given = dataclasses.replace(case.assignment, dispatch=case.rule)
    found = in_any_order(case.graph, case.costs, given)
    if found is given:  # all tensors fit
        held = [{t for t, v in enumerate(case.graph.tensor_producer.tolist()) if given.device[v] == d} |
                set(case.graph.edge_tensor[given.device[case.graph.targets] == d].tolist()) for d in range(case.costs.num_devices)]
        assert all(case.costs.tensor_bytes[list(ts)].sum() <= room for ts, room in zip(held, case.costs.memory_bytes, strict=True))
        return
    graph, costs, assignment = offloaded(case.graph, case.costs, found)
    noise = draw_noise(graph.num_vertices, costs.num_devices, 0.5, seed)
    trace = Simulator(case.rule, noise).execute(graph, without_limits(costs), assignment)
    assert (peak_bytes(graph, costs, assignment, trace) <= costs.memory_bytes).all()
    assert in_any_order(case.graph, case.costs, found) is found


@examples(0.3)
@given(cases_that_need_a_host(3))
def test_after_is_alike_in_the_naive_simulator(case):
    _, planned = plan_offload(case.graph, case.costs, dataclasses.replace(case.assignment, dispatch=case.rule))
    graph, costs, assignment = offloaded(case.graph, case.costs, planned)
    naive = NaiveSimulator(graph, costs, assignment, assignment.dispatch, None)
    assert naive.makespan_s() == Simulator().execute(graph, costs, assignment).makespan_s


@given(cases_that_need_a_host())
def test_every_consumer_still_gets_its_tensors(case):
    """By value: a tensor is the set of what it was made of, and a load hands on what it takes."""
    _, planned = plan_offload(case.graph, case.costs, dataclasses.replace(case.assignment, dispatch=case.rule))
    graph, _, _ = offloaded(case.graph, case.costs, planned)

    def values(of) -> dict:
        found, into = {}, of.predecessors
        for v in of.topological_order.tolist():
            edges = into.edge[into.ptr[v]:into.ptr[v + 1]].tolist()
            taken = sorted(found[int(of.edge_tensor[e])] for e in edges)
            for k in range(of.tensor_ptr[v + 1] - of.tensor_ptr[v]):
                found[int(of.tensor_ptr[v]) + k] = taken[0] if v >= case.graph.num_vertices else hash((of.ids[v], k, *taken))
        return found

    expected, got = values(case.graph), values(graph)
    assert {t: got[t] for t in expected} == expected
    kept = kept_on_host(case.graph, graph)
    assert len(kept) == graph.kinds.count(KEPT)
    assert set(case.graph.results.tolist()) <= {*kept, *graph.results.tolist()}
    assert all(expected[t] == got[there] for t, there in kept.items())


@given(cases(1, 4, noise=False))
def test_a_plan_where_all_fits_changes_nothing(case):
    topology = dataclasses.replace(case.costs.topology, host=Host(1.0))
    costs = dataclasses.replace(case.costs, topology=topology)
    makespan_s, planned = plan_offload(case.graph, costs, dataclasses.replace(case.assignment, dispatch=case.rule))
    assert planned.offload.loads == ()
    assert planned.offload.after.size == 0
    assert makespan_s == Simulator(case.rule).execute(case.graph, costs, case.assignment).makespan_s


def chain(memory_bytes: float, bandwidth: float | tuple[float, ...] = 1.0, weights: str = "012") -> tuple:
    """Vertices in a row on one device, each of which takes one of the weights, by default its own."""
    nodes = [{"id": f"w{i}", "input": True, "output_bytes": 4} for i in sorted(set(weights))]
    nodes += [{"id": f"v{i}", "exec_s": 10, "output_bytes": 1} for i in range(len(weights))]
    edges = [{"source": f"w{w}", "target": f"v{i}"} for i, w in enumerate(weights)]
    edges += [{"source": f"v{i}", "target": f"v{i + 1}"} for i in range(len(weights) - 1)]
    graph = graph_from_records(nodes, edges, {"name": "chain"})
    topology = dataclasses.replace(Topology.from_json({"devices": [{"name": "d", "memory_bytes": memory_bytes}]}), host=Host(bandwidth))
    return graph, build_costs(graph, topology), Assignment(np.where(graph.is_input, -1, 0).astype(np.int32))


def test_weights_stream_behind_work():
    """With 10 bytes two weights are there from the start, and the third comes while the second vertex runs. With 6 there is one at a time,
    and each next one takes 4 s after the vertex before."""
    assert plan_offload(*chain(10))[0] == 30
    makespan_s, planned = plan_offload(*chain(6))
    assert makespan_s == 38
    assert [load.tensor for load in planned.offload.loads] == [1, 2]


def test_a_tensor_that_would_come_late_takes_memory_that_was_free_before():
    """Three weights fit. The fourth vertex needs another one, and of the three the last will be used again the latest. Its memory is free
    only when the fourth should start, that of the second 10 s before."""
    weights = "0123012"
    late_s, planned = plan_offload(*chain(14, weights=weights), LATE)
    assert (late_s, [load.tensor for load in planned.offload.loads]) == (74, [3, 2])
    in_time_s, planned = plan_offload(*chain(14, weights=weights), PLANNED)
    assert (in_time_s, [load.tensor for load in planned.offload.loads]) == (70, [3, 1])


def test_a_limited_host_gets_no_more_than_it_must():
    graph, costs, assignment = chain(14, weights="0123012")
    small = dataclasses.replace(costs, topology=dataclasses.replace(costs.topology, host=Host(1.0, memory_bytes=100.0)))
    assert plan_offload(graph, small, assignment)[0] == 74


def test_what_cannot_fit_is_said_with_the_bytes():
    with pytest.raises(DeadlockError, match=r"'v1' needs 6 bytes with its inputs and outputs on device 'd', which has 5 bytes"):
        plan_offload(*chain(5))
    with pytest.raises(DeadlockError, match=r"'d' runs out of memory, and topology has no link between it and the host"):
        plan_offload(*chain(6, (0.0,)))


def test_a_host_that_is_too_small_is_said():
    graph, costs, assignment = chain(6)
    small = replace_host(costs, Host(1.0, memory_bytes=13))
    with pytest.raises(DeadlockError, match=r"the host of topology may have to hold 14 bytes, it has 13 bytes"):
        plan_offload(graph, small, assignment)
    assert plan_offload(graph, replace_host(costs, Host(1.0, memory_bytes=14)), assignment)[0] == 38


def replace_host(costs, host: Host):
    return dataclasses.replace(costs, topology=dataclasses.replace(costs.topology, host=host))


def test_what_starts_too_early_is_told():
    graph, costs, assignment = offloaded(*chain(6)[:2], plan_offload(*chain(6))[1])
    trace = Simulator().drive(Dispatcher(graph, costs, dataclasses.replace(assignment, after=None)), without_limits(costs))
    assert next(v.kind for v in validate_trace(graph, without_limits(costs), assignment, trace).violations) == "after"
