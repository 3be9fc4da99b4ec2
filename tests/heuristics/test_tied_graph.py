"""A small graph in place of one that repeats: its costs are the whole's, and what is found for it holds for the whole."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.workloads import build_workload
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records, graph_to_records
from doppler_tf.graph.topology import ideal, preset
from doppler_tf.heuristics import Budget, CriticalPath, climb
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.repetition import find_repetition
from doppler_tf.heuristics.repeats.shortened import shorten
from doppler_tf.heuristics.repeats.tied_graph import tie
from doppler_tf.schedule.assignment import check_constraints
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace
from tests.heuristics.stacks import stack, stacks
from tests.strategies import examples


@examples(0.5)
@given(graph=stacks(constrained=True), seed=st.integers(0, 10**6))
def test_an_assignment_of_the_small_graph_places_the_whole_within_its_constraints(graph, seed):
    costs = build_costs(graph, ideal(3))
    tied, repetition = tie(Problem(graph, costs)), find_repetition(graph, costs)
    if tied is None:
        assert repetition is None or shorten(Problem(graph, costs), 2) is None
        return
    same_when_read(tied, costs.topology)
    small = CriticalPath(tied.graph, tied.costs).sample(np.random.default_rng(seed))
    check_constraints(tied.graph, tied.costs, small.device, "small")
    whole = tied.whole(small)
    check_constraints(graph, costs, whole.device, "whole")
    assert (whole.device[graph.is_input] == -1).all()
    assert all(len(set(whole.device[repetition.chain == c].tolist())) == 1 for c in range(len(repetition.lengths)))
    device_of = dict(zip(tied.graph.ids, small.device.tolist(), strict=True))
    assert all(whole.device[v] == device_of[name] for v, name in enumerate(graph.ids) if name in device_of)
    assert whole.method == small.method
    validate_trace(graph, costs, whole, simulate(graph, costs, whole))


def same_when_read(tied, topology):
    """The small graph is the same in a file, and what its costs depend on is in it."""
    read = graph_from_records(*json.loads(json.dumps(graph_to_records(tied.graph))))
    assert read.graph_hash == tied.graph.graph_hash
    again = build_costs(read, topology)
    for field in fields(again):
        if field.name != "topology":
            np.testing.assert_array_equal(getattr(again, field.name), getattr(tied.costs, field.name))


def test_a_pin_holds_even_where_its_vertex_is_left_out():
    nodes, edges, attributes = graph_to_records(stack(9, 6))
    for node in nodes:
        if node["id"].endswith(".0"):
            node["colocate"] = "first of each"
        if node["id"] == "4.0":
            node["pin"] = 1
    graph = graph_from_records(nodes, edges, attributes)
    tied = tie(Problem(graph, build_costs(graph, ideal(3))))
    assert "4.0" not in tied.graph.ids
    assert all(tied.graph.pin[v] == 1 for v, name in enumerate(tied.graph.ids) if name.endswith(".0"))
    same_when_read(tied, ideal(3))


def test_the_small_graph_has_two_copies():
    graph = stack(9, 6, constrained=True)
    tied = tie(Problem(graph, build_costs(graph, ideal(3))))
    assert tied.graph.name == "stack_tied"
    assert tied.graph.num_vertices == 2 + 2 * 7
    assert len(tied.graph.groups) == 2 + 5  # a vertex at each end; six of a layer, two of which are a group


def test_stacks_of_any_height_have_the_same_small_graph():
    small = []
    for layers in (5, 12):
        graph = build_workload("llama_stack", 4, layers=layers)
        tied = tie(Problem(graph, build_costs(graph, preset("p100x4"))))
        same_when_read(tied, preset("p100x4"))
        small.append(tied.graph)
    for name in ("exec_s", "colocate", "sources", "targets", "transfer_s", "edge_bytes", "flops", "tensor_bytes", "is_input"):
        np.testing.assert_array_equal(*(getattr(graph, name) for graph in small))


@pytest.mark.parametrize("layers", [4, 20])
def test_what_is_found_for_two_copies_is_as_good_for_many(layers):
    graph = build_workload("llama_stack", 4, layers=layers)
    costs = build_costs(graph, preset("p100x4"))
    tied = tie(Problem(graph, costs))
    start = CriticalPath(tied.graph, tied.costs).sample(np.random.default_rng(0))
    small = climb(Problem(tied.graph, tied.costs, "b_level"), np.random.default_rng(0), Budget(3000), start).assignment
    over = [simulate(g, c, a, dispatch="b_level").makespan_s / c.exec_s[g.work_vertices].min(axis=1).sum()
            for g, c, a in ((tied.graph, tied.costs, small), (graph, costs, tied.whole(small)))]
    assert over[1] == pytest.approx(over[0], rel=0.03)


def test_without_repetition_there_is_none():
    graph = build_workload("llama_layer", 4)
    assert tie(Problem(graph, build_costs(graph, preset("p100x4")))) is None
