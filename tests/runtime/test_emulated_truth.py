"""Emulated devices that are not what the caller plans with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from doppler_tf.errors import ConfigError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedBackend, EmulatedExecutor, SynchronousExecutor

SCALE = 2e-2


def topology(flops_per_s: float, bandwidth: float) -> Topology:
    """Two equal devices."""
    devices = [{"name": name, "flops_per_s": flops_per_s, "mem_bytes_per_s": None} for name in "ab"]
    return Topology.from_json({"devices": devices, "links": {"bandwidth_bytes_per_s": bandwidth}})


@pytest.fixture
def row():
    """Three vertices in a row that go back and forth; by the plan a vertex takes 1 s, a transfer 0.5 s."""
    nodes = [{"id": v, "flops": 1.0, "output_bytes": 1.0} for v in range(3)]
    graph = graph_from_records(nodes, [{"source": 0, "target": 1}, {"source": 1, "target": 2}], {"name": "row"})
    costs = build_costs(graph, topology(1.0, 2.0))
    return graph, costs, assignment_from_devices(graph, costs, [0, 1, 0])


@pytest.mark.parametrize("make", [lambda truth: EmulatedExecutor(SCALE, truth=truth),
                                  lambda truth: SynchronousExecutor(EmulatedBackend(SCALE, truth=truth))])
def test_all_takes_its_time_in_truth_and_the_trace_stays_valid(row, make):
    graph, costs, assignment = row
    with make(topology(0.5, 1.0)) as executor:
        trace = executor.execute(graph, costs, assignment)
    tick_s = 1e-9
    assert (trace.end_s - trace.start_s >= 2.0 - tick_s).all()
    assert (trace.transfer_end_s - trace.transfer_start_s >= 1.0 - tick_s).all()
    assert 8.0 - tick_s <= trace.makespan_s < 16.0  # by the plan 4
    assert validate_trace(graph, costs, assignment, trace.log).valid
    assert validate_trace(graph, costs, assignment, trace, 0.05 * trace.makespan_s).valid


def test_the_plan_keeps_its_slots(row):
    graph, costs, assignment = row
    truth = replace(topology(1.0, 2.0), link_slots=None)
    with EmulatedExecutor(SCALE, truth=truth) as executor:
        trace = executor.execute(graph, costs, assignment)
    np.testing.assert_array_equal(trace.producer, [0, 1])
    assert validate_trace(graph, costs, assignment, trace.log).work_conserving


def test_transfers_take_time_from_devices(row):
    """Each transfer takes 0.5 s, and as much from what runs next at both ends."""
    graph, costs, assignment = row
    truth = replace(topology(1.0, 2.0), source_share=np.ones((2, 2)), destination_share=np.ones((2, 2)))
    with EmulatedExecutor(SCALE, truth=truth) as executor:
        trace = executor.execute(graph, costs, assignment)
    simulated = simulate(graph, truth, assignment)
    assert (simulated.end_s - simulated.start_s).tolist() == [1.0, 1.5, 2.0]
    assert (trace.end_s - trace.start_s >= np.array([1.0, 1.5, 2.0]) - 1e-9).all()


def test_another_number_of_devices_is_refused(row):
    with pytest.raises(ConfigError, match=r"truth: expected a topology of 2 devices.*got 'ideal:3 with 3'"):
        EmulatedExecutor(SCALE, truth=ideal(3)).execute(*row)
