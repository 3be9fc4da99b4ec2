"""What a served model computes from plain tensors is what the library computes from graphs: features, seconds, placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, reject
from hypothesis import strategies as st

from agents.episodes.episode import padded_graphs
from agents.episodes.features import graph_arrays
from agents.serving.tensor_features import PROBLEM, Identities, Problem, graphs_of_problem, problem_of
from agents.serving.tensor_simulator import makespans
from data import build_workload
from doppler_tf.errors import CostError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from tests.strategies import SECONDS, examples

_IDENTITIES = Identities(True)
_BATCH = tf.function(lambda *problem: graphs_of_problem(Problem(*problem), _IDENTITIES), PROBLEM, autograph=False)
_MAKESPANS = tf.function(lambda device, *problem: makespans(Problem(*problem), device),
                         (tf.TensorSpec([None, None], tf.int32), *PROBLEM), autograph=False)
_ORDERED = tf.function(lambda device, position, *problem: makespans(Problem(*problem), device, position),
                       (*[tf.TensorSpec([None, None], tf.int32)] * 2, *PROBLEM), autograph=False)


@st.composite
def problems(draw, complete: bool = True):
    """Costs of a random graph full of ties and zeros on links that never wait; some devices cannot run some vertices.

    Args: complete: else links are missing and memory is short.
    """
    devices = draw(st.integers(1, 4))
    speed = st.sampled_from([1, 2, 3])
    row = st.lists(speed if complete else st.sampled_from([1, 2, 0]), min_size=devices, max_size=devices)
    links = {"bandwidth_bytes_per_s": draw(speed if complete else st.lists(row, min_size=devices, max_size=devices)),
             "latency_s": draw(st.sampled_from([0, 0, 1, 0.1]))}
    memory = st.none() if complete else st.sampled_from([None, 4, 8])
    topology = Topology.from_json({"devices": [{"name": f"d{d}", "flops_per_s": 1, "memory_bytes": draw(memory)} for d in range(devices)],
                                   "links": links, "link_slots": None})
    count = draw(st.integers(1, 14))
    by_device = st.lists(st.one_of(SECONDS, st.none()), min_size=devices, max_size=devices).filter(any_given)
    nodes = [{"id": v, "exec_s": draw(st.one_of(SECONDS, by_device)), "output_bytes": 0 if complete else draw(st.integers(0, 4))}
             for v in range(count)]
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30, unique=True))
    edges = [{"source": u, "target": v, **({"transfer_s": draw(SECONDS)} if draw(st.booleans()) else {"bytes": draw(st.integers(0, 4))})}
             for u, v in pairs if u < v]
    graph = graph_from_records(nodes, edges, {"name": "drawn"}, "drawn")
    try:
        return graph, build_costs(graph, topology)
    except CostError:  # no assignment does with these links
        reject()


def any_given(row: list) -> bool:
    return any(seconds is not None for seconds in row)


def assert_batches_equal(graph, costs, but: tuple[str, ...] = ()):
    expected = padded_graphs([graph_arrays(graph, costs)])
    got = _BATCH(*problem_of(graph, costs))
    for name, mine, theirs in zip(expected._fields, got, expected, strict=True):
        if name in but:
            continue
        assert mine.dtype == theirs.dtype, name
        if theirs.dtype == tf.float32:
            np.testing.assert_allclose(mine, theirs, rtol=3e-7, atol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


@examples(0.5)
@given(problems())
def test_features_of_drawn_graphs(problem):
    assert_batches_equal(*problem)


@examples(0.5)
@given(problems(complete=False))
def test_features_of_drawn_graphs_without_some_links(problem):
    """The library knows from the start which devices links make useless, the model when it chooses."""
    assert_batches_equal(*problem, but=("allowed",))


@examples(0.5)
@given(problems(complete=False), st.integers(0, 2**32 - 1))
def test_what_cannot_run_or_waits_for_memory_takes_infinitely_long(problem, seed):
    graph, costs = problem
    rng = np.random.default_rng(seed)
    device = rng.integers(0, costs.num_devices, (20, graph.num_vertices)).astype(np.int32)
    device[10:] = rng.integers(0, costs.num_devices, (10, 1))  # these need no links
    got, expected = _MAKESPANS(device, *problem_of(graph, costs)).numpy(), FastSimulator(graph, costs).makespans(device)
    np.testing.assert_array_equal(got[np.isfinite(got)], expected[np.isfinite(got)])
    roomy = tuple(replace(d, memory_bytes=None) for d in costs.topology.devices)
    unlimited = replace(costs, topology=replace(costs.topology, devices=roomy))
    np.testing.assert_array_equal(_MAKESPANS(device, *problem_of(graph, unlimited)), FastSimulator(graph, unlimited).makespans(device))


@pytest.mark.parametrize(("vertices", "topology"), [(10, "p100x4"), (60, "v100x8"), (500, "cpu:3")])
def test_features_of_layered_graphs(vertices, topology):
    graph = build_workload("layered", 8, "small", seed=vertices, vertices=vertices)
    assert_batches_equal(graph, build_costs(graph, read_topology(topology)))


@given(problems(), st.integers(0, 2**32 - 1))
def test_seconds_of_drawn_graphs(problem, seed):
    graph, costs = problem
    device = np.random.default_rng(seed).integers(0, costs.num_devices, (5, graph.num_vertices)).astype(np.int32)
    np.testing.assert_array_equal(_MAKESPANS(device, *problem_of(graph, costs)), FastSimulator(graph, costs).makespans(device))


@given(problems(), st.integers(0, 2**32 - 1))
def test_seconds_of_drawn_graphs_in_a_given_order(problem, seed):
    graph, costs = problem
    rng = np.random.default_rng(seed)
    device = rng.integers(0, costs.num_devices, (5, graph.num_vertices)).astype(np.int32)
    order = rng.permuted(np.tile(graph.work_vertices, (5, 1)), axis=1)
    got = _ORDERED(device, np.argsort(order, axis=1).astype(np.int32), *problem_of(graph, costs))
    np.testing.assert_array_equal(got, FastSimulator(graph, costs, "order").makespans(device, order))
