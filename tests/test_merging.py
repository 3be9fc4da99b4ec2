"""Calls merged by simulation: never slower than apart, valid graphs of the same work, and what must stay apart."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import MERGED
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.rules import check_structure
from doppler_tf.graph.topology import cpu, ideal
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.bounds import bound_in_calls_s
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace
from tests.strategies import cases, cases_short_of_memory, examples, makespan_or_inf


def without_noise(case):
    return dataclasses.replace(case, noise=None, assignment=dataclasses.replace(case.assignment, dispatch=case.rule))


def one_slot(case):
    topology = case.costs.topology
    devices = tuple(dataclasses.replace(d, slots=1) for d in topology.devices)
    return dataclasses.replace(case, costs=build_costs(case.graph, dataclasses.replace(topology, devices=devices)))


def launching(case, launch_s):
    """The case on devices that take so long for a kernel without work; the costs of vertices stay."""
    topology = case.costs.topology
    devices = tuple(dataclasses.replace(d, launch_s=launch_s) for d in topology.devices)
    return dataclasses.replace(case, costs=dataclasses.replace(case.costs, topology=dataclasses.replace(topology, devices=devices)))


def check(graph, costs, assignment, fetch=()):
    """Merges, and asserts all that must hold of what comes out."""
    apart = simulate(graph, costs, assignment)
    found = merge_calls(graph, costs, assignment, fetch)
    check_structure(found.graph, "merged")
    trace = simulate(found.graph, found.costs, found.assignment)
    assert found.makespan_s == trace.makespan_s <= apart.makespan_s * (1 + 1e-12)
    assert validate_trace(found.graph, found.costs, found.assignment, trace).work_conserving
    # The same work on the same devices.
    work, number = graph.work_vertices, found.vertex
    np.testing.assert_array_equal(found.graph.is_input[number], graph.is_input)
    np.testing.assert_array_equal(found.assignment.device[number[work]], assignment.device[work])
    assert sorted(set(number.tolist())) == list(range(found.graph.num_vertices))
    # Every tensor that somebody else needs leaves its call, from the vertex that stands for its producer.
    crossing = number[graph.sources] != number[graph.targets]
    needed = {*graph.edge_tensor[crossing].tolist(), *fetch, *np.setdiff1d(np.arange(graph.num_tensors), graph.edge_tensor).tolist()}
    leaves = np.flatnonzero(found.tensor >= 0)
    assert needed <= set(leaves.tolist())
    np.testing.assert_array_equal(found.graph.tensor_producer[found.tensor[leaves]], number[graph.tensor_producer[leaves]])
    joined = {(int(t), int(v)) for t, v in zip(found.graph.edge_tensor, found.graph.targets, strict=True)}
    assert joined == {(int(found.tensor[t]), int(number[v])) for t, v in zip(graph.edge_tensor[crossing],
                                                                            graph.targets[crossing], strict=True)}
    # What a device cannot or may not run, the call that has it in it does not run there either.
    for v in work.tolist():
        assert not (found.costs.allowed[number[v]] & ~costs.allowed[v]).any()
    return found


def test_a_call_beside_which_no_device_works_uses_all_cores_where_devices_share_them():
    """Two chains of 2 s in one call take 2 s on two cores, and one chain does, too."""
    def merged(chain, devices, shared_cores=True):
        kernel = {"op": "map", "params": {"fn": "square", "subscripts": "a->a"}}
        graph = graph_from_records([{"id": "x", "input": True, "output_bytes": 8}, *(
            {"id": v, "exec_s": 1.0, "output_bytes": 8, "kernel": {**kernel, "operands": [{"vertex": u}]}} for u, v in chain)],
            [{"source": u, "target": v} for u, v in chain])
        costs = build_costs(graph, dataclasses.replace(ideal(2), shared_cores=shared_cores))
        found = merge_calls(graph, costs, assignment_from_devices(graph, costs, [None, *devices]))
        return found.makespan_s, [v in found.lone for v in found.graph.work_vertices.tolist()]

    two = ["xa", "ab", "xc", "cd"]
    assert merged(two, [0, 0, 0, 0], shared_cores=False) == (4.0, [False])
    assert merged(two, [0, 0, 0, 0]) == (2.0, [True])
    assert merged(two, [0, 0, 1, 1]) == (2.0, [False, False])
    assert merged(two[:2], [0, 0]) == (2.0, [True])


@given(cases(max_devices=4, constrained=True))
def test_merged_calls_are_never_slower(case):
    case = without_noise(case)
    check(case.graph, case.costs, case.assignment)


@given(cases(max_devices=4), st.sampled_from([0.0, 0.1, 5.0]), st.data())
def test_with_results_to_keep_and_overhead_to_save(case, overhead_s, data):
    case = launching(one_slot(without_noise(case)), overhead_s)
    fetch = data.draw(st.sets(st.integers(0, case.graph.num_tensors - 1)))
    found = check(case.graph, case.costs, case.assignment, fetch)
    work = case.graph.work_vertices
    device, first = case.assignment.device, np.flatnonzero(~found.graph.is_input)
    for d in range(case.costs.num_devices):
        before, after = work[device[work] == d], first[found.assignment.device[first] == d]
        apart_s, merged_s = case.costs.exec_s[before, d].sum(), found.costs.exec_s[after, d].sum()
        saved_s = overhead_s * (len(before) - len(after))
        assert apart_s - saved_s - 1e-9 <= merged_s <= apart_s + 1e-9


@examples(0.5)
@given(cases(max_devices=3), st.sampled_from([0.0, 0.1, 5.0]), st.booleans())
def test_no_run_in_larger_calls_is_shorter_than_the_bound(case, launch_s, shared_cores):
    case = launching(one_slot(without_noise(case)), launch_s)
    costs = dataclasses.replace(case.costs, topology=dataclasses.replace(case.costs.topology, shared_cores=shared_cores))
    assert merge_calls(case.graph, costs, case.assignment).makespan_s >= bound_in_calls_s(case.graph, costs) * (1 - 1e-12)


@given(cases_short_of_memory())
def test_short_memory(case):
    case = without_noise(case)
    if math.isinf(makespan_or_inf(case)):
        with pytest.raises(DeadlockError):
            merge_calls(case.graph, case.costs, case.assignment)
        return
    found = check(case.graph, case.costs, case.assignment)
    short = case.costs.tensor_bytes.sum() > case.costs.memory_bytes
    for d in np.flatnonzero(short | (case.costs.slots > 1)).tolist():
        assert (found.assignment.device == d).sum() == (case.assignment.device == d).sum()


def graph_of(vertices, edges, **attributes):
    """Vertices {id: exec_s}, edges (source, target, fields)."""
    nodes = [{"id": v, "exec_s": exec_s, "output_bytes": 1} for v, exec_s in vertices.items()]
    return graph_from_records(nodes, [{"source": u, "target": v, **fields} for u, v, fields in edges], {"name": "toy", **attributes})


def merged_on(graph, devices, **options):
    costs = build_costs(graph, cpu(2))
    return check(graph, costs, assignment_from_devices(graph, costs, devices), **options)


def test_what_runs_on_one_device_becomes_one_call():
    """Though sums of such numbers differ by their order."""
    vertices = {v: 0.1 * (v % 7 + 1) for v in range(40)}
    found = merged_on(graph_of(vertices, [(v // 2, v, {}) for v in range(1, 40)]), [0] * 40)
    assert found.graph.num_vertices == 1
    assert len(found.graph.vertex_notes[0]["calls"]) == 40


@pytest.mark.parametrize("in_flight", [2, 4])
def test_each_batch_is_a_call_of_its_own(in_flight):
    nodes = [{"id": key, "exec_s": 1, "output_bytes": 4} for key in "abc"]
    graph = graph_from_records(nodes, [{"source": "a", "target": "b"}, {"source": "b", "target": "c"}], {"name": "chain"})
    batches = repeat_graph(graph, ideal(2), 8, in_flight)
    pattern = [assignment_from_devices(graph, batches.single_costs, [d] * 3) for d in range(2)]
    found = merge_calls(batches.graph, batches.costs, batches.assignment(pattern))
    calls = found.vertex[batches.vertex]
    assert (calls == calls[:, :1]).all()
    assert len(np.unique(calls)) == found.graph.num_vertices == 8
    assert found.makespan_s == 12


def test_vertices_without_work_keep_their_order():
    """Whatever their numbers, a vertex stands behind what it takes from."""
    graph = graph_of({"last": 0, "middle": 0, "first": 0}, [("first", "middle", {"bytes": 0}), ("middle", "last", {})])
    found = merged_on(graph, [0, 0, 0])
    assert found.graph.vertex_notes[0]["calls"] == ["first", "middle", "last"]


@pytest.mark.parametrize(("given_s", "sent_bytes"), [(0.5, 1e15), (5.0, 1)])
def test_of_edges_that_become_one_the_costliest_stays(given_s, sent_bytes):
    edges = [("a", "b", {"transfer_s": given_s}), ("a", "c", {"bytes": sent_bytes}), ("b", "c", {})]
    found = merged_on(graph_of({"a": 1, "b": 1, "c": 1}, edges), [0, 1, 1])
    assert found.graph.num_vertices == 2
    assert found.costs.transfer_s(0, 0, 1) >= 5.0


def test_a_pin_holds_for_the_whole_call():
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 1, **({"pin": 1} if v else {})} for v in range(2)],
                               [{"source": 0, "target": 1}], {"name": "toy"})
    assert merged_on(graph, [1, 1]).costs.allowed.tolist() == [[False, True]]


def test_records_of_a_capture_follow_their_tensors():
    record = {"outputs": [{"vertex": "b", "name": "y"}], "updates": [{"variable": "v", "vertex": "a"}], "in_order": ["a", "b", "d"]}
    edges = [("a", "b", {}), ("b", "c", {}), ("c", "d", {})]
    found = merged_on(graph_of(dict.fromkeys("abcd", 1), edges, captured=record), [0, 0, 0, 1])
    made = found.graph.attributes["captured"]
    assert made == {"outputs": [{"vertex": "c", "name": "y", "output": 1}], "updates": [{"variable": "v", "vertex": "c", "output": 0}],
                    "weights": [], "in_order": ["c", "d"]}


def test_kernels_become_steps():
    def kernel(op, *operands):
        return {"op": op, "params": {}, "operands": [{"vertex": v, **({"slice": box} if box else {})} for v, box in operands]}

    nodes = [{"id": "x", "input": True, "output_bytes": 4},
             {"id": "a", "exec_s": 1, "output_bytes": 4, "kernel": kernel("one", ("x", [[0, 1]]))},
             {"id": "b", "exec_s": 1, "output_bytes": 4, "kernel": kernel("two", ("a", None), ("x", None), ("a", [[1, 2]]))}]
    edges = [{"source": u, "target": v} for u, v in ("xa", "ab", "xb")]
    graph = graph_from_records(nodes, edges, {"name": "toy"})
    made = merged_on(graph, [-1, 0, 0]).graph.kernel[1]
    assert (made.op, [(o.vertex, o.slice, o.output) for o in made.operands]) == (MERGED, [(0, None, 0)])
    assert made.params["outputs"] == [[2, 0]]
    steps = [[(o["from"], o["output"], o["slice"]) for o in step["operands"]] for step in made.params["steps"]]
    assert steps == [[(0, 0, ((0, 1),))], [(1, 0, None), (0, 0, None), (1, 0, ((1, 2),))]]


def test_what_draws_from_a_seed_is_a_call_of_its_own():
    """In another call its numbers would begin anew."""
    plain, seeded = ({"op": "captured", "operands": [], "params": params} for params in ({}, {"seeded": True}))
    nodes = [{"id": v, "exec_s": 1e-3, "output_bytes": 8, "kernel": seeded if v == 2 else plain} for v in range(5)]
    graph = graph_from_records(nodes, [{"source": v, "target": v + 1} for v in range(4)], {"name": "chain"})
    costs = build_costs(graph, cpu(1))
    merged = merge_calls(graph, costs, assignment_from_devices(graph, costs, [0] * 5))
    assert merged.vertex.tolist() == [0, 0, 1, 2, 2]
