"""Memory while running: what is counted, what is freed, what waits, and what does not fit."""

import gc
import weakref
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from data import build_workload, input_tiles, output_vertices, workload_program
from doppler_tf.errors import DeadlockError, ExecutionError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.dispatch import Dispatcher, Free, StartTransfer, StartVertex, TransferEnded, VertexEnded
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedExecutor, MergedExecutor, SynchronousExecutor, TensorFlowBackend, TensorFlowExecutor
from runtime.calls import KernelCall
from tests.watched_devices import watched_executor


def topology(devices, memory_bytes=None, slots=1):
    base = cpu(devices)
    return replace(base, devices=tuple(replace(d, slots=slots, memory_bytes=memory_bytes) for d in base.devices))


@pytest.fixture
def uneven_graph():
    """graph(count, seed): inputs and vertices of whole, uneven sizes."""
    def make(count, seed):
        rng = np.random.default_rng(seed)
        nodes = [{"id": v, "output_bytes": int(rng.integers(1, 100)), **({"input": True} if v < 3 else {"exec_s": float(rng.random())})}
                 for v in range(count)]
        edges = [{"source": p, "target": v, "transfer_s": 0.3}
                 for v in range(3, count) for p in sorted({int(p) for p in rng.integers(max(0, v - 8), v, 2)})]
        return graph_from_records(nodes, edges, {"name": "toy"})
    return make


def replayed_peak_bytes(graph, costs, assignment, log):
    """Peaks by the instructions of another dispatcher, which is told of the log's ends; it must write the same log."""
    dispatcher = Dispatcher(graph, costs, assignment, log.dispatch)
    ends = sorted([*((t, VertexEnded(v)) for v, t in zip(log.vertex.tolist(), log.end_s.tolist(), strict=True)),
                   *((t, TransferEnded(i)) for i, t in enumerate(log.transfer_end_s.tolist()))], key=lambda end: end[0])
    work = ~graph.is_input[graph.targets] & graph.is_input[graph.sources]
    inputs = {(int(p), int(assignment.device[v])) for p, v in zip(graph.sources[work], graph.targets[work], strict=True)}
    held, peak = np.zeros(costs.num_devices), np.zeros(costs.num_devices)
    for p, d in inputs:
        held[d] += costs.output_bytes[p]
    for instructions in [dispatcher.begin(0.0), *(dispatcher.advance(t, [e for _, e in group])
                                                  for t, group in groupby(ends, key=lambda end: end[0]))]:
        for instruction in instructions:
            if isinstance(instruction, StartVertex):
                held[instruction.device] += costs.output_bytes[instruction.vertex]
            elif isinstance(instruction, StartTransfer):
                held[instruction.destination] += costs.tensor_bytes[instruction.tensor]
            elif isinstance(instruction, Free):
                held[instruction.device] -= costs.tensor_bytes[instruction.tensor]
            peak = np.maximum(peak, held)
    np.testing.assert_array_equal(dispatcher.trace().start_s, log.start_s)
    np.testing.assert_array_equal(dispatcher.trace().transfer_start_s, log.transfer_start_s)
    return peak


@pytest.mark.parametrize("memory_bytes", [None, 900])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_measured_peaks_are_those_that_the_rules_predict_for_the_same_order_of_events(uneven_graph, place, seed, slots, memory_bytes):
    graph = uneven_graph(60, seed)
    costs = build_costs(graph, topology(3, memory_bytes, slots))
    assignment = place(graph, costs, seed)
    with EmulatedExecutor(time_scale=1e-4) as executor:
        trace = executor.execute(graph, costs, assignment)
    np.testing.assert_array_equal(trace.peak_bytes, peak_bytes(graph, costs, assignment, trace.log))
    np.testing.assert_array_equal(trace.peak_bytes, replayed_peak_bytes(graph, costs, assignment, trace.log))
    assert (trace.peak_bytes <= costs.memory_bytes).all()
    assert trace.peak_tensor_bytes is None


