"""One Dispatcher and one plan for several runs: each begins anew, also after one that ended early."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import DeadlockError, ExecutionError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.dispatch import Dispatcher, StartVertex, VertexEnded
from doppler_tf.schedule.simulator import Simulator
from runtime import EmulatedBackend, EmulatedExecutor, Engine
from tests.strategies import cases, cases_short_of_memory, examples


def simulated(dispatcher, costs):
    """Every time of a run, or None for a deadlock."""
    try:
        trace = Simulator().drive(dispatcher, costs)
    except DeadlockError:
        return None
    return [x.tolist() for x in (trace.start_s, trace.end_s, trace.transfer_start_s, trace.transfer_end_s)]


@examples(0.5)
@given(st.one_of(cases(max_devices=4), cases_short_of_memory()), st.integers(0, 5))
def test_each_run_of_a_dispatcher_is_as_the_first(case, steps):
    dispatcher = Dispatcher(case.graph, case.costs, case.assignment, case.rule)
    first = simulated(dispatcher, case.costs)
    running = dispatcher.begin()
    for now in range(steps):  # a run that is given up
        ended = [VertexEnded(x.vertex) for x in running if isinstance(x, StartVertex)]
        running = dispatcher.advance(float(now), ended)
    assert simulated(dispatcher, case.costs) == first
    assert simulated(Dispatcher(case.graph, case.costs, case.assignment, case.rule), case.costs) == first


def test_an_engine_runs_after_a_failure_and_keeps_priorities_apart(make_graph, place):
    graph = make_graph({0: (1.0, []), 1: (1.0, []), 2: (1.0, [])})
    costs = build_costs(graph, cpu(1))
    first = dataclasses.replace(place(graph, costs, 0), dispatch="order", priority=np.array([0.0, 1.0, 2.0]))
    last = dataclasses.replace(first, priority=np.array([2.0, 1.0, 0.0]))
    with EmulatedExecutor(time_scale=1e-3) as executor:
        for assignment, order in [(first, [0, 1, 2]), (last, [2, 1, 0]), (first, [0, 1, 2])]:
            trace = executor.execute(graph, costs, assignment)
            assert trace.vertex[np.argsort(trace.start_s)].tolist() == order

    class Fails(EmulatedBackend):
        broken = True

        def open(self, *arguments):
            session = super().open(*arguments)
            run_vertex = session.run_vertex

            def run(vertex, device):
                if self.broken and vertex == 1:
                    raise ValueError("broken")
                run_vertex(vertex, device)

            session.run_vertex = run
            return session

    backend = Fails(time_scale=1e-3)
    with Engine(backend, Dispatcher) as engine:
        for broken in (False, True, False):
            backend.broken = broken
            if broken:
                with pytest.raises(ExecutionError, match="broken"):
                    engine.execute(graph, costs, first)
            else:
                assert sorted(engine.execute(graph, costs, first).vertex.tolist()) == [0, 1, 2]
