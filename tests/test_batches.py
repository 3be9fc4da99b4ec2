"""Several calls of a graph as one graph: what belongs to which batch, who waits for whom, and what reaches the next batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import ConfigError
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batch_state import BatchState
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.validation import validate_trace
from tests.strategies import cases


def chain(seconds, **attributes):
    """An argument, a weight, and vertices that follow each other and take these many seconds."""
    nodes = [{"id": "x", "input": True, "output_bytes": 4}, {"id": "w", "input": True, "output_bytes": 8}]
    nodes += [{"id": i, "exec_s": s, "output_bytes": 4} for i, s in enumerate(seconds)]
    edges = [{"source": "x", "target": 0}, {"source": "w", "target": 0}]
    edges += [{"source": i, "target": i + 1, "transfer_s": 0} for i in range(len(seconds) - 1)]
    return graph_from_records(nodes, edges, {"name": "chain", **attributes})


def assigned(graph, devices):
    device = np.full(graph.num_vertices, -1, np.int32)
    device[graph.work_vertices] = devices
    return Assignment(device, None, "by hand")


def by_vertex(batches, trace):
    """Start and end in seconds [repeats, work vertices]."""
    start, end = np.zeros((2, batches.graph.num_vertices))
    start[trace.vertex], end[trace.vertex] = trace.start_s, trace.end_s
    mine = batches.vertex[:, batches.single.work_vertices]
    return start[mine], end[mine]


@pytest.mark.parametrize(("in_flight", "makespan_s"), [
    (1, 12.0),  # 4 batches, one after the other
    (2, 9.0),   # device 0 works 1 s a batch, device 1 the 2 s after it: 1 + 4 x 2
    (4, 9.0)])
def test_a_chain_on_two_devices_by_hand(in_flight, makespan_s):
    graph = chain([1, 2])
    batches = repeat_graph(graph, ideal(2), 4, in_flight, BatchState([0]))
    assert batches.graph.is_input.sum() == 4 + 1  # an argument a batch, one weight
    trace = simulate(batches.graph, batches.costs, batches.assignment([assigned(graph, [0, 1])]), dispatch="order")
    assert trace.makespan_s == makespan_s
    start, end = by_vertex(batches, trace)
    np.testing.assert_array_equal(batches.latencies_s(trace), end.max(axis=1) - start.min(axis=1))
    assert batches.latencies_s(trace)[0] == 3
    np.testing.assert_array_equal(np.diff(end.max(axis=1)), 3 if in_flight == 1 else 2)


def test_each_batch_on_a_device_of_its_own():
    graph = chain([1, 2])
    batches = repeat_graph(graph, ideal(2), 6, 2, BatchState([0]))
    found = batches.assignment([assigned(graph, [0, 0]), assigned(graph, [1, 1])])
    assert simulate(batches.graph, batches.costs, found, dispatch="order").makespan_s == 9  # 3 batches of 3 s on each
    assert [p.device[graph.work_vertices].tolist() for p in batches.pattern(found)] == [[0, 0], [1, 1]] * 3


def test_an_updated_variable_reaches_the_next_batch():
    """Vertex 1 makes the next w: batches wait for each other there, whatever may be in flight."""
    graph = chain([1, 2])
    batches = repeat_graph(graph, ideal(2), 3, 3, BatchState([0], {1: int(graph.tensor_ptr[3])}))
    assert batches.vertex[:, 1].tolist() == [int(batches.vertex[0, 1]), -1, -1]
    ids = batches.graph.ids
    assert edges_of(batches.graph) == {("0/x", "0/0"), ("shared/w", "0/0"), ("0/0", "0/1"), ("1/x", "1/0"), ("0/1", "1/0"), ("1/0", "1/1"),
                                       ("2/x", "2/0"), ("1/1", "2/0"), ("2/0", "2/1")}
    trace = simulate(batches.graph, batches.costs, batches.assignment([assigned(graph, [0, 1])]), dispatch="order")
    assert trace.makespan_s == 9
    assert batches.tensor(2, int(graph.tensor_ptr[3])) == batches.graph.tensor_ptr[list(ids).index("2/1")]


def edges_of(graph):
    """By id."""
    return {(graph.ids[u], graph.ids[v]) for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)}


def test_kernels_take_the_tensors_of_their_batch():
    nodes = [{"id": "x", "input": True}, {"id": "w", "input": True},
             {"id": "a", "exec_s": 1, "output_bytes": [4, 4], "kernel": {"op": "f", "operands": [{"vertex": "x"}, {"vertex": "w"}]}},
             {"id": "b", "exec_s": 1, "output_bytes": 4, "colocate": "g",
              "kernel": {"op": "g", "operands": [{"vertex": "a", "output": 1}]}},
             {"id": "c", "exec_s": 1, "output_bytes": 4, "colocate": "g"}]
    edges = [{"source": "x", "target": "a"}, {"source": "w", "target": "a"}, {"source": "a", "target": "b", "output": 1},
             {"source": "a", "target": "c", "output": 0}]
    graph = graph_from_records(nodes, edges, {"name": "two outputs"})
    batches = repeat_graph(graph, ideal(2), 3, 1, BatchState([0], {1: int(graph.tensor_ptr[2]) + 1}, [3]))
    joined, index = batches.graph, batches.graph.vertex_of
    assert [(o.vertex, o.output) for o in joined.kernel[index["0/a"]].operands] == [(index["0/x"], 0), (index["shared/w"], 0)]
    assert [(o.vertex, o.output) for o in joined.kernel[index["2/a"]].operands] == [(index["2/x"], 0), (index["1/a"], 1)]
    assert [(o.vertex, o.output) for o in joined.kernel[index["2/b"]].operands] == [(index["2/a"], 1)]
    groups = {joined.groups[joined.colocate[index[f"{b}/{v}"]]] for b in range(3) for v in "bc"}
    assert groups == {"in order"}  # a state is kept by all batches on one device, with what belongs to it
    assert joined.names[index["1/b"]] == "batch 1: b"
    assert batches.tokens.size == 0
    assert edges_of(joined) >= {("0/b", "1/a"), ("0/c", "1/a"), ("0/b", "1/b"), ("1/b", "2/a"), ("1/c", "2/a")}


def test_of_several_last_and_first_vertices_a_token_says_that_a_batch_is_done():
    nodes = [{"id": key, "exec_s": 1, "output_bytes": 4} for key in "abcd"]
    graph = graph_from_records(nodes, [{"source": "a", "target": "c"}, {"source": "b", "target": "d"}], {"name": "two chains"})
    batches = repeat_graph(graph, ideal(2), 3, 1)
    assert [batches.graph.ids[v] for _, v, _ in batches.tokens] == ["0/done/2", "0/done/3", "0/done", "1/done/2", "1/done/3", "1/done"]
    within = {(f"{b}/{u}", f"{b}/{v}") for b in range(3) for u, v in ("ac", "bd")}
    done = {(f"{b}/{'cd'[i]}", f"{b}/done/{i + 2}") for b in range(2) for i in range(2)} | {
        (f"{b}/done/{v}", f"{b}/done") for b in range(2) for v in (2, 3)}
    assert edges_of(batches.graph) == within | done | {(f"{b}/done", f"{b + 1}/{v}") for b in range(2) for v in "ab"}


def test_what_the_last_vertex_hands_to_the_next_batch_is_also_what_that_waits_for():
    nodes = [{"id": "state", "input": True}, {"id": "a", "exec_s": 1, "output_bytes": 8}]
    graph = graph_from_records(nodes, [{"source": "state", "target": "a", "bytes": 8}], {"name": "counter"})
    joined = repeat_graph(graph, ideal(2), 3, 1, BatchState([], {0: int(graph.tensor_ptr[1])})).graph
    assert edges_of(joined) == {("shared/state", "0/a"), ("0/a", "1/a"), ("1/a", "2/a")}
    np.testing.assert_equal(joined.edge_bytes, [8, np.nan, np.nan])  # NaN: those of the tensor, and not none


@given(case=cases(constrained=True, noise=False), repeats=st.integers(1, 4), in_flight=st.integers(1, 4), data=st.data())
def test_no_more_than_so_many_are_in_flight_and_the_oldest_goes_first(case, repeats, in_flight, data):
    graph = case.graph
    own = data.draw(st.sets(st.sampled_from(range(graph.num_vertices)))) & set(np.flatnonzero(graph.is_input).tolist())
    batches = repeat_graph(graph, case.costs.topology, repeats, in_flight, BatchState(own))
    assignment = batches.assignment([replace(case.assignment, dispatch=case.rule)])
    trace = Simulator().execute(batches.graph, batches.costs, assignment)
    validate_trace(batches.graph, batches.costs, assignment, trace)
    start, end = by_vertex(batches, trace)
    for b in range(in_flight, repeats):
        assert start[b].min() >= end[b - in_flight].max()
    if repeats == 1:  # a single batch runs as the assignment does by itself
        assert trace.makespan_s == Simulator().execute(graph, case.costs, replace(case.assignment, dispatch=case.rule)).makespan_s
        return
    mine = assignment.priority[batches.vertex[:, graph.work_vertices]]
    assert (mine[1:].min(axis=1) > mine[:-1].max(axis=1)).all()


def test_numbers_below_one_are_refused():
    for repeats, in_flight, name in ((0, 1, "repeat"), (1, 0, "in_flight"), (True, 1, "repeat")):
        with pytest.raises(ConfigError, match=f"batches: {name}: expected an integer >= 1, got"):
            repeat_graph(chain([1]), ideal(1), repeats, in_flight)