def test_a_start_waits_for_memory_that_something_running_will_free(make_graph):
    graph = make_graph({"a": (1.0, []), "b": (1.0, []), "c": (1.0, []), "use": (1.0, ["a"])}, transfer_s=1.0, output_bytes=6.0)
    costs = build_costs(graph, topology(2, memory_bytes=13, slots=3))
    assignment = assignment_from_devices(graph, costs, [0, 0, 0, 1])
    with EmulatedExecutor(time_scale=0.02) as executor:
        trace = executor.execute(graph, costs, assignment)
    assert trace.peak_bytes.tolist() == [12, 12]
    assert trace.start_s[2] >= trace.transfer_end_s[0] >= 2.0  # a slot is free from the start, room only when `a` has gone
    assert validate_trace(graph, costs, assignment, trace.log).work_conserving


@pytest.mark.parametrize(("memory_bytes", "most"), [(None, 41), (5, 5)])
def test_a_fast_producer_is_held_back_by_the_memory_of_its_device_and_by_nothing_else(make_graph, memory_bytes, most):
    """Slots bound what runs at once; only a limit bounds what has been produced and waits, and it does, whatever the speeds."""
    count = 40
    graph = make_graph({**{v: (0.0, []) for v in range(count)},
                        **{count + v: (1.0, [v] + ([count + v - 1] if v else [])) for v in range(count)}})
    costs = build_costs(graph, topology(2, memory_bytes))
    assignment = assignment_from_devices(graph, costs, [0] * count + [1] * count)
    with EmulatedExecutor(time_scale=2e-3) as executor:
        trace = executor.execute(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace.log).work_conserving
    assert trace.peak_bytes.max() <= most
    if memory_bytes is None:
        assert trace.peak_bytes[1] > count / 2


class Workload:
    """ChainMM and its input tensors."""

    def __init__(self):
        self.graph = build_workload("chainmm", 4, scale="small")
        record = self.graph.attributes["workload"]
        self.inputs = input_tiles(self.graph, workload_program(record).draw_inputs(record["seed"]))
        self.fetch = output_vertices(self.graph)

    def place(self, devices, memory_bytes=None, seed=0):
        costs = build_costs(self.graph, topology(devices, memory_bytes))
        chosen = np.random.default_rng(seed).integers(0, devices, self.graph.num_vertices).tolist()
        return costs, assignment_from_devices(self.graph, costs, chosen)


@pytest.fixture(scope="module")
def chain():
    return Workload()


@pytest.mark.parametrize("make", [TensorFlowExecutor, lambda *args: SynchronousExecutor(TensorFlowBackend(*args))])
def test_real_tensors_never_take_more_than_was_reserved_for_them(chain, make):
    all_bytes = int(build_costs(chain.graph, topology(4)).tensor_bytes.sum())
    with make(chain.inputs, chain.fetch) as executor:
        for seed in range(3):
            costs, assignment = chain.place(4, memory_bytes=all_bytes - 1, seed=seed)  # a limit that could bind, and never does
            trace = executor.execute(chain.graph, costs, assignment)
            np.testing.assert_array_equal(trace.peak_bytes, peak_bytes(chain.graph, costs, assignment, trace.log))
            assert (trace.peak_tensor_bytes <= trace.peak_bytes).all()
            assert (trace.peak_tensor_bytes >= 0.5 * trace.peak_bytes).all()


def test_the_bytes_of_real_tensors_are_their_own(chain):
    kernel = {"op": "map", "params": {"fn": "square", "subscripts": "ab->ab"}}
    nodes = [{"id": "x", "input": True, "output_bytes": 999},
             *({"id": v, "exec_s": 1.0, "output_bytes": 999, "kernel": {**kernel, "operands": [{"vertex": p}]}}
               for v, p in ("ax", "ba", "cb"))]
    graph = graph_from_records(nodes, [{"source": p, "target": v} for v, p in ("ax", "ba", "cb")], {"name": "toy"})
    costs = build_costs(graph, cpu(2))
    assignment = assignment_from_devices(graph, costs, [None, 0, 0, 1])
    inputs = {0: np.ones((2, 3), np.float32)}
    for options, expected in [({}, [48, 48]), ({"fetch": [1]}, [48, 48]), ({"fetch": [1, 2]}, [48, 48]), ({"keep_inputs": True}, [72, 48])]:
        with TensorFlowExecutor(inputs, **options) as executor:
            trace = executor.execute(graph, costs, assignment)
        assert trace.peak_tensor_bytes.tolist() == expected
        assert trace.peak_bytes.tolist() == [2 * 999, 2 * 999]


