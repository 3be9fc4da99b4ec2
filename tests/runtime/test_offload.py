"""Plans with a host on the engine: within the limits with random delays, and real kernels give what they give without limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Host, Topology
from doppler_tf.offload.planning import plan_offload, without_limits
from doppler_tf.report.memory_rows import memory_rows
from doppler_tf.schedule.assignment import Assignment, Load, Offload
from doppler_tf.schedule.memory import needed_bytes
from doppler_tf.schedule.offloaded import kept_on_host, offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedExecutor, MergedExecutor, TensorFlowExecutor

SIDE = 8
BYTES = 4 * SIDE * SIDE
QUICK, ALL = range(6), [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 50)]


def short_of_memory(seed: int):
    """A random graph of small matrices, spread at random over devices that hold half of what it would take; results without consumers."""
    rng = np.random.default_rng(seed)
    inputs, work, count = int(rng.integers(3, 9)), int(rng.integers(8, 24)), int(rng.integers(1, 4))
    nodes = [{"id": v, "input": True, "output_bytes": BYTES} for v in range(inputs)]
    edges = []
    for v in range(inputs, inputs + work):
        first, second = (int(u) for u in rng.choice(v, 2, replace=False))
        kernel = [{"op": "einsum", "params": {"subscripts": "ab,bc->ac"}},
                  {"op": "map", "params": {"fn": "add", "subscripts": "ab,ab->ab"}}][int(rng.integers(2))]
        nodes.append({"id": v, "exec_s": float(rng.integers(1, 4)) * 1e-3, "output_bytes": BYTES,
                      "kernel": {**kernel, "operands": [{"vertex": first}, {"vertex": second}]}})
        edges += [{"source": first, "target": v}, {"source": second, "target": v}]
    graph = graph_from_records(nodes, edges, {"name": f"matrices {seed}"})
    topology = Topology.from_json({"name": "small", "devices": [{"name": f"d{d}"} for d in range(count)],
                                   "links": {"bandwidth_bytes_per_s": BYTES * 1e3}})
    costs = build_costs(graph, replace(topology, host=Host(BYTES * 1e3)))
    device = np.where(graph.is_input, -1, rng.integers(0, count, graph.num_vertices)).astype(np.int32)
    assignment = Assignment(device, dispatch=("fifo", "b_level")[seed % 2])
    peaks = peak_bytes(graph, costs, assignment, Simulator().execute(graph, costs, assignment))
    floor = needed_bytes(graph, costs)[graph.work_vertices].max()
    devices = tuple(replace(each, memory_bytes=max(floor, BYTES * (peak // BYTES // 2)))
                    for each, peak in zip(topology.devices, peaks.tolist(), strict=True))
    costs = build_costs(graph, replace(costs.topology, devices=devices))
    planned = plan_offload(graph, costs, assignment)[1]
    assert planned.offload.loads
    return graph, costs, planned, {v: rng.standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE for v in range(inputs)}


def check(graph, costs, assignment, trace) -> None:
    """The dispatcher's log is exact; the engine's own count of bytes keeps the limit."""
    report = validate_trace(graph, costs, assignment, trace.log)
    assert report.violations == ()
    assert report.idle == ()
    assert (trace.peak_bytes <= costs.memory_bytes).all()
    np.testing.assert_array_equal(trace.peak_bytes, peak_bytes(graph, costs, assignment, trace.log))
    assert [row.most_bytes for row in memory_rows(graph, costs, trace)[0]] == trace.peak_bytes.tolist()


@pytest.mark.parametrize("seed", [*QUICK, *ALL])
def test_random_delays_break_no_limit(seed):
    """Also where the dispatcher looks at none."""
    graph, costs, assignment = offloaded(*short_of_memory(seed)[:3])
    for limits in (costs, without_limits(costs)):
        with EmulatedExecutor(0.5, noise_sigma=0.5, seed=seed) as engine:
            check(graph, costs, assignment, engine.execute(graph, limits, assignment))


@pytest.mark.parametrize("seed", [*QUICK, *ALL])
def test_real_kernels_give_what_they_give_without_limits(seed):
    graph, costs, planned, inputs = short_of_memory(seed)
    with TensorFlowExecutor(inputs) as engine:
        engine.execute(graph, without_limits(costs), replace(planned, offload=None))
        expected = engine.outputs
    made, wide, assignment = offloaded(graph, costs, planned)
    with TensorFlowExecutor(inputs) as engine:
        trace = engine.execute(made, wide, assignment)
        outputs, kept = engine.outputs, kept_on_host(graph, made)
    check(made, wide, assignment, trace)
    # What live tensors hold in their own sizes, results on their devices included, is what the plan counts.
    assert (trace.peak_tensor_bytes[:-1] <= wide.memory_bytes[:-1]).all()
    assert (trace.peak_tensor_bytes <= trace.peak_bytes).all()
    assert {t: kept.get(t, t) in outputs for t in expected} == dict.fromkeys(expected, True)
    for t, value in expected.items():
        np.testing.assert_allclose(outputs[kept.get(t, t)], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_merged_calls_drop_inputs_as_the_plan_says(seed):
    graph, costs, planned, inputs = short_of_memory(seed)
    made, wide, assignment = offloaded(graph, costs, planned)
    with MergedExecutor(inputs) as engine:
        traces = [engine.execute(made, wide, assignment) for _ in range(2)]
    for trace in traces:
        assert (trace.peak_tensor_bytes[:-1] <= wide.memory_bytes[:-1]).all()


def test_a_load_is_counted_once_by_simulator_engine_and_trace():
    """Weight w and result a are loaded from the host, a for two vertices one after the other; result d stays there."""
    kernel = {"op": "map", "params": {"fn": "add", "subscripts": "ab,ab->ab"}}
    nodes = [{"id": "w", "input": True, "output_bytes": BYTES}]
    nodes += [{"id": v, "exec_s": 0.01, "output_bytes": BYTES, "kernel": {**kernel, "operands": [{"vertex": p}, {"vertex": q}]}}
              for v, p, q in ("aww", "baa", "cab", "dcc")]
    edges = [{"source": p, "target": v} for v, p in ("aw", "ba", "ca", "cb", "dc")]
    graph = graph_from_records(nodes, edges, {"name": "chain"})
    topology = Topology.from_json({"name": "one", "devices": [{"name": "d0"}]})
    costs = build_costs(graph, replace(topology, host=Host(BYTES * 1e2)))
    w, a, b, c, d = range(5)
    loads = (Load(w, 0, (a,)), Load(a, 0, (b,)), Load(a, 0, (c,)), Load(d, 0, ()))
    after = np.array([(b, 7)], np.int32)  # the second load of a after its first use
    made, wide, assignment = offloaded(graph, costs, Assignment(np.array([-1, 0, 0, 0, 0], np.int32), offload=Offload(loads, after)))
    simulated = Simulator().execute(made, wide, assignment)
    expected = [3 * BYTES, 2 * BYTES]  # a twice: for its second load, and on its way for the first
    assert peak_bytes(made, wide, assignment, simulated).tolist() == expected
    inputs = {w: np.ones((SIDE, SIDE), np.float32)}
    with EmulatedExecutor() as emulated, TensorFlowExecutor(inputs) as real:
        for executor in (emulated, real):
            trace = executor.execute(made, wide, assignment)
            assert peak_bytes(made, wide, assignment, trace.log).tolist() == trace.peak_bytes.tolist() == expected
        assert trace.peak_tensor_bytes.tolist() == expected
