"""A lost device's work moves to the others, where that is wished and possible."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from data import assemble_outputs, build_workload, evaluate_program, input_tiles, output_vertices, relative_error, workload_program
from doppler_tf.errors import DeviceLostError
from doppler_tf.formats.chrome_trace import read_trace, write_trace
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.validation import validate_trace
from runtime.replacement import without_devices
from tests.faulty_devices import Case
from tests.watched_devices import watched_executor


def gone(device):
    raise DeviceLostError("no answer", device)


@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_the_run_completes_on_the_devices_that_are_left_and_the_trace_says_so(random_graph, place, runs):
    case = Case(random_graph(10, seed=4), place, restart_on_loss=True)
    with case.engine:
        for seed in range(runs):
            case.draw(seed)
            case.backend.fault, case.backend.lost = case.backend.dead.add, gone
            trace = case.run()
            assert set(trace.lost) == case.backend.dead
            assert not case.backend.dead & set(trace.device.tolist())
            kept = case.assignment.device != trace.lost[0]
            np.testing.assert_array_equal(trace.assignment.device[kept], case.assignment.device[kept])
            assert validate_trace(case.graph, case.costs, trace.assignment, trace).valid
            assert validate_trace(case.graph, case.costs, trace.assignment, trace.log).work_conserving
            assert len(case.engine.outputs) > 0
            case.backend.heal()
            assert case.run().lost == trace.lost  # what is gone is not tried again
            case.engine.close()
            case.recovers()


def test_without_the_wish_a_trace_has_lost_nothing(random_graph, place):
    case = Case(random_graph(10, seed=4), place)
    case.draw(0)
    case.backend.fault = gone
    with case.engine:
        with pytest.raises(DeviceLostError):
            case.run()
        case.backend.heal()
        trace = case.run()
    assert (trace.lost, trace.assignment) == ((), None)


def test_when_the_last_device_is_lost_the_run_fails(random_graph, place):
    case = Case(random_graph(10, seed=4), place, restart_on_loss=True)
    case.draw(0)
    case.backend.dead, case.backend.lost = {0, 1, 2}, gone
    with case.engine:
        assert "no answer" in case.fails(DeviceLostError)
        case.engine.close()
        case.recovers()


def test_a_device_lost_before_or_after_the_run_is_named_as_in_the_run(random_graph, place):
    case = Case(random_graph(10, seed=4), place)
    case.draw(0)
    with case.engine:
        case.backend.opening = lambda: gone(1)
        with pytest.raises(DeviceLostError) as placing:
            case.run()
        assert case.engine.outputs == {}
        case.recovers()
        first = next(iter(case.engine._session.kept))
        case.backend.fetching = lambda: gone(None)
        with pytest.raises(DeviceLostError) as fetching:
            _ = case.engine.outputs
    assert placing.value.device == 1
    assert str(placing.value) == ("toy: placing inputs failed on device 'CPU:1': DeviceLostError: no answer; place the graph on the "
                                  "devices that are left")
    assert str(fetching.value) == (f"toy: fetching the output of vertex {case.labels[first]} on device "
                                   f"'CPU:{case.assignment.device[first]}' failed: DeviceLostError: no answer; place the graph on the "
                                   f"devices that are left")


def test_outputs_lost_after_the_run_are_computed_again_where_that_is_wished(random_graph, place):
    case = Case(random_graph(10, seed=4), place, restart_on_loss=True)
    case.draw(0)
    case.backend.heal()
    with case.engine:
        case.run()
        whole, asked = case.engine.outputs.keys(), Counter()

        def lost_once():
            asked["times"] += 1
            if asked["times"] == 1:
                gone(1)

        case.backend.fetching = lost_once
        assert case.engine.outputs.keys() == whole
        assert asked["times"] == 1 + len(whole)


def test_real_kernels_compute_the_same_on_the_devices_that_are_left(tmp_path):
    graph = build_workload("chainmm", 4, scale="small")
    record = graph.attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(record["seed"])
    costs = build_costs(graph, cpu(4))
    assignment = assignment_from_devices(graph, costs, np.random.default_rng(0).integers(0, 4, graph.num_vertices).tolist())
    calls = Counter()

    def fails_at_its_fifth(method, _, device, *rest):
        if method == "run_vertex":
            calls[device] += 1
            if device == 2 and calls[device] >= 5:
                raise DeviceLostError("no answer", device)

    with watched_executor(fails_at_its_fifth, input_tiles(graph, tensors), output_vertices(graph), warmup=False,
                          restart_on_loss=True) as executor:
        trace = executor.execute(graph, costs, assignment)
        assert relative_error(assemble_outputs(graph, executor.outputs), evaluate_program(program, tensors)) <= 1e-5
    assert trace.lost == (2,)
    assert calls[2] == 5
    write_trace(tmp_path / "trace.json", graph, costs, assignment, trace)
    file = read_trace(tmp_path / "trace.json")
    assert validate_trace(file.graph, file.costs, file.assignment, file.trace.log).work_conserving
    assert file.trace.lost == (2,)
    assert file.trace.peak_bytes.tolist() == trace.peak_bytes.tolist()
    assert file.trace.peak_tensor_bytes.tolist() == trace.peak_tensor_bytes.tolist()


def test_groups_move_whole_work_is_spread_and_pins_forbid():
    nodes = [{"id": v, "exec_s": 1.0, "output_bytes": 1, **extra} for v, extra in
             enumerate([{}, {}, {"colocate": "pair"}, {"colocate": "pair"}, {}, {"pin": 0}])]
    graph = graph_from_records(nodes, [], {"name": "toy"})
    costs = build_costs(graph, cpu(3))
    assignment = assignment_from_devices(graph, costs, [1, 1, 1, 1, 2, 0])
    moved = without_devices(graph, costs, assignment, [1])
    assert moved.device.tolist() == [0, 2, 0, 0, 2, 0]
    assert without_devices(graph, costs, moved, [1, 2]).device.tolist() == [0] * 6
    assert without_devices(graph, costs, assignment, [0]) is None
    assert without_devices(graph, costs, assignment, [0, 1, 2]) is None
    assert without_devices(graph, costs, replace(assignment, after=np.empty((0, 2), np.int32)), [1]) is None  # of a plan for memory
