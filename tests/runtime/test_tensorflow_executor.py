"""Real kernels on logical devices: the same numbers as the unsharded program, wherever the vertices run."""

import threading
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from data import (
    WORKLOADS,
    assemble_outputs,
    build_workload,
    evaluate_program,
    input_tiles,
    output_vertices,
    relative_error,
    workload_program,
)
from doppler_tf.errors import ConfigError, ExecutionError, GraphError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices, plan_transfers
from doppler_tf.schedule.validation import validate_trace
from runtime import SynchronousExecutor, TensorFlowBackend, TensorFlowExecutor, prepare_devices
from runtime.calls import KernelCall
from tests.crossed import crossed
from tests.watched_devices import watched_executor


class Case:
    """A small workload, its inputs, and what the unsharded program makes of them."""

    def __init__(self, name):
        self.graph = build_workload(name, 4, scale="small")
        record = self.graph.attributes["workload"]
        program = workload_program(record)
        tensors = program.draw_inputs(record["seed"])
        self.inputs, self.fetch = input_tiles(self.graph, tensors), output_vertices(self.graph)
        self.expected = evaluate_program(program, tensors)

    def place(self, devices, seed):
        costs = build_costs(self.graph, cpu(devices))
        chosen = np.random.default_rng(seed).integers(0, devices, self.graph.num_vertices).tolist()
        return costs, assignment_from_devices(self.graph, costs, chosen)

    def error(self, executor):
        return relative_error(assemble_outputs(self.graph, executor.outputs), self.expected)


case_of = cache(Case)


@pytest.fixture(params=sorted(WORKLOADS))
def case(request):
    return case_of(request.param)


@pytest.fixture
def chain():
    return case_of("chainmm")


@pytest.mark.parametrize(*crossed(name=sorted(WORKLOADS), devices=[1, 2, 4]))
def test_random_assignments_equal_the_unsharded_program(name, devices):
    case = case_of(name)
    with TensorFlowExecutor(case.inputs, case.fetch) as executor:
        for seed in range(3):
            costs, assignment = case.place(devices, seed)
            trace = executor.execute(case.graph, costs, assignment)
            assert case.error(executor) <= 1e-5
            assert validate_trace(case.graph, costs, assignment, trace).violations == ()
            assert validate_trace(case.graph, costs, assignment, trace.log).work_conserving
            assert trace.device_kind == "tf"


def test_the_synchronous_engine_computes_the_same(case):
    costs, assignment = case.place(4, seed=1)
    with SynchronousExecutor(TensorFlowBackend(case.inputs, case.fetch)) as executor:
        trace = executor.execute(case.graph, costs, assignment)
        assert case.error(executor) <= 1e-5
    report = validate_trace(case.graph, costs, assignment, trace.log)
    assert report.valid
    assert not report.work_conserving


def test_kernels_run_on_their_device_and_never_on_the_coordinators_thread(chain, monkeypatch, four_devices):
    seen, compute = set(), KernelCall.__call__

    def spy(self, operands, device):
        (output,) = compute(self, operands, device)
        seen.add((device, threading.current_thread().name.split("#")[0]))
        assert len({tf.DeviceSpec.from_string(name).device_index for name in (device, output.device)}) == 1
        return [output]

    costs, assignment = chain.place(4, seed=2)
    with TensorFlowExecutor(chain.inputs, warmup=False) as executor:
        executor.execute(chain.graph, costs, assignment)  # compiles, on this thread
        monkeypatch.setattr(KernelCall, "__call__", spy)
        executor.execute(chain.graph, costs, assignment)
    assert {tf.DeviceSpec.from_string(d).device_index for d, _ in seen} == {0, 1, 2, 3}
    assert {thread for _, thread in seen} <= {f"CPU:{d}" for d in range(4)}


