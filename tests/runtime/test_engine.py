"""The engine itself, on emulated devices: rules of time, failure, interruption, deadlock, reuse."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from doppler_tf.errors import DeadlockError, ExecutionError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import Topology, cpu, ideal, p100x4
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedBackend, EmulatedExecutor, Engine, SynchronousExecutor


def topology(devices: int, slots: int = 1, link_slots: int | None = 1, memory_bytes: float | None = None) -> Topology:
    base = cpu(devices)
    return replace(base, devices=tuple(replace(d, slots=slots, memory_bytes=memory_bytes) for d in base.devices), link_slots=link_slots)


class BrokenBackend(EmulatedBackend):
    """Emulated devices on which one vertex, or one transfer, fails."""

    vertex = transfer = None
    error: BaseException = ValueError("it broke\nand this is the second line")

    def open(self, graph, costs, assignment, transfers):
        session = super().open(graph, costs, assignment, transfers)
        run_vertex, run_transfer = session.run_vertex, session.run_transfer

        def broken_vertex(vertex, device):
            if vertex == self.vertex:
                raise self.error
            run_vertex(vertex, device)

        def broken_transfer(transfer, producer, source, destination):
            if transfer == self.transfer:
                raise self.error
            run_transfer(transfer, producer, source, destination)

        session.run_vertex, session.run_transfer = broken_vertex, broken_transfer
        return session


@pytest.mark.parametrize("dispatch", ["fifo", "b_level", "order"])
@pytest.mark.parametrize(("slots", "link_slots"), [(1, 1), (2, 2), (1, None)])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_traces_are_valid_and_the_log_is_work_conserving(random_graph, place, devices, slots, link_slots, dispatch):
    graph = random_graph(60, seed=devices)
    costs = build_costs(graph, topology(devices, slots, link_slots))
    assignment = place(graph, costs, seed=7, order=graph.topological_order.tolist())
    with EmulatedExecutor(time_scale=5e-4, dispatch=dispatch) as executor:
        trace = executor.execute(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace).violations == ()  # measured by one monotonic clock: no tolerance needed
    report = validate_trace(graph, costs, assignment, trace.log)
    assert report.violations + report.idle == ()
    assert (trace.dispatch, trace.device_kind, trace.log.device_kind) == (dispatch, "emulated", "emulated")


def test_the_log_encloses_the_measured_times(random_graph, place):
    graph = random_graph(50, seed=0)
    costs = build_costs(graph, p100x4())
    with EmulatedExecutor(time_scale=1e-3) as executor:
        trace = executor.execute(graph, costs, place(graph, costs, seed=0))
    log = trace.log
    for early, late in [(log.start_s, trace.start_s), (trace.start_s, trace.end_s), (trace.end_s, log.end_s),
                        (log.transfer_start_s, trace.transfer_start_s), (trace.transfer_end_s, log.transfer_end_s)]:
        assert (early <= late).all()


def test_there_is_no_barrier(make_graph):
    graph = make_graph({"long": (0.3, []), "short": (0.01, []), "next": (0.01, ["short"])})
    costs = build_costs(graph, ideal(2))
    with EmulatedExecutor() as executor:
        trace = executor.execute(graph, costs, assignment_from_devices(graph, costs, [0, 1, 1]))
    assert trace.end_s[2] < trace.end_s[0]


@pytest.mark.parametrize(("link_slots", "makespan_s"), [(1, 4.0), (2, 2.0), (None, 1.0)])
def test_a_link_carries_as_many_transfers_at_once_as_it_has_slots(make_graph, link_slots, makespan_s):
    graph = make_graph({**{v: (0.0, []) for v in range(4)}, 4: (0.0, [0, 1, 2, 3])}, transfer_s=1.0)
    costs = build_costs(graph, topology(2, link_slots=link_slots))
    with EmulatedExecutor(time_scale=0.3) as executor:
        trace = executor.execute(graph, costs, assignment_from_devices(graph, costs, [0, 0, 0, 0, 1]))
    assert makespan_s <= trace.makespan_s < makespan_s + 0.9


def test_waiting_takes_no_processor_time(make_graph):
    graph = make_graph({0: (0.5, [])})
    costs = build_costs(graph, ideal(1))
    with EmulatedExecutor() as executor:
        before = time.process_time()
        executor.execute(graph, costs, assignment_from_devices(graph, costs, [0]))
    assert time.process_time() - before < 0.1


def test_a_failing_vertex_ends_the_run_and_names_vertex_and_device_every_time(random_graph, place):
    backend = BrokenBackend(time_scale=1e-4)
    executor = Engine(backend, Dispatcher)
    graph = random_graph(40, seed=1)
    costs = build_costs(graph, p100x4())
    threads = threading.active_count()
    for seed in range(50):
        assignment = place(graph, costs, seed)
        backend.vertex = int(np.random.default_rng(seed).integers(graph.num_vertices))
        device = costs.topology.device_names[assignment.device[backend.vertex]]
        with pytest.raises(ExecutionError) as caught:
            executor.execute(graph, costs, assignment)
        assert str(caught.value) == f"toy: vertex '{backend.vertex}' failed on device '{device}': ValueError: it broke"
        assert caught.value.__cause__ is backend.error
        assert threading.active_count() == threads
    backend.vertex = None
    assert validate_trace(graph, costs, assignment, executor.execute(graph, costs, assignment)).valid
    executor.close()


def test_a_failing_transfer_names_both_devices(make_graph):
    graph = make_graph({0: (0.0, []), 1: (0.0, [0])})
    costs = build_costs(graph, ideal(2))
    backend = BrokenBackend()
    backend.transfer = 0
    with pytest.raises(ExecutionError, match="transfer of vertex '0' failed from device 'device:1' to 'device:0': ValueError: it broke"):
        Engine(backend, Dispatcher).execute(graph, costs, assignment_from_devices(graph, costs, [1, 0]))


def test_a_failure_does_not_wait_for_what_else_runs(make_graph):
    graph = make_graph({0: (60.0, []), 1: (0.01, []), 2: (0.01, [1])})
    costs = build_costs(graph, ideal(2))
    backend = BrokenBackend()
    backend.vertex = 2
    begun_s = time.perf_counter()
    with pytest.raises(ExecutionError):
        Engine(backend, Dispatcher).execute(graph, costs, assignment_from_devices(graph, costs, [0, 1, 1]))
    assert time.perf_counter() - begun_s < 20


def test_a_worker_survives_even_a_system_exit(make_graph):
    graph = make_graph({0: (0.0, [])})
    costs = build_costs(graph, ideal(1))
    backend = BrokenBackend()
    backend.vertex, backend.error = 0, SystemExit(3)
    with pytest.raises(ExecutionError, match="SystemExit: 3"):
        Engine(backend, Dispatcher).execute(graph, costs, assignment_from_devices(graph, costs, [0]))


@pytest.mark.usefixtures("ctrl_c")
def test_interrupting_the_main_thread_cancels_and_joins(make_graph):
    graph = make_graph({0: (60.0, []), 1: (60.0, [])})
    costs = build_costs(graph, ideal(2))
    assignment = assignment_from_devices(graph, costs, [0, 1])
    executor = EmulatedExecutor()
    threads = threading.active_count()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun_s = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        executor.execute(graph, costs, assignment)
    timer.join()
    assert time.perf_counter() - begun_s < 20
    assert threading.active_count() == threads


@pytest.mark.parametrize("make", [lambda: EmulatedExecutor(1e-3), lambda: SynchronousExecutor(EmulatedBackend(1e-3))])
def test_a_deadlock_says_why_and_leaves_the_executor_usable(make_graph, make):
    graph = make_graph({"a": (1.0, []), "b": (1.0, ["a"])}, output_bytes=6.0)
    assignment = assignment_from_devices(graph, build_costs(graph, ideal(2)), [0, 0])
    with make() as executor:
        with pytest.raises(DeadlockError, match=r"vertex 'b' alone needs 12 bytes .*, no device has more than 10"):
            executor.execute(graph, build_costs(graph, topology(2, memory_bytes=10)), assignment)
        roomy = build_costs(graph, topology(2, memory_bytes=12))
        assert validate_trace(graph, roomy, assignment, executor.execute(graph, roomy, assignment)).valid


def test_memory_is_kept_to_on_the_measured_times(random_graph, place):
    graph = random_graph(40, seed=3)
    costs = build_costs(graph, topology(2, memory_bytes=22))
    assignment = place(graph, costs, seed=3)
    with EmulatedExecutor(time_scale=2e-4) as executor:
        trace = executor.execute(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace).violations == ()
    assert validate_trace(graph, costs, assignment, trace.log).idle == ()


def test_threads_serve_many_runs_and_leave_on_close(random_graph, place):
    graph = random_graph(30, seed=2)
    costs = build_costs(graph, p100x4())
    before = threading.active_count()
    with EmulatedExecutor(time_scale=1e-5) as executor:
        counts = set()
        for seed in range(20):
            executor.execute(graph, costs, place(graph, costs, seed))
            counts.add(threading.active_count())
        assert max(counts) == before + 4 + 12  # four devices, twelve links, one slot each
    assert threading.active_count() == before
    executor.execute(graph, costs, place(graph, costs, 0))
    executor.close()
