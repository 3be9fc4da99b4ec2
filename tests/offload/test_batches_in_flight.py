"""Batches in flight that do not fit: `place --in-flight` compiles a plan for them, and simulations and runs follow it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from data import build_workload
from data.capture import capture
from doppler_tf.api.placing import place_files
from doppler_tf.api.running import run
from doppler_tf.api.traces import simulated
from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError
from doppler_tf.formats.chrome_trace import read_trace
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.formats.topology_json import write_topology
from doppler_tf.graph.costs import draw_noise
from doppler_tf.graph.topology import Host, cpu
from doppler_tf.placement import place_batches
from doppler_tf.schedule.any_order import fits_in_any_order
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.memory import never_fits
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from tests.messages import assert_says, refusal
from tests.offload.test_captured import dense, rows
from tests.offload.test_placing import HOST, devices, layers
from tests.strategies import cases_that_need_a_host, examples


@pytest.fixture
def placed(tmp_path):
    """Two batches of layers on two devices that hold neither: the files of graph, topology and assignment, and what `place` tells."""
    write_graph(tmp_path / "graph.json", layers())
    write_topology(tmp_path / "topology.json", devices(12, HOST))
    paths = tmp_path / "graph.json", tmp_path / "topology.json", tmp_path / "placed.json"
    found = place_files([paths[0]], str(paths[1]), in_flight=2, samples=5, out=paths[2], gantt=tmp_path / "g.png")
    return paths, found


def test_a_plan_for_batches_is_written_simulated_and_run(placed, tmp_path):
    (graph, topology, assignment), found = placed
    assert json.loads(assignment.read_text())["batches"] == 2
    assert found["offload"]["reloads"] > 0
    assert found["throughput_per_s"] == 2 / found["makespan_s"]
    again = simulated(graph, topology, assignment, repeat=2, in_flight=2)
    for name in ("makespan_s", "latency_s", "offload"):
        assert again.figures[name] == found[name]
    assert again.figures["work_conserving"]
    assert max(again.figures["peak_bytes"][name] for name in ("d0", "d1")) <= 12
    done = run(graph, topology, assignment, "emulated", time_scale=0.002, repeat=2, in_flight=2, trace=tmp_path / "t.json")
    assert done.figures["trace_valid"]
    assert done.figures["work_conserving"]
    assert done.figures["simulated_latency_s"] == found["latency_s"]
    assert read_trace(tmp_path / "t.json").costs.topology.host_device == 2


@pytest.mark.parametrize(("repeat", "in_flight"), [(4, 2), (2, None), (2, 1), (3, 3)])
def test_a_plan_is_for_its_number_of_batches(placed, repeat, in_flight):
    for call, more in ((simulated, {}), (run, {"executor": "emulated"})):
        assert_says(refusal(AssignmentError, call, *placed[0], repeat=repeat, in_flight=in_flight, **more),
                    f"offload: expected --repeat 2 --in-flight 2, for which the plan was made, got --repeat {repeat} --in-flight "
                    f"{in_flight or 1}; give these, or place with another --in-flight")


def test_what_never_fits_and_what_must_fit_is_refused():
    batches = repeat_graph(layers(), devices(12, HOST), 2, 2)
    assert_says(refusal(DeadlockError, place_batches, batches, offload="never"), "out of memory with any assignment")
    assert_says(refusal(DeadlockError, place_batches, repeat_graph(layers(), devices(5, HOST), 2, 2)),
                "vertex 'batch 0: a0 (id 0/a0)' alone needs 6 bytes")


def test_batches_that_fit_are_placed_as_without_a_host():
    bare, hosted = (place_batches(repeat_graph(layers(), topology, 2, 2), samples=5) for topology in (devices(80), devices(80, HOST)))
    assert hosted.assignment.offload is None
    assert bare.assignment.device.tolist() == hosted.assignment.device.tolist()
    assert bare.makespans_s == hosted.makespans_s


def test_the_host_is_used_where_what_does_not_fit_would_end_sooner():
    batches = repeat_graph(layers(), devices(40, Host(10.0, 0.125)), 2, 2)
    fits, found = (place_batches(batches, samples=5, offload=offload) for offload in ("never", "auto"))
    assert found.assignment.offload.loads
    assert found.lower_bound_s <= found.makespan_s < fits.makespan_s


def test_what_fits_in_one_order_alone_gets_a_plan():
    """With as much memory as its simulated run takes, and not a byte for another order."""
    graph, topology = build_workload("chainmm", 4, scale="small"), cpu(4)
    free = place_batches(repeat_graph(graph, topology, 2, 2), samples=5)
    peak = float(peak_bytes(free.graph, free.costs, free.assignment, simulate(free.graph, free.costs, free.assignment)).max())
    batches = repeat_graph(graph, topology.with_memory(peak), 2, 2)
    alone = place_batches(batches, samples=5, offload="never").assignment
    assert not fits_in_any_order(batches.graph, batches.costs, alone.device)
    ran = offloaded(batches.graph, batches.costs, place_batches(batches, samples=5).assignment)
    for seed in range(20):
        noise = draw_noise(ran[0].num_vertices, ran[1].num_devices, 0.5, seed)
        assert np.isfinite(Simulator(noise=noise).execute(*ran).makespan_s)


@examples(0.05)
@given(cases_that_need_a_host(3))
def test_random_batches_stay_within_their_limits(case):
    batches = repeat_graph(case.graph, case.costs.topology, 2, 2)
    try:
        found = place_batches(batches, "critical_path", samples=2)
    except DeadlockError:
        assert never_fits(batches.graph, batches.costs, host=True) is not None
        return
    trace = Simulator().execute(*offloaded(batches.graph, batches.costs, found.assignment))
    assert trace.makespan_s == found.makespan_s
    assert validate_trace(batches.graph, batches.costs, found.assignment, trace).work_conserving


def frozen(folder):
    return capture(dense(), rows(0), model_folder=folder, pieces=2, grouping=False)


def training(folder):
    return build_workload("ffnn", 2, scale="small", optimizer="sgd")


@pytest.mark.parametrize("made", [frozen, training])
def test_real_kernels_give_the_outputs_of_each_batch(made, tmp_path):
    """Frozen weights, which all batches share, and what a batch hands to the next one."""
    graph = made(tmp_path / "model")
    write_graph(tmp_path / "graph.json", graph)
    free = place_files([tmp_path / "graph.json"], "cpu:2", in_flight=2, samples=3, out=tmp_path / "free.json")
    assert "offload" not in free
    peaks = simulated(tmp_path / "graph.json", "cpu:2", tmp_path / "free.json", repeat=2, in_flight=2).figures["peak_bytes"]
    limit = 0.5 * max(peaks.values())
    short = cpu(2).with_memory(limit)
    write_topology(tmp_path / "short.json", short)
    found = place_files([tmp_path / "graph.json"], str(tmp_path / "short.json"), in_flight=2, samples=3, out=tmp_path / "placed.json")
    assert found["offload"]["reloads"] > 0
    planned, batches = (tmp_path / "graph.json", short, tmp_path / "placed.json"), {"repeat": 2, "in_flight": 2}
    assert_says(refusal(ConfigError, run, *planned, **batches, restart_on_loss=True), "--restart-on-loss", "got one with offload")
    done = run(*planned, **batches, repeats=2)
    assert done.figures["outputs_match"]
    assert done.figures["trace_valid"]
    assert done.figures["work_conserving"]
    assert (done.trace.peak_bytes[:-1] <= limit).all()
    assert (done.trace.peak_tensor_bytes[:-1] <= np.floor(limit)).all()
