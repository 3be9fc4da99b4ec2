"""The profiler: every distinct kernel once, medians into costs, links between the devices at hand."""

from dataclasses import replace

import numpy as np
import pytest

from data import build_workload, input_tiles, workload_program
from doppler_tf.errors import GraphError
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.formats.topology_json import read_topology, write_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import Kernel
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu, ideal
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.merged_graph import Merged
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace
from runtime import Effort, Profiler, profile
from runtime.profiling.measurements import Measurements, distinct_links

QUICK = Effort(rounds=1, spread=4)


def square(operand, fn="square", where=None):
    return {"op": "map", "params": {"fn": fn, "subscripts": "ab->ab"}, "operands": [{"vertex": operand, "slice": where}]}


def inputs_of(graph):
    record = graph.attributes["workload"]
    return input_tiles(graph, workload_program(record).draw_inputs(record["seed"]))


@pytest.fixture
def told(monkeypatch):
    """Profiles a graph with seconds that a test makes up: kernels by number, links exactly; nothing is run."""
    def install(kernel_s, latency_s=1e-5, bandwidth=1e9):
        def made_up(self, graph, topology, inputs, measured):
            measured.runs = 1
            for k in range(len(measured._known_s)):
                measured._kernel[k, measured._kinds[0]].append(kernel_s(k))
            for size in (100.0, 1e6):
                measured._copy[0, size].append(latency_s + size / bandwidth)

        monkeypatch.setattr(Profiler, "_run_rounds", made_up)
        monkeypatch.setattr(Profiler, "_run_merged", lambda *arguments: None)
        monkeypatch.setattr(Measurements, "_shares_tensors", lambda *arguments: False)
    return install


def test_vertices_with_equal_kernels_are_measured_once():
    nodes = [{"id": "x", "input": True}, {"id": "y", "input": True},
             {"id": "a", "kernel": square("x")}, {"id": "b", "kernel": square("x")},  # twice the same
             {"id": "c", "kernel": square("a")},  # the same on a stand-in for a
             {"id": "other function", "kernel": square("x", "relu")},
             {"id": "other shape", "kernel": square("y")},
             {"id": "other slice", "kernel": square("x", where=[[0, 2], [0, 3]])},
             {"id": "same slice", "kernel": square("a", where=[[0, 2], [0, 3]])}]
    pairs = [("x", "a"), ("x", "b"), ("a", "c"), ("x", "other function"), ("y", "other shape"), ("x", "other slice"), ("a", "same slice")]
    graph = graph_from_records(nodes, [{"source": u, "target": v} for u, v in pairs])
    found = profile(graph, cpu(2), {0: np.ones((4, 3), np.float32), 1: np.ones((3, 4), np.float32)}, QUICK)
    assert found.kernel.tolist() == [-1, -1, 0, 0, 0, 1, 2, 3, 3]
    assert found.num_kernels == 4
    assert found.costs.output_bytes.tolist() == [48] * 7 + [24] * 2
    np.testing.assert_array_equal(found.costs.exec_s[2:5], found.costs.exec_s[[2, 2, 2]])


def test_one_tensor_twice_is_another_kernel_than_two_tensors():
    def add(*operands):
        return {"op": "map", "params": {"fn": "add", "subscripts": "a,a->a"}, "operands": [{"vertex": o} for o in operands]}

    graph = graph_from_records([{"id": 0, "input": True}, {"id": 1, "input": True}, {"id": 2, "kernel": add(0, 0)},
                                {"id": 3, "kernel": add(0, 1)}, {"id": 4, "kernel": add(1, 0)}],
                               [{"source": u, "target": v} for u, v in ((0, 2), (0, 3), (1, 3), (0, 4), (1, 4))])
    assert profile(graph, cpu(1), dict.fromkeys((0, 1), np.ones(4, np.float32)), QUICK).kernel.tolist() == [-1, -1, 0, 1, 1]


