"""Emulated devices take the modelled time; their traces read in modelled seconds."""

import numpy as np
import pytest

from doppler_tf.errors import ConfigError
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.topology import ideal, p100x4
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.simulator import simulate
from runtime import EmulatedExecutor

TICK_S = 1e-12  # the clock's differences are rounded


@pytest.mark.parametrize("time_scale", [2e-3, 5e-3])
def test_everything_takes_its_modelled_seconds_at_least_and_the_makespan_is_the_simulators_and_a_little(random_graph, place, time_scale):
    graph = random_graph(80, seed=5)
    costs = build_costs(graph, p100x4())
    assignment = place(graph, costs, seed=5)
    with EmulatedExecutor(time_scale) as executor:
        trace = executor.execute(graph, costs, assignment)
    simulated = simulate(graph, costs, assignment)
    assert (trace.end_s - trace.start_s >= costs.exec_s[trace.vertex, trace.device] - TICK_S / time_scale).all()
    assert (trace.transfer_end_s - trace.transfer_start_s >= 0.5 - TICK_S / time_scale).all()
    assert len(trace.producer) == len(simulated.producer)
    busiest_s = max(costs.exec_s[assignment.device == d, d].sum() for d in range(4))
    assert busiest_s <= trace.makespan_s < 3 * simulated.makespan_s


def test_a_chain_has_only_one_schedule_so_it_cannot_beat_the_simulator(make_graph):
    graph = make_graph({v: (1.0, [v - 1] if v else []) for v in range(6)}, transfer_s=2.0)
    costs = build_costs(graph, ideal(2))
    assignment = assignment_from_devices(graph, costs, [0, 1, 0, 1, 1, 0])
    with EmulatedExecutor(5e-3) as executor:
        makespan_s = executor.execute(graph, costs, assignment).makespan_s
    assert 14.0 == simulate(graph, costs, assignment).makespan_s <= makespan_s < 28.0


def test_noise_is_drawn_anew_for_each_run_and_the_same_for_a_seed(random_graph, place):
    graph = random_graph(20, seed=6)
    costs = build_costs(graph, p100x4())
    assignment = place(graph, costs, seed=6)
    with EmulatedExecutor(1e-4, noise_sigma=0.5, seed=3) as one, EmulatedExecutor(1e-4, noise_sigma=0.5, seed=3) as other:
        drawn = []
        for _ in range(3):
            trace = one.execute(graph, costs, assignment)
            other.execute(graph, costs, assignment)
            np.testing.assert_array_equal(one.noise.vertex, other.noise.vertex)
            np.testing.assert_array_equal(one.noise.transfer, other.noise.transfer)
            expected_s = costs.exec_s[trace.vertex, trace.device] * one.noise.vertex[trace.vertex]
            assert (trace.end_s - trace.start_s >= expected_s - TICK_S / 1e-4).all()
            drawn.append(one.noise.vertex)
    assert len({factors.tobytes() for factors in drawn}) == 3
    assert drawn[0].shape == draw_noise(graph.num_vertices, 4, 0.5, 0).vertex.shape


def test_without_noise_there_are_no_factors(make_graph):
    graph = make_graph({0: (0.0, [])})
    costs = build_costs(graph, ideal(1))
    with EmulatedExecutor() as executor:
        executor.execute(graph, costs, assignment_from_devices(graph, costs, [0]))
        assert executor.noise is None
        assert executor.outputs == {}


@pytest.mark.parametrize("options", [{"time_scale": 0.0}, {"time_scale": float("nan")}, {"noise_sigma": -1.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        EmulatedExecutor(**options)


def test_an_unknown_dispatch_rule_is_refused(make_graph):
    graph = make_graph({0: (0.0, [])})
    costs = build_costs(graph, ideal(1))
    with pytest.raises(ConfigError, match="rule: expected one of fifo"):
        EmulatedExecutor(dispatch="lifo").execute(graph, costs, assignment_from_devices(graph, costs, [0]))
