"""Logical CPU devices: who hands tensors over, and one executor for several graphs."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from data import (
    assemble_outputs,
    build_workload,
    evaluate_program,
    fuse,
    input_tiles,
    output_vertices,
    relative_error,
    workload_program,
)
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.validation import validate_trace
from runtime import TensorFlowExecutor
from tests.crossed import crossed
from tests.watched_devices import watched_executor


def place(graph, devices, seed=0):
    costs = build_costs(graph, cpu(devices))
    return costs, assignment_from_devices(graph, costs, np.random.default_rng(seed).integers(0, devices, graph.num_vertices).tolist())


def noting(noted, look):
    """Notes (method, device, what the test asks for on the thread that does it) of a vertex or transfer."""
    return lambda method, *args: noted.append((method, args[-1], look()))


@pytest.mark.parametrize(*crossed(name=["chainmm", "ffnn", "llama_block"], fused=[True, False]))
def test_no_thread_is_woken_for_a_transfer(name, fused):
    graph = build_workload(name, 2, scale="small")
    graph = fuse(graph) if fused else graph
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(0)
    noted, expected = [], evaluate_program(program, tensors)
    before = noting(noted, lambda: threading.current_thread().name)
    with watched_executor(before, input_tiles(graph, tensors), output_vertices(graph)) as executor:
        for seed in range(3):
            costs, assignment = place(graph, 2, seed)
            trace = executor.execute(graph, costs, assignment)
            assert relative_error(assemble_outputs(graph, executor.outputs), expected) <= 1e-5
            assert validate_trace(graph, costs, assignment, trace).violations == ()
            assert validate_trace(graph, costs, assignment, trace.log).work_conserving
            taken = sorted(zip(trace.start_s, trace.end_s, assignment.device[trace.vertex], strict=True))
            for d in range(2):
                mine = [(start, end) for start, end, device in taken if device == d]
                assert all(end <= start for (_, end), (start, _) in pairwise(mine))  # one thread: one at a time
    assert {method for method, _, _ in noted} == {"run_vertex", "run_transfer"}
    assert {device for _, device, _ in noted} == {0, 1}
    assert {thread for method, _, thread in noted if method == "run_vertex"} <= {"CPU:0#0", "CPU:1#0"}
    assert {thread for _, _, thread in noted} <= {"CPU:0#0", "CPU:1#0", "MainThread"}  # whoever holds the turn


FUNCTIONS = {"relu": lambda x: np.maximum(x, 0), "square": np.square, "exp": np.exp}


def maps(*functions, shape=(2, 3), dtype=np.float32):
    """A chain of maps of one input, and the input."""
    nodes = [{"id": 0, "input": True}]
    nodes += [{"id": v, "flops": 1, "output_bytes": 24,
               "kernel": {"op": "map", "params": {"fn": fn, "subscripts": "ab->ab"}, "operands": [{"vertex": v - 1}]}}
              for v, fn in enumerate(functions, start=1)]
    edges = [{"source": v - 1, "target": v} for v in range(1, len(nodes))]
    return graph_from_records(nodes, edges, {"name": "toy"}), {0: np.random.default_rng(0).normal(size=shape).astype(dtype)}


def expected(functions, x):
    for fn in functions:
        x = FUNCTIONS[fn](x)
    return x


@pytest.mark.parametrize("keep_inputs", [False, True])
def test_one_executor_runs_different_graphs_in_turn(keep_inputs):
    chains = [("relu", "square", "exp"), ("exp", "relu", "square"), ("square", "exp")]
    graphs, inputs = [maps(*chain)[0] for chain in chains], maps("relu")[1]
    with TensorFlowExecutor(inputs, keep_inputs=keep_inputs) as executor:
        for seed in range(3):
            for graph, chain in zip(graphs, chains, strict=True):
                trace = executor.execute(graph, *place(graph, 2, seed))
                assert executor.outputs.keys() == {len(chain)}
                np.testing.assert_allclose(executor.outputs[len(chain)], expected(chain, inputs[0]), rtol=1e-5)
                assert trace.peak_tensor_bytes.sum() >= 48  # an input and an output


@pytest.mark.parametrize(("shape", "dtype"), [((5, 4), np.float32), ((3, 2), np.float32), ((2, 3), np.float64), ((1, 1), np.float64)])
def test_executors_of_one_graph_may_have_inputs_of_other_shapes_and_types(shape, dtype):
    chain = ("relu", "square", "exp")
    (graph, first), (_, second) = maps(*chain), maps(*chain, shape=shape, dtype=dtype)
    with TensorFlowExecutor(first) as one, TensorFlowExecutor(second) as other:
        for seed in range(2):
            for executor, inputs in ((one, first), (other, second)):
                costs, assignment = place(graph, 2, seed)
                trace = executor.execute(graph, costs, assignment)
                got = executor.outputs[len(chain)]
                assert (got.shape, got.dtype) == (inputs[0].shape, inputs[0].dtype)
                np.testing.assert_allclose(got, expected(chain, inputs[0]), rtol=1e-5)
                assert trace.peak_tensor_bytes.max() >= 2 * inputs[0].nbytes
