"""The data of a run's page, by hand: layout, bars, tables."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Device, Topology
from doppler_tf.report.figures import PALETTE
from doppler_tf.report.html.layout import layered
from doppler_tf.report.html.page import page
from doppler_tf.report.html.pictures import MOST_BARS, MOST_VERTICES, gantt_data, graph_data
from doppler_tf.report.html.section import Outcome, section
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.simulator import simulate

DIAMOND = ([{"id": "x", "input": True}, {"id": "a", "exec_s": 2}, {"id": "b", "exec_s": 2}, {"id": "c", "exec_s": 1}],
           [("x", "a"), ("x", "b"), ("a", "c"), ("b", "c")])


def made(nodes, pairs, name="diamond"):
    edges = [{"source": u, "target": v, "transfer_s": 1} for u, v in pairs]
    return graph_from_records(nodes, edges, {"name": name})


def outcome_of(graph, topology, device, **more) -> Outcome:
    costs = build_costs(graph, topology)
    assignment = assignment_from_devices(graph, costs, device)
    trace = simulate(graph, costs, assignment)
    figures = {"greedy_makespan_s": 5.0, "best_makespan_s": trace.makespan_s, "lower_bound_s": 3.0, "episodes": 10, "seconds": 1.0}
    methods = [{"name": "learned, best", "makespan_s": trace.makespan_s, "samples": None, "learned": True},
               {"name": "slow", "makespan_s": 6.0, "samples": 1, "learned": False},
               {"name": "stuck", "makespan_s": None, "samples": 1, "learned": False},
               {"name": "fast", "makespan_s": trace.makespan_s, "samples": 1, "learned": False}]
    return Outcome(graph, costs, figures, assignment, trace, **{"methods": methods, "charts": [], "traces": [], **more})


@pytest.fixture
def diamond() -> Outcome:
    return outcome_of(made(*DIAMOND), read_topology("ideal:2"), [None, 0, 1, 0])


def test_columns_by_depth_with_sources_beside_their_consumers():
    graph = made([{"id": v, "exec_s": 1} for v in "abcde"], [("a", "b"), ("b", "c"), ("c", "d"), ("e", "d")])
    column, row = layered(graph)
    assert column.tolist() == [0, 1, 2, 3, 2]
    assert sorted(row[[2, 4]]) == [-0.5, 0.5]
    assert row[[0, 1, 3]].tolist() == [0, 0, 0]


def test_rows_uncross_parallel_chains():
    nodes = [{"id": f"{c}{i}", "exec_s": 1} for i in range(3) for c in (range(6) if i % 2 else range(5, -1, -1))]
    graph = made(nodes, [(f"{c}{i}", f"{c}{i + 1}") for i in range(2) for c in range(6)])
    _, row = layered(graph)
    place = dict(zip(graph.ids, row.tolist(), strict=True))
    assert all(place[f"{c}0"] == place[f"{c}1"] == place[f"{c}2"] for c in range(6))


def test_inputs_and_lone_vertices():
    column, _ = layered(made([{"id": "x", "input": True}, {"id": "a", "exec_s": 1}, {"id": "b", "exec_s": 1}], [("x", "a")]))
    assert column.tolist() == [-1, 0, 0]


def test_the_diamonds_bars(diamond):
    data = gantt_data(diamond.graph, diamond.costs, diamond.trace, 3.0)
    assert [row["label"] for row in data["rows"]] == ["device:0 75%", "device:1 50%", "device:1 → device:0 25%"]
    bars = data["bars"]
    rows = {tuple(bars[key][i] for key in ("row", "vertex", "start_s", "end_s", "source", "destination")) for i in range(4)}
    assert rows == {(0, 1, 0, 2, 0, 0), (1, 2, 0, 2, 1, 1), (0, 3, 3, 4, 0, 0), (2, 2, 2, 3, 1, 0)}
    assert data["groups"][bars["group"][-1]]["name"] == "transfer"


def test_devices_of_several_slots_have_lanes():
    graph = made([{"id": v, "exec_s": 1} for v in range(4)], [])
    topology = Topology("slots", (Device("d", slots=2),), np.full((1, 1), np.inf), np.zeros((1, 1)), 1)
    one = outcome_of(graph, topology, [0] * 4)
    data = gantt_data(graph, one.costs, one.trace, 2.0)
    assert data["rows"][0]["lanes"] == 2
    assert sorted(data["bars"]["lane"]) == [0, 0, 1, 1]


def test_the_diamonds_section(diamond):
    found = section(diamond)
    assert (found["vertices"], found["inputs"], found["edges"], found["depth"], found["transfers"]) == (3, 1, 2, 2, 1)
    assert [(row["name"], row["fastest"]) for row in found["methods"]] == [("learned, best", True), ("fast", True), ("slow", False),
                                                                           ("stuck", False)]
    first, second = found["devices"]
    assert (first["name"], first["vertices"], first["busy"], first["idle"]["link"]) == ("device:0", 2, 0.75, 1.0)
    assert (second["colour"], second["idle"]["finished"]) == (PALETTE[1], 2.0)
    assert [row["vertex"] for row in found["executions"]] == ["a", "b", "c"]
    drawing = found["data"]["graph"]
    assert (drawing["vertex"], drawing["edges"], drawing["device"]) == ([1, 2, 3], [[0, 2], [1, 2]], [0, 1, 0])
    assert json.loads(json.dumps(found["data"], allow_nan=False)) == found["data"]


def test_long_charts_have_short_tables(diamond):
    lines = [{"name": "greedy", "points": [[x, 2.0 + x] for x in range(101)]}, {"name": "late", "points": [[100, 1.0]]}]
    chart = {"title": "t", "x": "episodes", "y": "makespan", "seconds": True, "series": lines}
    one = Outcome(**{**vars(diamond), "charts": [chart]})
    (found,) = section(one)["charts"]
    assert len(found["rows"]) == 20
    assert (found["rows"][0], found["rows"][-1]) == ((0, [2.0, None]), (100, [102.0, 1.0]))
    assert found["data"]["bound_s"] == 3.0


def test_large_graphs_are_left_out_and_the_page_says_so():
    count = MOST_BARS + 1
    graph = made([{"id": v, "exec_s": 1} for v in range(count)], [])
    one = outcome_of(graph, read_topology("ideal:2"), [v % 2 for v in range(count)])
    assert gantt_data(graph, one.costs, one.trace, 1.0) is None
    assert graph_data(graph, one.assignment) is None
    text = page("run", {"method": "doppler", "seed": 0}, [one])
    assert f"More than {MOST_BARS:,} executions and transfers are not drawn" in text
    assert f"Graphs of more than {MOST_VERTICES:,} vertices" in text
    assert len(text) < 60_000


def test_names_are_text_wherever_they_stand():
    evil = "</script><script>alert(1)</script><b title=\"x\">'&"
    nodes = [{"id": i, "exec_s": 1, "name": f"{evil}{i}", "kind": evil, "meta_op": evil} for i in range(2)]
    topology = Topology(evil, (Device(evil), Device(f"{evil}2")), np.ones((2, 2)), np.zeros((2, 2)), 1)
    chart = {"title": evil, "x": evil, "y": evil, "seconds": True, "series": [{"name": evil, "points": [[1, 1.0]]}]}
    link = {"href": "a%22b", "text": evil, "what": evil}
    one = outcome_of(made(nodes, [(0, 1)], evil), topology, [0, 1], charts=[chart], traces=[link],
                     methods=[{"name": evil, "makespan_s": 1.0, "samples": 1, "learned": True}])
    text = page(evil, {"method": evil, "seed": 0}, [one])
    assert "<b " not in text
    assert len(re.findall("<script", text)) == len(re.findall("</script>", text)) == 2