def test_a_workload_has_few_different_kernels_and_all_costs_are_measured():
    graph = build_workload("chainmm", 4, scale="small", n=64)
    seen = []
    found = profile(graph, cpu(2), inputs_of(graph), QUICK, progress=lambda done, total: seen.append((done, total)))
    work = graph.work_vertices
    assert found.num_kernels < len(work) / 5
    assert (found.costs.exec_s[work] > 0).all()
    assert (found.costs.exec_s[graph.is_input] == 0).all()
    assert found.costs.topology.latency_s[0, 1] >= 0
    np.testing.assert_array_equal(found.costs.exec_s[:, 0], found.costs.exec_s[:, 1])  # logical CPUs are of one kind
    total = QUICK.rounds * (2 + QUICK.spread)
    assert seen == [(i, total) for i in range(1, total + 1)]


def test_launch_s_is_what_a_vertex_saves_as_part_of_a_larger_call():
    """Vertices of 2 s: four in a call of 5 s save 3 s, 1 s each but one. One on all cores in 2.5 s would take 5 s on its own."""
    graph = graph_from_records([{"id": v, "exec_s": 2.0, "output_bytes": 8} for v in range(5)], [])
    costs, devices, one = build_costs(graph, cpu(2)), [f"/device:CPU:{d}" for d in range(2)], Assignment(np.zeros(5, np.int32))
    measured = Measurements(devices, np.zeros(5, np.int32), ["kernel"], {})
    measured.add(graph, simulated(graph, costs, one), counts=True)
    assert measured.launch_s() == [None, None]
    for seconds, lone in ((5.0, {}), (2.5, {0: 0.5})):
        call = graph_from_records([{"id": v, "exec_s": s, "output_bytes": 8} for v, s in enumerate((seconds, 2.0))], [])
        call = replace(call, kernel=(Kernel("merged", (), {}), None))
        costs, one = build_costs(call, cpu(2)), Assignment(np.zeros(2, np.int32))
        trace = simulated(call, costs, one)
        measured.add_merged(Merged(call, costs, one, np.array([0, 0, 0, 0, 1]), np.arange(5), trace, lone), trace)
        assert measured.launch_s() == [1.0, 1.0]


@pytest.mark.parametrize("busy", [False, True])
def test_a_message_takes_what_waking_the_device_takes_that_waits_for_it(busy):
    """Vertex b begins 0.3 s after its instruction. If c keeps its device busy until then, no thread had to be woken."""
    records = [("a", 2.0), ("b", 3.3), ("c", 2.0)] if busy else [("a", 2.0), ("b", 3.3)]
    graph = graph_from_records([{"id": v, "exec_s": s, "output_bytes": 8} for v, s in records], [{"source": "a", "target": "b"}])
    log = simulated(graph, build_costs(graph, ideal(2)), Assignment(np.array([0, 1, 1][:len(records)], np.int32)))
    assert log.start_s[log.vertex == 1] == 2.0
    measured = Measurements([f"/device:CPU:{d}" for d in range(2)], np.arange(len(records), dtype=np.int32), [v for v, _ in records], {})
    measured.add(graph, replace(log, start_s=log.start_s + 0.3 * (log.vertex == 1)), counts=True)
    np.testing.assert_allclose(measured.kernel_s[:, 0], [2.0, 3.3, 2.0] if busy else [2.0, 3.0])
    np.testing.assert_allclose(measured.links()["latency_s"], [[0.0, 0.0], [0.0, 0.0]] if busy else [[0.0, 0.3], [0.3, 0.0]])


def simulated(graph, costs, assignment):
    trace = Simulator().execute(graph, costs, assignment)
    return replace(trace, log=trace)


