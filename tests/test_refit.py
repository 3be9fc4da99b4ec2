"""Costs refitted to runs: exact where runs are free of noise, robust where they are not, and sensible where nothing was seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.refit import measured_factors, refitted_costs
from doppler_tf.schedule.simulator import simulate
from tests.strategies import cases

TWO = Topology.from_json({"devices": [{"name": "a"}, {"name": "b"}], "links": {"bandwidth_bytes_per_s": 2.0, "latency_s": 1.0}})


def changed(graph, costs, by_exec, link, explicit):
    """`costs` times factors: [K, D], [D, D], number."""
    topology = costs.topology
    truth = replace(topology, latency_s=topology.latency_s * link, bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / link)
    kind = np.unique(graph.kinds, return_inverse=True)[1]
    return replace(costs, topology=truth, exec_s=costs.exec_s * by_exec[kind], explicit_transfer_s=costs.explicit_transfer_s * explicit)


def pair(*kinds):
    """Vertices in a row, 2 s each, that hand on 4 bytes."""
    nodes = [{"id": v, "kind": kind, "exec_s": 2.0, "output_bytes": 4} for v, kind in enumerate(kinds)]
    return graph_from_records(nodes, [{"source": v, "target": v + 1} for v in range(len(kinds) - 1)], {"name": "row"})


@given(cases(1, 4, noise=False), st.integers(0, 2**32 - 1))
def test_one_run_without_noise_shows_the_factors_of_all_that_took_time(case, seed):
    case = case.without_shares  # a trace does not tell which vertex took longer for a transfer
    rng, count = np.random.default_rng(seed), case.costs.num_devices
    by_exec, link, explicit = rng.uniform(0.25, 4, (len(set(case.graph.kinds)), count)), rng.uniform(0.25, 4, (count, count)), 3.0
    truth = changed(case.graph, case.costs, by_exec, link, explicit)
    trace = simulate(case.graph, truth, case.assignment, case.rule)
    found = measured_factors(case.graph, case.costs, trace)
    for got, expected in zip(found, (by_exec, link, np.array([explicit])), strict=True):
        seen = ~np.isnan(got)
        np.testing.assert_allclose(got[seen], expected[seen], rtol=1e-6, atol=1e-9)
    took_s = case.costs.exec_s[trace.vertex, trace.device]
    kind = np.unique(case.graph.kinds, return_inverse=True)[1]
    group_s = np.bincount(kind[trace.vertex] * count + trace.device, took_s, found.exec.size)
    assert not np.isnan(found.exec.ravel()[(group_s > 0) & (group_s >= 1e-3 * took_s.sum())]).any()


def test_what_transfers_take_from_a_device_is_no_factor_of_its_vertices():
    """a's output goes to b for 3 s, beside b's first vertex, which takes 4 s and 1.5 s more."""
    nodes = [{"id": v, "kind": v, "exec_s": exec_s, "output_bytes": 4} for v, exec_s in (("a", 1), ("b", 4), ("c", 1))]
    graph = graph_from_records(nodes, [{"source": "a", "target": "c"}], {"name": "beside"})
    costs = build_costs(graph, replace(TWO, destination_share=np.array([[0, 0.5], [0.5, 0]])))
    trace = simulate(graph, costs, assignment_from_devices(graph, costs, [0, 1, 1]))
    assert trace.end_s.tolist() == [1.0, 5.5, 6.5]
    shown = measured_factors(graph, costs, trace)
    assert (shown.exec[0, 0], shown.exec[1, 1], shown.exec[2, 1], shown.link[0, 1]) == (1.0, 1.0, 1.0, 1.0)


@given(cases(1, 4, noise=False))
def test_a_run_by_the_costs_themselves_shows_no_factors(case):
    """Whatever transfers take from devices of one slot; where nothing takes no time, the trace tells who pays."""
    devices = tuple(replace(device, slots=1) for device in case.costs.topology.devices)
    costs = replace(case.costs, exec_s=case.costs.exec_s + 0.1, topology=replace(case.costs.topology, devices=devices))
    found = measured_factors(case.graph, costs, simulate(case.graph, costs, case.assignment, case.rule))
    for factor in found:
        np.testing.assert_allclose(factor[~np.isnan(factor)], 1.0, rtol=1e-6)


def test_a_group_of_next_to_no_time_shows_nothing_but_overhead():
    graph = graph_from_records([{"id": v, "kind": "x", "exec_s": [1e-9, 1.0][v]} for v in range(2)], [], {"name": "uneven"})
    costs = build_costs(graph, TWO)
    assignment = assignment_from_devices(graph, costs, [0, 1])
    late = simulate(graph, replace(costs, exec_s=costs.exec_s + 1e-4), assignment)
    shown = measured_factors(graph, costs, late)
    assert np.isnan(shown.exec[0, 0])
    np.testing.assert_allclose(refitted_costs(graph, costs, [shown]).exec_s[1], [1.0001, 1.0001])


@given(cases(1, 4, noise=False), st.integers(0, 2**32 - 1))
def test_costs_that_differ_by_one_factor_are_found_whole(case, seed):
    factor, case = float(np.random.default_rng(seed).uniform(0.25, 4)), case.without_shares
    count = case.costs.num_devices
    truth = changed(case.graph, case.costs, np.full((len(set(case.graph.kinds)), count), factor), np.full((count, count), factor), factor)
    trace = simulate(case.graph, truth, case.assignment, case.rule)
    shown = measured_factors(case.graph, case.costs, trace)
    if np.isnan(shown.link).all() or np.isnan(shown.exec).all():
        return  # nothing of a sort took time: what it costs is unknown
    refitted = refitted_costs(case.graph, case.costs, [shown])
    np.testing.assert_allclose(refitted.exec_s, truth.exec_s, rtol=1e-6)
    np.testing.assert_allclose(refitted.topology.latency_s, truth.topology.latency_s, rtol=1e-6)
    source, target = case.assignment.device[case.graph.sources], case.assignment.device[case.graph.targets]
    edges = np.flatnonzero(~case.graph.is_input[case.graph.sources])
    took_s = [each.transfer_s(edges, source[edges], target[edges]) for each in (refitted, truth)]
    np.testing.assert_allclose(*took_s, rtol=1e-6)  # rounding may change who wins a tie, and with it the makespan


def test_a_link_takes_three_modelled_seconds_and_six_measured_ones():
    graph = pair("x", "x")
    costs = build_costs(graph, TWO)
    truth = changed(graph, costs, np.array([[1.5, 1.0]]), np.full((2, 2), 2.0), 1.0)
    trace = simulate(graph, truth, assignment_from_devices(graph, costs, [0, 1]))
    assert trace.makespan_s == 3 + 6 + 2
    found = measured_factors(graph, costs, trace)
    np.testing.assert_array_equal(found.exec, [[1.5, 1.0]])
    np.testing.assert_array_equal(found.link, [[np.nan, 2.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.explicit, [np.nan])
    refitted = refitted_costs(graph, costs, [found])
    assert refitted.transfer_s(0, 1, 0) == 6.0  # the way back was never gone: as dear as the other links
    assert costs.transfer_s(0, 1, 0) == 3.0


def test_the_median_run_counts_and_unseen_kinds_take_after_their_like():
    graph = pair("x", "y", "x")
    costs = build_costs(graph, TWO)
    on_a = assignment_from_devices(graph, costs, [0, 0, 0])
    runs = [measured_factors(graph, costs, simulate(graph, changed(graph, costs, np.array([[x, 1.0], [4.0, 1.0]]), np.ones((2, 2)), 1.0),
                                                    on_a)) for x in (2.0, 2.5, 90.0)]
    refitted = refitted_costs(graph, costs, runs)
    np.testing.assert_array_equal(refitted.exec_s, [[5.0, 5.0], [8.0, 8.0], [5.0, 5.0]])  # device b is as slow as a, as far as known
    np.testing.assert_array_equal(refitted.topology.bandwidth_bytes_per_s, TWO.bandwidth_bytes_per_s)


def test_of_unequal_durations_the_long_ones_decide():
    nodes = [{"id": v, "exec_s": seconds} for v, seconds in enumerate((10.0, 1.0, 1.0))]
    graph = graph_from_records(nodes, [], {"name": "uneven"})
    costs = build_costs(graph, TWO)
    trace = simulate(graph, replace(costs, exec_s=costs.exec_s * np.array([[2.0], [7.0], [7.0]])),
                     assignment_from_devices(graph, costs, [0, 0, 0]))
    assert measured_factors(graph, costs, trace).exec[0, 0] == 2.0
