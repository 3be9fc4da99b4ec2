"""What cannot fit in memory is proven and said; what fits in some order is found by every method alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from doppler_tf.errors import DeadlockError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.heuristics import HEURISTICS, SEARCHES, YARDSTICKS
from doppler_tf.heuristics.constructive.simple import all_on
from doppler_tf.heuristics.problem import Problem
from doppler_tf.placement import place
from doppler_tf.report.description import describe_memory
from doppler_tf.schedule.memory import never_fits
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from tests.messages import assert_says, refusal
from tests.strategies import cases_short_of_memory, examples, makespan_or_inf

MB = 1e6


def devices(*megabytes: float) -> Topology:
    listed = [{"name": f"d{d}", "memory_bytes": size * MB} for d, size in enumerate(megabytes)]
    return Topology.from_json({"name": "small", "devices": listed, "links": {"bandwidth_bytes_per_s": 1e9}})


def weights(count: int, megabytes: float, **more):
    """Vertices that read an input each and make nothing."""
    nodes = [{"id": f"w{k}", "input": True, "output_bytes": megabytes * MB} for k in range(count)]
    nodes += [{"id": k, "exec_s": 1, "output_bytes": 0, **more} for k in range(count)]
    return graph_from_records(nodes, [{"source": f"w{k}", "target": k} for k in range(count)], {"name": "weights"})


def sums():
    """Six sums of four outputs of 90 MB each, of which the first of each come first."""
    nodes = [{"id": f"{s}.{k}", "exec_s": 1, "output_bytes": 90 * MB} for k in range(4) for s in range(6)]
    nodes += [{"id": f"sum {s}", "exec_s": 1, "output_bytes": 10 * MB} for s in range(6)]
    return graph_from_records(nodes, [{"source": f"{s}.{k}", "target": f"sum {s}"} for s in range(6) for k in range(4)], {"name": "sums"})


@pytest.mark.parametrize(("graph", "topology", "words"), [
    (graph_from_records([{"id": "a", "exec_s": 1, "output_bytes": 30 * MB}], []), devices(20, 20),
     "vertex 'a' alone needs 30 MB (its inputs 0 bytes, its output 30 MB), no device has more than 20 MB"),
    (graph_from_records([{"id": "a", "exec_s": [1, None], "output_bytes": 30 * MB}], []), devices(20, 40),
     "vertex 'a' alone needs 30 MB (its inputs 0 bytes, its output 30 MB), no device that may run it (d0) has more than 20 MB"),
    (weights(4, 30), devices(50, 50), "inputs, which are resident from the start, need 120 MB in all, the devices have 100 MB in all"),
    (weights(4, 20, pin=0), devices(50, 50), "need 80 MB in all, of vertices that only d0 may run, where there are 50 MB in all"),
    (graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 15 * MB} for v in range(3)], []), devices(20, 20),
     "results and outputs that nobody consumes, which stay, need 45 MB in all, the devices have 40 MB in all"),
])
def test_what_never_fits_is_proven_and_said(graph, topology, words):
    for method in ("auto", "heft", "local_search", "one_device"):
        assert_says(refusal(DeadlockError, place, graph, topology, method), "out of memory with any assignment: ", words, "more memory")
    costs = build_costs(graph, topology)
    assert_says(refusal(DeadlockError, simulate, graph, costs, all_on(Problem(graph, costs), 0)), words)


@examples(0.3)
@given(cases_short_of_memory())
def test_the_proof_is_never_wrong(case):
    if never_fits(case.graph, case.costs) is not None:
        assert makespan_or_inf(case) == math.inf


@pytest.mark.parametrize("name", [name for name in HEURISTICS if name not in YARDSTICKS])
def test_every_method_alone_finds_an_order_that_fits(name):
    placement = place(sums(), devices(400, 400), name, samples=50 if name in SEARCHES else None)
    assert math.isfinite(simulate(sums(), devices(400, 400), placement.assignment).makespan_s)
    assert 15.1 > placement.makespan_s >= placement.lower_bound_s >= 14.9  # three sums on each device


@pytest.mark.parametrize("name", ["cp_sat", "critical_path", "auto"])
def test_a_small_pipeline_of_60_and_40_mb(name):
    nodes = [{"id": v, "exec_s": 1, "output_bytes": (60 if v % 2 else 40) * MB} for v in range(12)]
    edges = [{"source": v - 4 + k, "target": v} for v in range(4, 12) for k in (0, 1 if v % 4 < 3 else -1)]
    graph = graph_from_records(nodes, edges, {"name": "pipeline"})
    assert place(graph, devices(200, 200), name, samples=200 if name == "cp_sat" else None).makespan_s == 6


def test_a_yardstick_stays_and_its_error_says_what_looks_for_another():
    message = refusal(DeadlockError, place, sums(), devices(400, 400), "one_device")
    assert_says(message, "sums: out of memory on device 'd0'", "another assignment or order may fit: `place` with a longer budget")


@pytest.mark.parametrize(("results", "peak", "words"), [
    ("", 8, "vertex 'b' alone needs 8 MB"), ("a", 10, "vertex 'c' needs 2 MB, 8 MB of 9 MB are resident"),
    ("ab", 10, "the results and outputs that nobody consumes, which stay, need 10 MB in all, the devices have 9 MB in all")])
def test_a_result_stays_where_others_take_it(results, peak, words):
    """a (5) -> b (3) -> c (2 MB): a is gone when c starts, unless it is a result."""
    nodes = [{"id": v, "exec_s": 1, "output_bytes": size * MB} for v, size in (("a", 5), ("b", 3), ("c", 2))]
    edges = [{"source": "a", "target": "b"}, {"source": "b", "target": "c"}]
    graph = graph_from_records(nodes, edges, {"results": [{"vertex": v} for v in results]})
    for room in (peak, peak - 1):
        costs = build_costs(graph, devices(room))
        assignment = all_on(Problem(graph, costs), 0)
        fast = FastSimulator(graph, costs).makespans_of([assignment])
        if room < peak:
            assert fast == [math.inf]
            assert_says(refusal(DeadlockError, simulate, graph, costs, assignment), words)
        else:
            trace = simulate(graph, costs, assignment)
            assert fast == [trace.makespan_s] == [3]
            assert peak_bytes(graph, costs, assignment, trace).tolist() == [peak * MB]
            assert validate_trace(graph, costs, assignment, trace).violations == ()
    assert describe_memory(graph)["one_device_peak_bytes"] == peak * MB
