"""Utilisation by hand, and pictures of every shape of run."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.image import imread

from doppler_tf.errors import FormatError
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Device, Topology
from doppler_tf.report.figures import PALETTE
from doppler_tf.report.gantt import gantt_png, write_gantt
from doppler_tf.report.utilisation import card_utilisation, device_utilisation, link_utilisation
from doppler_tf.schedule.assignment import Assignment, assignment_from_devices
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import Trace


def fan(width: int, exec_s: float = 2.0):
    """`width` independent vertices of as many meta-ops, all read by one last vertex."""
    nodes = [{"id": i, "exec_s": exec_s, "meta_op": f"op$\\x{i}$"} for i in range(width)] + [{"id": width, "exec_s": exec_s / 2}]
    edges = [{"source": i, "target": width, "transfer_s": exec_s / 4} for i in range(width)]
    return graph_from_records(nodes, edges, {"name": "fan_$\\x$_"})


def run_of(graph, topology):
    costs = build_costs(graph, topology)
    device = (np.arange(graph.num_vertices) % costs.num_devices).tolist()
    return costs, simulate(graph, costs, assignment_from_devices(graph, costs, device))


def pixels(png: bytes) -> np.ndarray:
    return (imread(io.BytesIO(png), format="png")[..., :3] * 255).round().astype(int)


def shows(image: np.ndarray, colour: str) -> bool:
    return bool((image == [int(colour[i:i + 2], 16) for i in (1, 3, 5)]).all(axis=-1).any())


def test_utilisation_by_hand():
    costs, trace = run_of(fan(2), read_topology("ideal:2"))
    assert trace.makespan_s == 3.5
    np.testing.assert_allclose(device_utilisation(costs, trace), [3 / 3.5, 2 / 3.5])
    assert link_utilisation(trace) == {(1, 0): 0.5 / 3.5}


def test_overlapping_transfers_count_once():
    column = np.zeros(3, np.int32)
    trace = Trace(column[:1], column[:1], np.array([0.0]), np.array([10.0]), np.arange(3, dtype=np.int32), column, column + 1,
                  np.array([0.0, 1.0, 6.0]), np.array([4.0, 2.0, 7.0]))
    assert link_utilisation(trace) == {(0, 1): 0.5}


def test_links_of_a_card_are_busy_together():
    links = {"card": [[None, 4, 4], [None] * 3, [None] * 3]}
    topology = Topology.from_json({"devices": [{"name": name} for name in "pqr"], "links": links})
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(3)], [{"source": 0, "target": v, "transfer_s": v} for v in (1, 2)])
    costs = build_costs(graph, topology)
    trace = simulate(graph, costs, Assignment(np.array([0, 1, 2], np.int32)))
    assert link_utilisation(trace) == {(0, 1): 1 / 5, (0, 2): 2 / 5}
    assert card_utilisation(costs, trace) == {"p -> q and 1 more": 3 / 5}


def test_the_picture_shows_every_group_and_grows_with_the_devices():
    costs, trace = run_of(fan(4), read_topology("ideal:2"))
    few = pixels(gantt_png(fan(4), costs, trace, lower_bound_s=5.0, method="by_hand"))
    assert all(shows(few, colour) for colour in PALETTE[:4])
    assert not shows(few, PALETTE[6])
    costs, trace = run_of(fan(8), read_topology("ideal:8"))
    assert pixels(gantt_png(fan(8), costs, trace)).shape[0] > few.shape[0]


@pytest.mark.parametrize("letters", [2, 11, 16, 30])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_card_is_narrow_and_nothing_in_it_is_cut_off(groups, letters):
    nodes = [{"id": i, "exec_s": 1.0, "meta_op": f"{i}{'e' * (letters - 1)}"} for i in range(groups)]
    graph = graph_from_records(nodes, [], {"name": letters * "a_graph.of:many "})
    costs, trace = run_of(graph, read_topology("ideal:2"))
    image = pixels(gantt_png(graph, costs, trace, lower_bound_s=0.5, method="policy, greedy", card=True))
    assert image.shape[1] == 350
    assert all(shows(image, colour) for colour in PALETTE[:groups])
    assert (image[:, [0, -1]] == 255).all()
    assert (image[[0, -1]] == 255).all()


@pytest.mark.parametrize("topology", ["ideal:1", "ideal:8"])
@pytest.mark.parametrize("exec_s", [0.0, 1e-6, 1e12])
def test_pictures_of_any_scale_and_size(topology, exec_s):
    graph = fan(40, exec_s)
    costs, trace = run_of(graph, read_topology(topology))
    assert pixels(gantt_png(graph, costs, trace, lower_bound_s=exec_s)).size


def test_many_links_are_gathered_by_destination_and_slots_have_lanes():
    devices = tuple(Device(f"d{d}", slots=2) for d in range(8))
    costs, trace = run_of(fan(64), Topology("wide", devices, np.ones((8, 8)), np.zeros((8, 8)), 1))
    assert pixels(gantt_png(fan(64), costs, trace)).size


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    costs, trace = run_of(fan(2), read_topology("ideal:2"))
    with pytest.raises(FormatError, match="cannot be written"):
        write_gantt(tmp_path / "file" / "g.png", fan(2), costs, trace)
