"""Figures by hand: errors, rank correlation, durations by kind; and the picture."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.report.calibration import Agreement, Durations, agreement, kind_table, link_table
from doppler_tf.report.scatter import scatter_png
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.simulator import simulate


def test_errors_by_hand():
    found = agreement(np.array([1.0, 3.0, 2.0]), np.array([2.0, 2.0, 2.0]))
    assert (found.median_error, found.worst_error, found.bias) == (0.5, 0.5, 0.0)
    assert agreement(np.array([1.1, 2.2]), np.array([1.0, 2.0])) == Agreement(*map(pytest.approx, (0.1, 0.1, 0.1, 1.0)))


@pytest.fixture
def pair():
    """Two multiplications of 2 and 4 s feed an addition of 1 s; transfers take 3 s."""
    nodes = [{"id": "a", "kind": "mul", "exec_s": 2}, {"id": "b", "kind": "mul", "exec_s": 4}, {"id": "c", "kind": "add", "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": v, "target": "c", "transfer_s": 3} for v in "ab"])
    return graph, build_costs(graph, ideal(2))


def test_durations_by_kind_are_medians_over_runs_and_means_over_vertices(pair):
    graph, costs = pair
    twice = replace(costs, exec_s=2 * costs.exec_s, explicit_transfer_s=2 * costs.explicit_transfer_s)
    durations = Durations(graph, {"given": costs, "twice": twice})
    assignment = assignment_from_devices(graph, costs, [0, 1, 0])
    for model in (costs, costs, replace(costs, exec_s=100 * costs.exec_s)):  # one run in three is wild
        durations.add(simulate(graph, model, assignment), assignment)
    assert durations.by_kind() == {
        "mul": {"count": 2, "measured_s": 3.0, "given_s": 3.0, "twice_s": 6.0},
        "add": {"count": 1, "measured_s": 1.0, "given_s": 1.0, "twice_s": 2.0},
        "transfer": {"count": 1, "measured_s": 3.0, "given_s": 3.0, "twice_s": 6.0}}
    columns, rows = kind_table(durations.by_kind(), ["given", "twice"])
    assert columns == ("kind", "number", "in runs", "given", "error", "twice", "error")
    assert rows[0] == ("mul", "2", "3,000 ms", "3,000 ms", "+0.0%", "6,000 ms", "+100.0%")


def test_the_log_decides_where_there_is_one(pair):
    graph, costs = pair
    assignment = assignment_from_devices(graph, costs, [0, 0, 0])
    trace = simulate(graph, costs, assignment)
    durations = Durations(graph, {})
    durations.add(replace(trace, end_s=trace.start_s, log=trace), assignment)
    assert durations.by_kind() == {"mul": {"count": 2, "measured_s": 3.0}, "add": {"count": 1, "measured_s": 1.0}}


def test_equal_links_share_a_row():
    links = [{"source": s, "destination": t, "latency_s": 2e-5, "bandwidth_bytes_per_s": b}
             for s, t, b in (("a", "b", 1e9), ("b", "a", 1e9), ("a", "c", math.inf))]
    assert link_table(links)[1] == [("a to b and 1 more", "20.0 us", "1 GB/s"), ("a to c", "20.0 us", "–")]


def test_links_between_machines_tell_what_they_take_from_devices():
    links = [{"source": "a", "destination": "b", "latency_s": 2e-5, "bandwidth_bytes_per_s": 1e9, "source_share": 0.25,
              "destination_share": 0.5}]
    assert link_table(links) == (("link", "latency", "bandwidth", "source's time", "destination's time"),
                                 [("a to b", "20.0 us", "1 GB/s", "25.0%", "50.0%")])


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e12])
def test_pictures_of_any_scale(models, scale):
    seconds = scale * np.array([1.0, 2.0, 3.0])
    png = scatter_png("a $x$ b", seconds, {f"m{i}": seconds for i in range(models)}, ["u", "v", "u"], {f"m{i}": "" for i in range(models)})
    assert imread(io.BytesIO(png), format="png").ndim == 3
