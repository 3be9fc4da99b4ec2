"""Chains: true counterparts whatever the order of the vertices, nearly all of a stack, none where nothing repeats."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.layered import Layered, layered_graph
from data.workloads import build_workload
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_to_records
from doppler_tf.graph.topology import ideal, preset
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.repetition import Repetition, find_repetition
from doppler_tf.heuristics.repeats.shortened import shorten
from tests.heuristics.stacks import shuffled, stack, stacks
from tests.strategies import cases


def assert_isomorphism(graph: DataflowGraph, costs: CostModel, found: Repetition) -> None:
    """The shift is one to one, and keeps costs, permitted devices, and all edges between the vertices where it is defined."""
    shift = found.next_vertex()
    here = np.flatnonzero(shift >= 0)
    there = shift[here]
    assert len(np.unique(there)) == len(there)
    assert not graph.is_input[here].any()
    assert not graph.is_input[there].any()
    for values in (costs.exec_s, costs.allowed, costs.output_bytes, costs.colocate >= 0):
        assert (values[here] == values[there]).all()
    edges = list(zip(graph.sources.tolist(), graph.targets.tolist(), graph.edge_output.tolist(), costs.edge_bytes.tolist(),
                     np.nan_to_num(costs.explicit_transfer_s, nan=-1.0).tolist(), strict=True))
    defined, arrives = set(here.tolist()), set(there.tolist())
    moved = {(int(shift[u]), int(shift[v]), *rest) for u, v, *rest in edges if u in defined and v in defined}
    assert moved == {edge for edge in edges if edge[0] in arrives and edge[1] in arrives}
    for c in range(len(found.lengths)):
        chain = found.vertex[found.ptr[c]:found.ptr[c + 1]]
        assert len(chain) >= 2
        assert (found.chain[chain] == c).all()
        assert found.position[chain].tolist() == list(range(len(chain)))
        assert (shift[chain[:-1]] == chain[1:]).all()


@given(graph=stacks(constrained=True), seed=st.integers(0, 10**6))
def test_counterparts_are_true_in_any_order_of_vertices(graph, seed):
    nodes, edges, _ = graph_to_records(graph)
    for each in (graph, shuffled(graph, nodes, edges, seed)):
        costs = build_costs(each, ideal(3))
        if (found := find_repetition(each, costs)) is not None:
            assert_isomorphism(each, costs, found)


@given(case=cases(constrained=True, noise=False))
def test_counterparts_are_true_in_any_graph(case):
    if (found := find_repetition(case.graph, case.costs)) is not None:
        assert_isomorphism(case.graph, case.costs, found)


@pytest.mark.parametrize("seed", range(10))
def test_a_stack_is_matched_layer_by_layer_in_any_order_of_vertices(seed):
    graph = stack(8, 9, seed)
    nodes, edges, _ = graph_to_records(graph)
    for each in (graph, shuffled(graph, nodes, edges, seed)):
        found = find_repetition(each, build_costs(each, ideal(3)))
        rows = {tuple(each.ids[v] for v in found.vertex[i:j].tolist()) for i, j in zip(found.ptr[:-1], found.ptr[1:], strict=True)}
        assert rows == {tuple(f"{i}.{j}" for i in range(8)) for j in range(9)}


@pytest.mark.parametrize("seed", range(3))
def test_a_stack_of_tiled_layers_is_matched_and_most_of_it_in_any_order_of_vertices(seed):
    """Tiles look alike. Where numbers do not help, some choices among them lead no further."""
    graph = build_workload("llama_stack", 8, "small", layers=5)
    nodes, edges, _ = graph_to_records(graph)
    for each, share in ((graph, 0.95), (shuffled(graph, [{**node, "kernel": None} for node in nodes], edges, seed), 0.7)):
        costs = build_costs(each, preset("v100x8"))
        found = find_repetition(each, costs)
        assert_isomorphism(each, costs, found)
        assert len(found.vertex) > share * each.work_vertices.size
        assert found.lengths.max() in (5, 6)  # the head begins with a norm, as a layer does


@pytest.mark.parametrize(("tiling", "optimizer"), [("published", "sgd"), ("data", "adam"), ("eindecomp", "momentum")])
def test_a_training_step_of_a_stack_repeats_forward_and_backward(tiling, optimizer):
    """The shift takes forward, backward pass and updates of a layer to those of a neighbour."""
    graph = build_workload("llama_stack", 4, "small", layers=5, tiling=tiling, optimizer=optimizer)
    costs = build_costs(graph, preset("p100x4"))
    found = find_repetition(graph, costs)
    assert_isomorphism(graph, costs, found)
    assert len(found.vertex) > 0.95 * graph.work_vertices.size
    layer = [re.search(r"L(\d+)\.", str(op)) for op in graph.meta_op]
    steps = [int(layer[w][1]) - int(layer[v][1]) for v, w in enumerate(found.next_vertex().tolist()) if w >= 0 and layer[v] and layer[w]]
    assert np.mean(np.abs(steps) == 1) > 0.99
    chained = {graph.meta_op[v] for v in found.vertex.tolist()}
    assert chained >= {"L2.gate", "d_L2.gated", "d_L2.w1", "new_L2.w1"}


def test_nothing_is_found_where_nothing_repeats():
    for name in ("chainmm", "ffnn", "llama_block", "llama_layer"):
        graph = build_workload(name, 8, "small")
        assert find_repetition(graph, build_costs(graph, preset("v100x8"))) is None
    graph = layered_graph(Layered(400, 10, 1.5, 2, 5, 1e10, 8e6, 0.5), 0)
    assert find_repetition(graph, build_costs(graph, preset("p100x4"))) is None


@given(seed=st.integers(0, 10**6), layers=st.integers(4, 9), copies=st.integers(2, 3))
def test_a_shorter_stack_is_the_stack_of_fewer_layers(seed, layers, copies):
    graph, shorter = stack(layers, 7, seed), stack(copies, 7, seed)
    costs = build_costs(graph, ideal(3))
    short = shorten(Problem(graph, costs), copies)
    left = short.problem
    assert _edges(left.graph) == _edges(shorter)
    assert left.graph.is_input.tolist() == shorter.is_input.tolist()
    assert left.costs.exec_s.tolist() == build_costs(shorter, ideal(3)).exec_s.tolist()
    assert [graph.ids[v] for v in short.vertex.tolist()] == list(left.graph.ids)


def test_a_stack_is_not_made_longer():
    costs = build_costs(graph := stack(4), ideal(2))
    assert shorten(Problem(graph, costs), 4) is None


def _edges(graph: DataflowGraph) -> list:
    return sorted(zip(graph.sources.tolist(), graph.targets.tolist(), np.nan_to_num(graph.transfer_s, nan=-1).tolist(), strict=True))
