"""What devices hold in any order of execution, and that nothing more is said than what is proven."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import build_workload
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import p100x4
from doppler_tf.offload.planning import without_limits
from doppler_tf.placement import place
from doppler_tf.schedule import any_order
from doppler_tf.schedule.any_order import always_fits, fits_in_any_order, most_bytes
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.memory import held_bytes
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from tests.strategies import cases


@given(cases(), st.integers(0, 99), st.sampled_from([8, 1024]))
def test_no_run_holds_more(case, seed, landmarks):
    graph, costs, device = case.graph, without_limits(case.costs), case.assignment.device
    before, any_order._LANDMARKS = any_order._LANDMARKS, landmarks
    try:
        most, held = most_bytes(graph, costs, device), held_bytes(graph, costs, device)
    finally:
        any_order._LANDMARKS = before
    assert (most <= held).all()
    for factors in (None, *(draw_noise(graph.num_vertices, costs.num_devices, 1.0, seed + i) for i in range(3))):
        for rule in DISPATCH_RULES:
            assignment = dataclasses.replace(case.assignment, dispatch=rule)
            trace = Simulator(rule, factors).execute(graph, costs, assignment)
            assert (peak_bytes(graph, costs, assignment, trace) <= most).all()


@given(cases(), st.integers(0, 99))
def test_where_everything_fits_on_one_device_no_assignment_runs_short(case, seed):
    graph, free = case.graph, without_limits(case.costs)
    limit = max(1.0, float(most_bytes(graph, free, np.where(graph.is_input, -1, int(np.argmax(free.slots)))).max()))
    limited, short = (dataclasses.replace(free, topology=free.topology.with_memory(room)) for room in (limit, limit / 2))
    assert always_fits(graph, limited)
    assert not always_fits(graph, short) or limit <= 1.0
    for factors in (None, draw_noise(graph.num_vertices, free.num_devices, 1.0, seed)):
        trace = Simulator(case.rule, factors).execute(graph, free, case.assignment)
        assert (peak_bytes(graph, free, case.assignment, trace) <= limit).all()


@given(cases(), st.integers(0, 99))
def test_no_run_of_larger_calls_holds_more(case, seed):
    """Where devices run everything at once that is ready, as TensorFlow does within a call."""
    graph, topology = case.graph, without_limits(case.costs).topology
    devices = tuple(dataclasses.replace(each, slots=graph.num_vertices) for each in topology.devices)
    costs, device = dataclasses.replace(case.costs, topology=dataclasses.replace(topology, devices=devices)), case.assignment.device
    most = most_bytes(graph, costs, device, device)
    assert (most <= held_bytes(graph, costs, device)).all()
    for factors in (None, *(draw_noise(graph.num_vertices, costs.num_devices, 1.0, seed + i) for i in range(3))):
        trace = Simulator(noise=factors).execute(graph, costs, case.assignment)
        assert (peak_bytes(graph, costs, case.assignment, trace) <= most).all()


def chain() -> DataflowGraph:
    """Six vertices of 10 bytes in a row from an input of 4, and one of 7 at their side that the last one takes."""
    nodes = [{"id": "x", "input": True, "output_bytes": 4}, *({"id": i, "output_bytes": 10, "flops": 1} for i in range(6)),
             {"id": "side", "output_bytes": 7, "flops": 1}]
    edges = [{"source": "x", "target": 0}, *({"source": i, "target": i + 1} for i in range(5)), {"source": "side", "target": 5}]
    return graph_from_records(nodes, edges, {"name": "chain"})


def test_a_chain_on_one_device_by_hand():
    """Two vertices of the chain, and what lies at its side, which may be there from the start to the end."""
    graph = chain()
    costs, device = build_costs(graph, p100x4().with_memory(27.0)), np.array([-1, *[0] * 7])
    assert held_bytes(graph, costs, device).tolist() == [71, 0, 0, 0]
    assert most_bytes(graph, costs, device).tolist() == [27, 0, 0, 0]
    assert fits_in_any_order(graph, costs, device)
    assert not fits_in_any_order(graph, build_costs(graph, p100x4().with_memory(26.0)), device)


def test_a_chain_in_one_call_by_hand():
    """Its input stays to the end, and what lies at its side may run beside it."""
    graph, device = chain(), np.array([-1, *[0] * 7])
    assert most_bytes(graph, build_costs(graph, p100x4()), device, device).tolist() == [31, 0, 0, 0]
    assert most_bytes(graph, build_costs(graph, p100x4()), device, np.zeros(8, int)).tolist() == [31, 0, 0, 0]  # its caller has it
    halves = np.array([-1, 0, 0, 0, 1, 1, 1, 1])  # the third stays, as the second call takes it
    assert most_bytes(graph, build_costs(graph, p100x4()), device, halves).tolist() == [41, 0, 0, 0]


@pytest.mark.parametrize(("limit", "calls"), [(71, 1), (31, 1), (30, 7)])
def test_calls_are_larger_where_no_order_within_them_exceeds_the_limit(limit, calls):
    graph, device = chain(), np.array([-1, *[0] * 7], np.int32)
    costs = build_costs(graph, p100x4().with_memory(float(limit)))
    merged = merge_calls(graph, costs, Assignment(device, dispatch="b_level"))
    assert len(merged.graph.work_vertices) == calls


@pytest.mark.parametrize("size", [2e15, 2e18, 1e19, 1e300])
def test_bytes_beyond_whole_numbers_count_all(size):
    nodes = [{"id": i, "exec_s": 1, "output_bytes": size if i < 12 else 1} for i in range(18)]
    graph = graph_from_records(nodes, [{"source": i, "target": 12 + i // 2} for i in range(12)], {"name": "huge"})
    costs, device = build_costs(graph, p100x4()), np.zeros(18, np.int32)
    assert (most_bytes(graph, costs, device) == held_bytes(graph, costs, device)).all()
    assert not always_fits(graph, build_costs(graph, p100x4().with_memory(2 * size)))


def test_copies_and_results_by_hand():
    """The chain alternates between two devices: each holds a vertex and the copy that it takes. A result stays to the end."""
    graph = chain()
    device = np.array([-1, 0, 1, 0, 1, 0, 1, 1])
    costs = build_costs(graph, p100x4())
    assert most_bytes(graph, costs, device).tolist() == [20, 27, 0, 0]
    kept = dataclasses.replace(graph, attributes={"results": [{"vertex": 0}]})
    assert most_bytes(kept, costs, device).tolist() == [30, 27, 0, 0]


def test_twenty_layers_of_which_the_tensors_together_do_not_fit():
    graph = build_workload("llama_stack", 4, layers=20)
    found = place(graph, p100x4(), "critical_path", samples=1)
    assert found.assignment.offload is None
    assert (held_bytes(graph, found.costs, found.assignment.device) > 2 * found.costs.memory_bytes).all()
    assert (most_bytes(graph, found.costs, found.assignment.device) < 0.4 * found.costs.memory_bytes).all()