def test_a_second_graph_measures_only_what_is_new(monkeypatch):
    small, known, hostless = build_workload("chainmm", 2, scale="small", n=64), {}, replace(cpu(2), host=None)
    first = profile(small, hostless, inputs_of(small), QUICK, known=known)
    assert first.new_kernels == first.num_kernels
    assert len(known) == first.num_kernels + 3  # latency and seconds per byte of the one link, and what a larger call saves
    monkeypatch.setattr(Profiler, "_run_rounds", lambda *arguments: pytest.fail("nothing need be run"))
    again = profile(small, hostless, inputs_of(small), QUICK, known=known)
    assert again.new_kernels == 0
    np.testing.assert_array_equal(again.costs.exec_s, first.costs.exec_s)
    np.testing.assert_array_equal(again.costs.topology.latency_s, first.costs.topology.latency_s)


def test_what_is_known_is_believed_and_what_is_new_is_added(told):
    told(lambda k: 1e-3)
    graph, known, hostless = build_workload("chainmm", 2, scale="small", n=32), {}, replace(cpu(2), host=None)
    found = profile(graph, hostless, inputs_of(graph), QUICK, known=known)
    name = next(key for key in known if ": einsum" in key)
    known[name] = 7.0
    del known[next(key for key in known if ": aggregate" in key)]
    again = profile(graph, hostless, inputs_of(graph), QUICK, known=known)
    assert again.new_kernels == 1
    assert set(np.unique(again.costs.exec_s[graph.work_vertices]).tolist()) == {1e-3, 7.0}
    assert len(known) == found.num_kernels + 2


def test_the_medians_are_the_costs_and_survive_the_files(told, tmp_path):
    told(lambda k: 1e-3 * (k + 1))
    graph = build_workload("chainmm", 2, scale="small", n=32)
    found = profile(graph, cpu(3), inputs_of(graph), QUICK)
    expected = np.where(graph.is_input, 0.0, 1e-3 * (found.kernel + 1))
    np.testing.assert_array_equal(found.costs.exec_s, np.stack([expected] * 3, axis=1))
    carried = graph.output_bytes[graph.sources[graph.work_edges]]
    np.testing.assert_allclose(found.costs.transfer_s(graph.work_edges, 0, 2), 1e-5 + carried / 1e9, rtol=1e-6)
    write_graph(tmp_path / "g.json", found.graph)
    write_topology(tmp_path / "t.json", found.costs.topology)
    again = build_costs(read_graph(tmp_path / "g.json"), read_topology(tmp_path / "t.json"))
    np.testing.assert_array_equal(again.exec_s, found.costs.exec_s)
    np.testing.assert_array_equal(again.topology.bandwidth_bytes_per_s, found.costs.topology.bandwidth_bytes_per_s)
    assert again.topology.topology_hash == found.costs.topology.topology_hash
    assert found.graph.attributes == graph.attributes  # it still knows its program, and so can be run


@pytest.mark.parametrize(("sizes", "copied"), [((), True), ((4096.0,), True), ((64.0, 4096.0), True), ((64.0, 2e6), False)])
def test_small_tensors_alone_say_nothing_of_a_links_bandwidth(monkeypatch, sizes, copied):
    """A link of 4 GB/s, over which runs copied small tensors, which took longer by chance: it is kept for graphs with large ones."""
    devices = [f"/job:worker/replica:0/task:0/device:CPU:{d}" for d in range(2)]
    measured, asked = Measurements(devices, np.zeros(0, np.int32), [], {}), []

    def copies(*names):
        asked.append(names)
        return {size: [1e-5 + size / 4e9] for size in (4e3, 1e6, 4e6)}

    monkeypatch.setattr("runtime.profiling.measurements.copy_seconds", copies)
    for size in sizes:
        measured._copy[0, size].append(1e-5 + size / 4e9 if size > 1e6 else 1e-5 + size / 1e8)
    measured.add_copies()
    assert asked == [tuple(devices)] * copied
    assert measured.links()["bandwidth_bytes_per_s"][0, 1] == pytest.approx(4e9, rel=0.05)