def test_operands_are_on_the_device_of_their_call(case, monkeypatch, four_devices):
    """Else TensorFlow makes a function anew for each combination of devices, which takes longer than most kernels."""
    call, elsewhere = KernelCall.__call__, []

    def noted(self, operands, device):
        elsewhere.extend((x.device, device) for x in operands if not x.device.endswith(device))
        return call(self, operands, device)

    monkeypatch.setattr(KernelCall, "__call__", noted)
    costs, assignment = case.place(4, 3)
    with TensorFlowExecutor(case.inputs, case.fetch) as executor:
        assert len(executor.execute(case.graph, costs, assignment).transfer_start_s)
        assert case.error(executor) <= 1e-5
    assert elsewhere == []


@pytest.mark.parametrize("keep_inputs", [False, True])
def test_inputs_may_stay_on_the_devices(chain, keep_inputs):
    with TensorFlowExecutor(chain.inputs, chain.fetch, keep_inputs=keep_inputs) as executor:
        for seed in range(3):
            executor.execute(chain.graph, *chain.place(2, seed))
            assert chain.error(executor) <= 1e-5


@pytest.mark.parametrize(("warmup", "calls"), [(True, 3), (False, 2)])
def test_only_the_first_run_is_done_twice(chain, warmup, calls):
    ran = []
    with watched_executor(lambda *call: ran.append(call), chain.inputs, warmup=warmup) as executor:
        for seed in range(2):
            executor.execute(chain.graph, *chain.place(2, seed))
    assert sum(method == "run_vertex" for method, *_ in ran) == calls * len(chain.graph.work_vertices)


@pytest.mark.parametrize("runs", [10, pytest.param(50, marks=pytest.mark.thorough)])
def test_a_failing_kernel_ends_the_run_every_time_and_the_executor_lives_on(chain, runs):
    doomed = None

    def spy(method, vertex, *_):
        if method == "run_vertex" and vertex == doomed:
            raise tf.errors.InvalidArgumentError(None, None, "matrices of other sizes")

    executor = watched_executor(spy, chain.inputs, chain.fetch)
    executor.execute(chain.graph, *chain.place(4, seed=0))
    executor.close()
    threads = threading.active_count()
    for seed in range(runs):
        costs, assignment = chain.place(4, seed)
        v = doomed = int(np.random.default_rng(seed).choice(chain.graph.work_vertices))
        with pytest.raises(ExecutionError) as caught:
            executor.execute(chain.graph, costs, assignment)
        assert chain.graph.vertex_label(v) in str(caught.value)
        assert f"on device 'CPU:{assignment.device[v]}'" in str(caught.value)
        assert "InvalidArgumentError: matrices of other sizes" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert executor.outputs == {}
        assert threading.active_count() == threads
    doomed = None
    executor.execute(chain.graph, *chain.place(4, seed=0))
    assert chain.error(executor) <= 1e-5
    executor.close()


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_the_calling_thread_runs_the_only_vertex_unless_time_is_limited(timeout_s):
    kernel = {"op": "map", "params": {"fn": "square", "subscripts": "ab->ab"}, "operands": [{"vertex": "x"}]}
    graph = graph_from_records([{"id": "x", "input": True, "output_bytes": 16}, {"id": "a", "exec_s": 1.0, "output_bytes": 16,
                                "kernel": kernel}], [{"source": "x", "target": "a"}], {"name": "toy"})
    costs = build_costs(graph, cpu(2))
    assignment, ran = assignment_from_devices(graph, costs, [None, 1]), []

    def before(*_):
        ran.append(threading.current_thread())
        if len(ran) == 3:
            raise tf.errors.InvalidArgumentError(None, None, "matrices of other sizes")

    with watched_executor(before, {0: np.array([[2.0, 3.0]], np.float32)}, timeout_s=timeout_s) as executor:
        trace = executor.execute(graph, costs, assignment)
        assert validate_trace(graph, costs, assignment, trace.log).work_conserving
        np.testing.assert_array_equal(executor.outputs[1], [[4.0, 9.0]])
        assert [thread is threading.current_thread() for thread in ran] == [timeout_s is None] * 2
        with pytest.raises(ExecutionError, match="toy: vertex 'a' failed on device 'CPU:1': InvalidArgumentError: matrices"):
            executor.execute(graph, costs, assignment)
        executor.execute(graph, costs, assignment)
        np.testing.assert_array_equal(executor.outputs[1], [[4.0, 9.0]])


