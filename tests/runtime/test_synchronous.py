"""The synchronous engine: valid traces, a barrier after each level."""

from dataclasses import replace

import numpy as np
import pytest

from doppler_tf.errors import AssignmentError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal, p100x4
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedBackend, EmulatedExecutor, SynchronousExecutor


def test_a_barrier_hurts_where_levels_are_uneven(make_graph):
    graph = make_graph({"a": (4.0, []), "b": (1.0, []), "a2": (1.0, ["a"]), "b2": (4.0, ["b"])})
    costs = build_costs(graph, ideal(2))
    assignment = assignment_from_devices(graph, costs, [0, 1, 0, 1])
    with SynchronousExecutor(EmulatedBackend(0.05)) as synchronous, EmulatedExecutor(0.05) as asynchronous:
        late, early = synchronous.execute(graph, costs, assignment), asynchronous.execute(graph, costs, assignment)
    assert late.dispatch == late.log.dispatch == "levels"
    assert 8.0 <= late.makespan_s < 9.5
    assert 5.0 <= early.makespan_s < 6.5
    for trace in (late, late.log):
        report = validate_trace(graph, costs, assignment, trace)
        assert report.valid
        assert not report.work_conserving
    assert validate_trace(graph, costs, assignment, late, tolerance_s=2.0).idle != ()
    assert validate_trace(graph, costs, assignment, early.log).work_conserving


def test_a_plan_with_offload_is_refused(make_graph):
    graph = make_graph({"a": (1.0, []), "b": (1.0, [])})
    costs = build_costs(graph, ideal(2))
    planned = replace(assignment_from_devices(graph, costs, [0, 1]), after=np.array([[0, 1]]))
    with SynchronousExecutor(EmulatedBackend(0.05)) as executor, pytest.raises(AssignmentError, match="barriers: expected an assignment"):
        executor.execute(graph, costs, planned)


@pytest.mark.parametrize("seed", range(4))
def test_no_vertex_starts_before_the_levels_before_it_have_ended(random_graph, place, seed):
    graph = random_graph(60, seed)
    costs = build_costs(graph, p100x4())
    assignment = place(graph, costs, seed)
    with SynchronousExecutor(EmulatedBackend(2e-4)) as executor:
        trace = executor.execute(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace).violations == ()
    level = {int(v): i for i, members in enumerate(graph.levels) for v in members}
    for i in range(1, len(graph.levels)):
        ends = [end for v, end in zip(trace.vertex, trace.end_s, strict=True) if level[v] < i]
        ends += [end for p, end in zip(trace.producer, trace.transfer_end_s, strict=True) if level[p] < i]
        starts = [start for v, start in zip(trace.vertex, trace.start_s, strict=True) if level[v] == i]
        assert max(ends) <= min(starts)


def test_inputs_make_no_level():
    nodes = [{"id": "x", "input": True, "output_bytes": 1}, {"id": "fed", "exec_s": 1.0, "output_bytes": 1},
             {"id": "free", "exec_s": 1.0, "output_bytes": 1}]
    graph = graph_from_records(nodes, [{"source": "x", "target": "fed"}], {"name": "toy"})
    costs = build_costs(graph, ideal(2))
    with SynchronousExecutor(EmulatedBackend(0.1)) as executor:
        trace = executor.execute(graph, costs, assignment_from_devices(graph, costs, [None, 0, 1]))
    assert trace.makespan_s < 1.9
