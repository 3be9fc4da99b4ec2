"""`place` where nothing fits: with a host it finds a way, writes it, and everything that runs assignments follows it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from data import build_workload
from doppler_tf.api.inputs import load_assignment
from doppler_tf.api.measuring import measure
from doppler_tf.api.running import run
from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError, TopologyError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.finalists import baselines
from doppler_tf.formats.assignment_json import read_assignment, write_assignment
from doppler_tf.formats.chrome_trace import read_trace
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Host, Topology, preset
from doppler_tf.heuristics import HEURISTICS, Problem
from doppler_tf.offload.compiler import compile_offload
from doppler_tf.offload.planning import crossing_bound_s, fastest_plan, plan_offload, roomy
from doppler_tf.offload.streaming import Streaming
from doppler_tf.placement import place
from doppler_tf.report.description import describe_memory
from doppler_tf.schedule.any_order import fits_in_any_order
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.validation import validate_trace
from tests.messages import assert_says, refusal

LAYERS = 6


def layers(count: int = LAYERS):
    """Layers in a row: each two products by weights of 4 bytes, and their sum."""
    nodes, edges = [{"id": "x", "input": True, "output_bytes": 1}], []
    before = "x"
    for i in range(count):
        nodes += [{"id": f"w{i}.{k}", "input": True, "output_bytes": 4} for k in "ab"]
        nodes += [{"id": f"{k}{i}", "exec_s": 3, "output_bytes": 1} for k in "ab"] + [{"id": f"s{i}", "exec_s": 1, "output_bytes": 1}]
        for k in "ab":
            edges += [{"source": before, "target": f"{k}{i}"}, {"source": f"w{i}.{k}", "target": f"{k}{i}"},
                      {"source": f"{k}{i}", "target": f"s{i}"}]
        before = f"s{i}"
    return graph_from_records(nodes, edges, {"name": "layers"})


def devices(memory_bytes: float, host: Host | None = None, count: int = 2) -> Topology:
    made = Topology.from_json({"name": "small", "devices": [{"name": f"d{d}", "memory_bytes": memory_bytes} for d in range(count)],
                               "links": {"bandwidth_bytes_per_s": 10}})
    return replace(made, host=host)


HOST = Host(2.0, 0.125)


def test_what_fits_in_one_order_alone_is_compiled_for_every_order():
    """Cut for four P100s of 440 MB, ChainMM fits as simulated, and ran out of memory in each run on emulated devices."""
    graph, topology = build_workload("chainmm", 4), preset("p100x4").with_memory(440e6)
    hostless = replace(topology, host=None)
    alone = place(graph, hostless, samples=200).assignment
    simulators = [FastSimulator(graph, build_costs(graph, hostless), alone.dispatch).under(draw_noise(graph.num_vertices, 4, 0.5, seed))
                  for seed in range(20)]
    assert simulate(graph, hostless, alone).makespan_s > 0
    assert not all(np.isfinite(each.makespans_of([alone])[0]) for each in simulators)
    placed = place(graph, topology, samples=200)
    assert placed.assignment.offload is not None
    costs = build_costs(graph, topology)
    for seed in range(100, 120):
        ran = offloaded(graph, costs, placed.assignment)
        noise = draw_noise(ran[0].num_vertices, ran[1].num_devices, 0.5, seed)
        assert np.isfinite(Simulator(noise=noise).execute(*ran).makespan_s)


def tree(parts: list[tuple[int, int, list[int]]]):
    """Vertices of (seconds, bytes, those that they take from)."""
    nodes = [{"id": v, "exec_s": seconds, "output_bytes": size} for v, (seconds, size, _) in enumerate(parts)]
    return graph_from_records(nodes, [{"source": u, "target": v} for v, part in enumerate(parts) for u in part[2]], {"name": "tree"})


def test_what_fits_in_one_order_keeps_that_order_at_no_cost():
    """The plan along the run without limits takes half as long again as the run that fits."""
    graph, topology = tree([(3, 3, []), (1, 4, [0]), (1, 2, [1]), (1, 2, [0]), (1, 2, [3])]), devices(8, HOST)
    costs = build_costs(graph, topology)
    assignment = HEURISTICS["heft"](Problem(graph, costs), np.random.default_rng(0))
    assert not fits_in_any_order(graph, costs, assignment.device)
    assert simulate(graph, topology, assignment).makespan_s == pytest.approx(6.3)
    assert plan_offload(graph, costs, assignment)[0] == pytest.approx(9.25)
    makespan_s, planned = fastest_plan(graph, costs, assignment)
    assert makespan_s == pytest.approx(6.3)
    ran = offloaded(graph, costs, planned)
    assert validate_trace(*ran, Simulator().execute(*ran)).valid


def rows(count: int):
    """Weights of 10 bytes, each taken by two vertices of 1 s."""
    nodes, edges = [], []
    for k in range(count):
        nodes += [{"id": f"w{k}", "input": True, "output_bytes": 10}, *({"id": f"{r}{k}", "exec_s": 1, "output_bytes": 1} for r in "ab")]
        edges += [{"source": f"w{k}", "target": f"{r}{k}"} for r in "ab"]
    return graph_from_records(nodes, edges, {"name": "rows"})


def test_an_assignment_is_judged_with_the_inputs_that_have_no_room():
    """Each device holds three weights of eight. It waits for five, 5.125 s each, and runs what takes the last."""
    graph, topology = rows(8), devices(36, HOST)
    costs, apart = build_costs(graph, topology), np.array([-1, 0, 1] * 8, np.int32)
    streaming = Streaming(costs, roomy(Problem(graph, costs)))
    assert streaming.estimate_s(Assignment(apart, priority=np.arange(24.0), dispatch="order")) == 5 * 5.125 + 1
    together = np.array([*[-1, 0, 0] * 4, *[-1, 1, 1] * 4], np.int32)
    assert streaming.estimate_s(Assignment(together)) == 8.0  # the fourth is there before the others are used up


def test_what_takes_the_same_input_is_on_the_same_device_where_inputs_have_to_be_waited_for():
    graph, topology = rows(8), devices(36, HOST)
    placed = place(graph, topology, method="critical_path")
    assert placed.makespans_s == pytest.approx({"critical_path, streamed, offloaded": 14.25})
    assert placed.assignment.method == "critical_path, streamed, offloaded"
    ran = offloaded(graph, placed.costs, placed.assignment)
    assert validate_trace(*ran, Simulator().execute(*ran)).valid


def test_where_one_device_has_no_link_to_the_host_the_other_takes_what_has_to_be_loaded():
    nodes = [*({"id": f"w{k}", "input": True, "output_bytes": 10} for k in range(8)), *({"id": v, "exec_s": 1} for v in range(8)),
             {"id": "free", "exec_s": 9}]
    graph = graph_from_records(nodes, [{"source": f"w{v}", "target": v} for v in range(8)], {"name": "half"})
    placed = place(graph, devices(36, Host((2.0, 0.0), 0.125)))
    assert {load.device for load in placed.assignment.offload.loads} == {0}
    assert placed.assignment.device[-1] == 1


HALF = Host((0.0, 2.0), 0.125)


@pytest.mark.parametrize(("limits", "device", "seconds"), [([15, 25], [0, 1, 1, 1], 6.125), ([25, 25], [0, 0, 1, 1], 2.0),
                                                          ([15, 25], [0, 0, 1, 1], np.inf)])
def test_inputs_with_room_need_no_link_from_the_host(limits, device, seconds):
    graph = graph_from_records([*({"id": f"w{k}", "input": True, "output_bytes": 10} for k in range(4)),
                                *({"id": v, "exec_s": 1, "output_bytes": 1} for v in range(4))],
                               [{"source": f"w{v}", "target": v} for v in range(4)])
    costs = build_costs(graph, devices(1, HALF).with_memory(limits))
    assert Streaming(costs, roomy(Problem(graph, costs))).estimate_s(Assignment(np.array([-1] * 4 + device, np.int32))) == seconds


def test_what_would_have_to_be_loaded_over_no_link_is_said():
    def on_the_first(graph, costs, samples, seed):
        yield Assignment(np.where(graph.is_input, -1, 0).astype(np.int32))

    with pytest.raises(DeadlockError, match="device 'd0' runs out of memory, and small has no link between it and the host; give it one"):
        place(rows(4), devices(15, HALF), method="mine", learned={"mine": on_the_first})


def test_a_missing_link_between_devices_is_named():
    graph = tree([(3, 3, []), (1, 4, [0])])
    topology = replace(Topology.from_json({"devices": [{"name": "d0", "memory_bytes": 8}, {"name": "d1", "memory_bytes": 8}],
                                           "links": {"bandwidth_bytes_per_s": [[0, 0], [0, 0]]}}), host=HOST)
    with pytest.raises(AssignmentError, match="edge 0 -> 1: device: expected devices that are linked, got 'd0' and 'd1'"):
        plan_offload(graph, build_costs(graph, topology), Assignment(np.array([0, 1], np.int32)))


def test_a_plan_stays_where_a_second_try_fails(monkeypatch):
    """Another sequence may need more of a host than it has."""
    compiled, refused = [], []

    def along_one_run(graph, costs, assignment, start_s, style):
        if compiled and not np.array_equal(start_s, compiled[0][0]):
            refused.append(style)
            raise DeadlockError("the host may have to hold more")
        compiled.append((start_s, compile_offload(graph, costs, assignment, start_s, style)))
        return compiled[-1][1]

    monkeypatch.setattr("doppler_tf.offload.planning.compile_offload", along_one_run)
    placed = place(rows(8), devices(36, HOST), method="heft")
    assert refused
    assert placed.assignment.offload.loads == compiled[0][1].offload.loads


def test_a_note_tells_what_safety_in_any_order_costs(caplog):
    graph = tree([(2, 3, []), (4, 4, [0]), (4, 3, [1]), (4, 4, [0]), (2, 3, [3]), (2, 3, [3]), (2, 2, [5]), (4, 1, [4])])
    caplog.set_level("INFO", logger="doppler_tf")
    placed = place(graph, devices(8, HOST), samples=3)
    assert placed.assignment.offload is not None
    alone = place(graph, devices(8, HOST), samples=3, offload="never")
    assert alone.makespan_s < placed.makespan_s
    assert f"{1e3 * placed.makespan_s:.4g} ms in any order of execution; {1e3 * alone.makespan_s:.4g} ms fits" in caplog.text


def test_what_fits_in_one_order_alone_does_not_run_beside_a_plan():
    """It ran out of memory in some runs, and could be chosen by the others."""
    graph, topology = build_workload("chainmm", 4), preset("p100x4").with_memory(440e6)
    placed = place(graph, topology, samples=200)
    simple = baselines(Problem(graph, placed.costs, "auto"))
    assert simple
    assert not any(fits_in_any_order(graph, placed.costs, each.device) for each in simple.values())
    chosen = measure(placed, 2, time_scale=0.1)
    assert chosen.assignment.offload is not None
    assert not chosen.figures["measured"].keys() & simple.keys()


def test_a_search_by_itself_has_time_left_for_what_does_not_fit():
    """It took all of its seconds within the limits, where nothing fits, and without limits no more simulations than without seconds."""
    graph, topology = build_workload("chainmm", 4), preset("p100x4").with_memory(400e6)
    least, found = (place(graph, topology, "random_search", budget_s=seconds) for seconds in (1e-3, 0.6))
    assert found.assignment.offload.loads
    assert found.simulations["random_search"] > least.simulations["random_search"]


def test_what_fits_is_placed_as_without_a_host():
    graph = layers()
    bare, hosted = place(graph, devices(40)), place(graph, devices(40, HOST))
    assert hosted.assignment.offload is None
    assert bare.assignment.device.tolist() == hosted.assignment.device.tolist()
    assert bare.makespans_s == hosted.makespans_s


@pytest.mark.parametrize("method", ["auto", *sorted(HEURISTICS)])
def test_every_method_finds_a_way_with_a_host(method):
    graph, topology = layers(), devices(12, HOST)
    assert_says(refusal(DeadlockError, place, graph, devices(12)), "inputs, which are resident from the start, need 49 bytes")
    assert_says(refusal(DeadlockError, place, graph, topology, method, offload="never"), "out of memory with any assignment")
    found = place(graph, topology, method, samples=3)
    trace = simulate(graph, topology, found.assignment)
    assert trace.makespan_s == found.makespan_s >= found.lower_bound_s >= crossing_bound_s(graph, found.costs) > 0
    assert validate_trace(graph, topology, found.assignment, trace).work_conserving
    assert found.assignment.offload.loads


def test_what_no_device_holds_is_proven():
    assert_says(refusal(DeadlockError, place, layers(), devices(5, HOST)),
                "out of memory with any assignment: vertex 'a0' alone needs 6 bytes (its inputs 5 bytes, its output 1 bytes), no device "
                "has more than 5 bytes")


def test_pins_groups_and_devices_that_differ():
    """What needs the large device is kept on it, pins and groups hold."""
    nodes = [{"id": "w", "input": True, "output_bytes": 30}, {"id": "large", "exec_s": 1, "output_bytes": 1, "colocate": "g"},
             {"id": "near", "exec_s": 1, "output_bytes": 1, "colocate": "g"}]
    nodes += [{"id": f"w{i}", "input": True, "output_bytes": 8} for i in range(6)]
    nodes += [{"id": f"v{i}", "exec_s": 1, "output_bytes": 1, "pin": 0} for i in range(6)]
    edges = [{"source": "w", "target": "large"}] + [{"source": f"w{i}", "target": f"v{i}"} for i in range(6)]
    graph = graph_from_records(nodes, edges, {"name": "uneven"})
    listed = [{"name": "small", "memory_bytes": 17}, {"name": "large", "memory_bytes": 40}]
    topology = replace(Topology.from_json({"devices": listed, "links": {"bandwidth_bytes_per_s": 10}}), host=HOST)
    found = place(graph, topology)
    assert [found.device_of[v] for v in ("large", "near", "v0", "v5")] == ["large", "large", "small", "small"]
    nodes[2] = {**nodes[2], "pin": 0}
    nodes[1] = {**nodes[1], "pin": 0}
    assert_says(refusal(DeadlockError, place, graph_from_records(nodes, edges, {"name": "uneven"}), topology),
                "vertex 'large' alone needs 31 bytes (its inputs 30 bytes, its output 1 bytes), no device that may run it (small) has more")


@pytest.fixture
def planned(tmp_path):
    graph, topology = layers(), devices(12, HOST)
    found = place(graph, topology)
    write_assignment(tmp_path / "a.json", graph, found.costs, found.assignment, found.makespan_s)
    return graph, found, tmp_path / "a.json"


def test_a_plan_survives_its_file_and_is_run(planned, tmp_path):
    graph, found, path = planned
    again = read_assignment(path, graph, found.costs)
    assert simulate(graph, found.costs, again).makespan_s == found.makespan_s
    done = run(graph, found.costs, path, "emulated", time_scale=0.01, trace=tmp_path / "t.json", gantt=tmp_path / "g.png")
    assert done.figures["trace_valid"]
    assert done.figures["work_conserving"]
    assert done.figures["offload"]["reloads"] == len(found.assignment.offload.loads)
    stored = read_trace(tmp_path / "t.json")
    assert validate_trace(stored.graph, stored.costs, stored.assignment, stored.trace.log).work_conserving
    assert stored.costs.topology.device_names == ("d0", "d1", "host")


def test_what_does_not_go_with_a_plan_is_refused(planned):
    graph, found, path = planned
    for words, options in (("--executor synchronous", {"executor": "synchronous", "time_scale": 0.01}),
                           ("--emulate", {"executor": "emulated", "emulate": devices(12)})):
        assert_says(refusal(ConfigError, run, graph, found.costs, path, **options), words, "fits in the devices' memory")
    assert_says(refusal(AssignmentError, run, graph, found.costs, path, "emulated", repeat=2), "expected none beside --repeat 2")
    assert_says(refusal(AssignmentError, load_assignment, path, graph, found.costs), "`simulate` and `run` take it")
    assert_says(refusal(AssignmentError, FastSimulator(graph, found.costs).makespans_of, [found.assignment]), "use `simulate`")


@pytest.mark.parametrize(("change", "words"), [
    (lambda plan: plan.update(host={"bandwidth_bytes_per_s": 1.0}), "offload.host: expected that of small"),
    (lambda plan: plan.update(more=1), "offload: expected an object of host, loads, after, digest"),
    (lambda plan: plan.update(loads=[[0, 0]]), "offload.loads: expected a list of [tensor, device, [consumers]]"),
    (lambda plan: plan["loads"].append([999, 0, []]), "expected a tensor, a device, and consumers of it there, each once"),
    (lambda plan: plan["loads"].append(plan["loads"][0]), "expected a tensor, a device, and consumers of it there, each once"),
    (lambda plan: plan.update(after=[[-1, 2]]), "offload.after: expected a list of pairs of integers >= 0"),
    (lambda plan: plan.update(after=[[99999, 15]]), "offload.after: expected vertices that are not inputs, and transfers, below"),
    (lambda plan: plan.update(after=[[15, 9], [9, 15]]), "offload.after: expected pairs by which nothing waits for itself, got 'a circle'"),
    (lambda plan: plan.update(after=[]), "the plan was changed after it was made, and may not keep limits any more: place again"),
    (lambda plan: plan["after"].pop(), "offload.digest: expected"),
    (lambda plan: plan.pop("digest"), "got None"),
])
def test_a_plan_that_does_not_fit_is_told(planned, change, words):
    graph, found, path = planned
    record = json.loads(path.read_text())
    change(record["offload"])
    path.write_text(json.dumps(record))
    assert_says(refusal(AssignmentError, read_assignment, path, graph, found.costs), words)


def test_a_plan_needs_the_topology_that_it_was_made_for(planned):
    graph, found, path = planned
    for topology, words in ((devices(12, HOST, 3), "made for another topology"),
                            (devices(13, HOST), "memory_bytes: expected 13B, as the devices of small have, got 12B; it was made with other "
                                                "limits of memory: give --memory 12B, or place again"),
                            (devices(12, HOST).with_memory([12, 2e9]), "expected 12B,2GB, as the devices of small have, got 12B")):
        assert_says(refusal(AssignmentError, read_assignment, path, graph, build_costs(graph, topology)), words)
    for topology, words in ((devices(12), "offload.host"), (devices(12, Host(3.0)), "offload.host")):
        assert_says(refusal(AssignmentError, read_assignment, path, graph, build_costs(graph, topology)), words, "place again")
    assert_says(refusal(AssignmentError, simulate, graph, devices(12), found.assignment), "offload: expected a topology with a host")


@pytest.mark.parametrize(("host", "words"), [
    ({}, "host: bandwidth_bytes_per_s: expected a finite number >= 0, or a list of them, one a device, got None"),
    ({"bandwidth_bytes_per_s": 0}, "a host needs links"),
    ({"bandwidth_bytes_per_s": [0, 0]}, "a host needs links"),
    ({"bandwidth_bytes_per_s": [1]}, "expected a number > 0, or 2 of them, one a device"),
    ({"bandwidth_bytes_per_s": -1}, "host: bandwidth_bytes_per_s: expected a finite number >= 0"),
    ({"bandwidth_bytes_per_s": 1, "memory_bytes": -3}, "host: memory_bytes: expected a finite number > 0, got -3"),
    ({"bandwidth_bytes_per_s": 1, "latency": 2}, "host: latency: expected one of bandwidth_bytes_per_s, latency_s, memory_bytes, shared"),
    (7, "host: expected names with values, got 7"),
])
def test_a_host_that_is_none_is_told(host, words):
    assert_says(refusal(TopologyError, Topology.from_json, {**devices(12).to_json(), "host": host}), words)


def test_a_host_is_in_files_and_in_no_hash(tmp_path):
    hosted = devices(12, Host((1.0, 2.0), 0.5, 100, True))
    write_topology(tmp_path / "t.json", hosted)
    again = Topology.from_json(json.loads((tmp_path / "t.json").read_text()))
    assert again.host == hosted.host
    assert again.topology_hash == devices(12).topology_hash
    assert "host" not in devices(12).to_json()


@pytest.mark.parametrize(("shared", "lanes"), [(False, 2), (True, 1)])
def test_links_of_the_host_share_a_card_each_way(shared, lanes):
    wide = devices(12, Host(2.0, shared=shared)).with_host
    assert len({*wide.lanes[-1, :-1].tolist()}) == len({*wide.lanes[:-1, -1].tolist()}) == lanes
    assert not {*wide.lanes[-1, :-1].tolist()} & {*wide.lanes[:-1, -1].tolist()}


def test_what_info_tells_of_memory():
    """One device in order: weights from the start, then at most both products of a layer beside them."""
    told = describe_memory(layers(2))
    assert told == {"input_bytes": 17, "tensor_bytes": 23, "largest_vertex": "a0", "largest_vertex_bytes": 6, "one_device_peak_bytes": 18}


def test_a_plan_is_never_faster_than_what_must_cross():
    graph, topology = layers(), devices(12, Host(0.25))
    costs = build_costs(graph, topology)
    bound_s = crossing_bound_s(graph, costs)
    assert bound_s == (49 - 24) / 0.5
    found = place(graph, topology)
    assert found.lower_bound_s == bound_s <= plan_offload(graph, costs, found.assignment)[0]


def test_noise_is_told_not_to_count(monkeypatch):
    told = []
    monkeypatch.setattr("doppler_tf.placement.note", told.append)
    place(layers(), devices(12, HOST), noise=0.1)
    assert told == ["layers: kept in part on the host, so assignments are judged without noise"]


@pytest.mark.parametrize(("bandwidth", "explicit"), [(500.0, {}), (1e5, {"transfer_s": 1.0})])
def test_the_bound_holds_where_the_way_by_the_host_is_faster_than_the_link(bandwidth, explicit):
    """A plan sends the tensor of `a` by the host, as `d0` has no room for it beside that of `b`."""
    sizes = {"a": (10, "d0", 1e-3), "b": (40, "d0", 1e-3), "c": (10, "d0", 1e-3), "big": (50, "d1", 5e-3), "bc": (1, "d1", 1e-3),
             "d": (1, "d1", 1e-3)}
    nodes = [{"id": name, "output_bytes": size, "pin": pin, "exec_s": seconds} for name, (size, pin, seconds) in sizes.items()]
    edges = [{"source": s, "target": t} for s, t in (("a", "b"), ("b", "c"), ("big", "bc"), ("bc", "d"))]
    graph = graph_from_records(nodes, [*edges, {"source": "a", "target": "d", **explicit}], {"name": "by_host"})
    devices = [{"name": "d0", "memory_bytes": 50}, {"name": "d1", "memory_bytes": 52}]
    topology = Topology.from_json({"name": "t", "devices": devices, "links": {"bandwidth_bytes_per_s": bandwidth},
                                   "host": {"bandwidth_bytes_per_s": 1e5}})
    placed = place(graph, topology)
    assert placed.assignment.offload is not None
    assert placed.makespan_s == pytest.approx(7.1e-3)
    assert placed.lower_bound_s == pytest.approx(7e-3)
    assert validate_trace(graph, topology, placed.assignment, simulate(graph, topology, placed.assignment)).valid