def test_a_vertex_without_kernel_is_refused_before_anything_runs(chain):
    graph = graph_from_records([{"id": "a", "exec_s": 1.0, "output_bytes": 4}], [], {"name": "toy"})
    costs = build_costs(graph, cpu(1))
    with pytest.raises(GraphError, match="toy: vertex 'a': kernel: expected one, got none"):
        watched_executor(lambda *call: pytest.fail("ran"), {}).execute(graph, costs, assignment_from_devices(graph, costs, [0]))


def test_an_absent_input_is_refused(chain):
    with pytest.raises(ConfigError, match=r"chainmm: input vertex .*: inputs: expected a tensor, got none"):
        TensorFlowExecutor({}).execute(chain.graph, *chain.place(1, 0))


def test_too_few_devices_are_refused(chain, four_devices):
    with pytest.raises(ConfigError, match="expected 4 TensorFlow devices for cpu:4, got 2"):
        TensorFlowExecutor(chain.inputs, devices=four_devices[:2]).execute(chain.graph, *chain.place(4, 0))


class TestSession:
    """One edge from device 0 to device 1, by hand."""

    @pytest.fixture
    def session(self):
        kernel = {"op": "map", "params": {"fn": "square", "subscripts": "ab->ab"}}
        nodes = [{"id": "x", "input": True, "output_bytes": 16},
                 {"id": "a", "exec_s": 1.0, "output_bytes": 16, "kernel": {**kernel, "operands": [{"vertex": "x"}]}},
                 {"id": "b", "exec_s": 1.0, "output_bytes": 16, "kernel": {**kernel, "operands": [{"vertex": "a"}]}}]
        graph = graph_from_records(nodes, [{"source": "x", "target": "a"}, {"source": "a", "target": "b"}], {"name": "toy"})
        costs = build_costs(graph, cpu(2))
        assignment = assignment_from_devices(graph, costs, [None, 0, 1])
        backend = TensorFlowBackend({0: np.array([[2.0, 3.0]], np.float32)}, fetch=[1])
        return backend.open(graph, costs, assignment, plan_transfers(graph, costs, assignment.device))

    def test_outputs_are_what_nothing_consumes_and_what_is_fetched(self, session):
        session.run_vertex(1, 0)
        session.run_transfer(0, 1, 0, 1)
        session.free(1, 0)
        session.run_vertex(2, 1)
        session.free(1, 1)
        assert session.kept == {1: 0, 2: 1}
        np.testing.assert_array_equal(session.fetch(1), [[4.0, 9.0]])
        np.testing.assert_array_equal(session.fetch(2), [[16.0, 81.0]])

    def test_a_transfer_hands_the_tensor_over(self, session, monkeypatch):
        compute, seen = KernelCall.__call__, []

        def keep(self, operands, device):
            (output,) = compute(self, operands, device)
            seen.append((operands[0], output))
            return [output]

        monkeypatch.setattr(KernelCall, "__call__", keep)
        session.run_vertex(1, 0)
        session.run_transfer(0, 1, 0, 1)
        session.run_vertex(2, 1)
        (_, original), (copy, _) = seen
        np.testing.assert_array_equal(original, copy)
        if "CPU" in copy.device:  # memory that the host can look at: logical CPUs share it
            assert np.shares_memory(np.asarray(memoryview(original)), np.asarray(memoryview(copy)))

    def test_what_is_freed_is_gone(self, session):
        session.run_vertex(1, 0)
        session.free(0, 0)
        with pytest.raises(KeyError):
            session.run_vertex(1, 0)

    def test_a_freed_copy_is_gone_though_its_original_is_fetched(self, session):
        session.run_vertex(1, 0)
        session.run_transfer(0, 1, 0, 1)
        session.free(1, 1)
        with pytest.raises(KeyError):
            session.run_vertex(2, 1)


def test_prepared_devices_are_the_first_ones_and_their_number_is_fixed(four_devices):
    assert prepare_devices(2) == four_devices[:2]
    with pytest.raises(ConfigError, match=r"call runtime.prepare_devices\(1000\) before the first TensorFlow operation"):
        prepare_devices(1000)