def test_logical_cpus_share_tensors_of_any_size(monkeypatch):
    """Copies made alone took 0.3 ms, and seconds of a few small tensors had a slope by chance."""
    monkeypatch.setattr("runtime.profiling.measurements.copy_seconds", None)
    measured = Measurements(["/device:CPU:0", "/device:CPU:1"], np.zeros(0, np.int32), [], {})
    for size, seconds in ((64.0, 4e-6), (4096.0, 6e-6), (8192.0, 5e-6)):
        measured._copy[0, size].append(seconds)
    measured.add_copies()
    links = measured.links()
    assert links["latency_s"][0, 1] == links["latency_s"][1, 0] == 5e-6
    assert links["bandwidth_bytes_per_s"][0, 1] == np.inf


def test_explicit_transfer_seconds_give_way_to_the_measured_link(told):
    told(lambda k: 1.0)
    graph = graph_from_records([{"id": 0, "input": True}, {"id": 1, "kernel": square(0)}, {"id": 2, "kernel": square(1)}],
                               [{"source": 0, "target": 1}, {"source": 1, "target": 2, "transfer_s": 7.0}])
    found = profile(graph, cpu(2), {0: np.ones((5, 5), np.float32)}, QUICK)
    assert float(found.costs.transfer_s(1, 0, 1)) == pytest.approx(1e-5 + 100 / 1e9)


def test_kernels_beside_transfers_between_machines_tell_what_these_take_and_not_what_the_kernels_take():
    """A kernel takes 2 s, and beside 2 s of sending 2.5 s at the source and 3 s at the destination."""
    devices = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)]
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 8} for v in range(4)], [{"source": 0, "target": 3}])
    found, one = Measurements(devices, np.zeros(4, np.int32), ["kernel"], {}), np.array([0], np.int32)
    trace = Trace(np.arange(4), np.array([0, 0, 1, 1]), np.array([0.0, 2.0, 0.0, 2.0]), np.array([2.0, 4.5, 2.0, 5.0]),
                  one, one, one + 1, np.array([2.0]), np.array([4.0]))
    found.add(graph, replace(trace, log=trace), True)
    assert found.kernel_s.tolist() == [[2.0, 2.0]]
    links = found.links()
    assert links["source_share"].tolist() == [[0.0, pytest.approx(0.25)], [0.0, 0.0]]
    assert links["destination_share"].tolist() == [[0.0, pytest.approx(0.5)], [0.0, 0.0]]


def test_a_share_is_stored_only_if_a_kernel_ran_beside_transfers_and_beside_none():
    """A kernel that takes 3 s beside 2 s of sending, and nowhere else, tells nothing; nor does a transfer beside no kernel."""
    devices = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)]
    graph = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 8} for v in range(2)], [{"source": 0, "target": 1}])
    found, one = Measurements(devices, np.zeros(2, np.int32), ["kernel"], {}), np.array([0], np.int32)
    begin, end = np.array([0.0, 5.0]), np.array([3.0, 7.0])
    trace = Trace(np.arange(2), np.arange(2), begin, end, one, one, one + 1, np.array([1.0]), np.array([3.0]))
    found.add(graph, replace(trace, log=trace), True)
    assert found.kernel_s.tolist() == [[3.0, 2.0]]
    assert [key.rpartition(": ")[2] for key in found.link_figures()] == ["latency_s", "s_per_byte"]
    assert (found.links()["source_share"], found.links()["destination_share"]) == (None, None)


def test_logical_cpus_share_one_link_and_gpus_have_their_own():
    assert distinct_links(["/device:CPU:0", "/device:CPU:1"]) == [[(0, 1), (1, 0)]]
    assert distinct_links(["/device:GPU:0", "/device:GPU:1"]) == [[(0, 1)], [(1, 0)]]
    assert distinct_links(["/device:CPU:0"]) == []


def test_what_cannot_be_profiled_is_said():
    bare = graph_from_records([{"id": "a", "exec_s": 1}], [])
    with pytest.raises(GraphError, match="vertex 'a': kernel: expected one, got none"):
        profile(bare, cpu(1), {})
    graph = build_workload("chainmm", 2, scale="small", n=32)
    with pytest.raises(GraphError, match="inputs: expected a tensor, got none"):
        profile(graph, cpu(1), {})