def test_where_memory_may_run_out_larger_calls_leave_no_inputs_on_the_devices():
    """Of five inputs, which are added one after the other, two leave with the first sum."""
    params, names = {"fn": "add", "subscripts": "ab,ab->ab"}, [f"x{i}" for i in range(5)]
    nodes = [{"id": v, "input": True, "output_bytes": 24} for v in names]
    edges, last = [], names[0]
    for i, v in enumerate(names[1:]):
        nodes.append({"id": f"sum{i}", "exec_s": 1.0, "output_bytes": 24,
                      "kernel": {"op": "map", "params": params, "operands": [{"vertex": last}, {"vertex": v}]}})
        edges += [{"source": last, "target": f"sum{i}"}, {"source": v, "target": f"sum{i}"}]
        last = f"sum{i}"
    graph = graph_from_records(nodes, edges, {"name": "sums"})
    inputs = {v: np.full((2, 3), v, np.float32) for v in range(5)}
    for memory_bytes, calls in [(None, 1), (6 * 24, 4)]:
        costs = build_costs(graph, cpu(1).with_memory(memory_bytes))
        with MergedExecutor(inputs, fetch=[8]) as executor:
            for _ in range(2):
                trace = executor.execute(graph, costs, assignment_from_devices(graph, costs, [None] * 5 + [0] * 4))
                assert len(trace.vertex) == calls
                assert trace.peak_tensor_bytes.tolist() == [6 * 24]
                np.testing.assert_array_equal(executor.outputs[8], np.full((2, 3), 10.0))


def test_what_does_not_fit_on_one_device_runs_on_four(chain):
    costs, assignment = chain.place(4)
    with TensorFlowExecutor(chain.inputs, chain.fetch, warmup=False) as executor:
        enough = float(executor.execute(chain.graph, costs, assignment).peak_bytes.max())
        _, alone = chain.place(1)
        with pytest.raises(DeadlockError, match=r"out of memory on device 'CPU:0': vertex '.+' needs \S+ \S+, .+ of .+ are resident"):
            executor.execute(chain.graph, chain.place(4, enough)[0], alone)
        assert executor.outputs == {}
        limited = build_costs(chain.graph, topology(4, 1.2 * enough))
        trace = executor.execute(chain.graph, limited, assignment)
        assert (trace.peak_bytes <= limited.memory_bytes).all()
        assert len(executor.outputs) == len(chain.fetch)


def test_tensors_go_after_their_last_use(chain, monkeypatch):
    compute, made, most = KernelCall.__call__, [], []

    def watched(self, operands, device):
        outputs = compute(self, operands, device)
        made.extend(map(weakref.ref, outputs))
        most.append(sum(ref() is not None for ref in made))
        return outputs

    with TensorFlowExecutor(chain.inputs, chain.fetch, warmup=False) as executor:
        executor.execute(chain.graph, *chain.place(1))  # compiles
        monkeypatch.setattr(KernelCall, "__call__", watched)
        executor.execute(chain.graph, *chain.place(1))
        gc.collect()
        alive = sum(ref() is not None for ref in made)
        assert alive == len(executor.outputs)
        assert max(most) < len(made)


def test_a_failed_run_leaves_no_tensor_even_to_who_keeps_the_error(chain, monkeypatch):
    compute, made = KernelCall.__call__, []

    def watched(self, operands, device):
        outputs = compute(self, operands, device)
        made.extend(map(weakref.ref, outputs))
        return outputs

    def broken(method, vertex, *_):
        if method == "run_vertex" and vertex == doomed:
            raise ValueError("it broke")

    monkeypatch.setattr(KernelCall, "__call__", watched)
    costs, assignment = chain.place(4)
    with watched_executor(broken, chain.inputs, chain.fetch, warmup=False) as executor:
        for v in np.random.default_rng(0).choice(chain.graph.work_vertices, 20).tolist():
            doomed = v
            with pytest.raises(ExecutionError, match="it broke") as kept:
                executor.execute(chain.graph, costs, assignment)
            assert kept.value.__cause__ is not None
            assert [ref for ref in made if ref() is not None] == []
