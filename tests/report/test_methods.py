"""The methods that a report compares."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from doppler_tf.cli.report import render
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics import CONSTRUCTIVE, FAST
from doppler_tf.report import methods
from doppler_tf.report.methods import BEST, GREEDY, compared_methods, fastest_baseline, fastest_heuristic


def compared(memory_bytes: float | None) -> list[dict]:
    """Two vertices of 2 s and 6 bytes each, on two devices."""
    graph = graph_from_records([{"id": v, "exec_s": 2, "output_bytes": 6} for v in "ab"], [])
    topology = ideal(2)
    topology = replace(topology, devices=tuple(replace(device, memory_bytes=memory_bytes) for device in topology.devices))
    return compared_methods(graph, build_costs(graph, topology), 2.0, 4.0, "fifo", 0)


def test_the_learned_assignments_come_first_and_then_every_constructive_heuristic():
    rows = compared(None)
    assert [(row["name"], row["makespan_s"], row["learned"]) for row in rows[:2]] == [(BEST, 2.0, True), (GREEDY, 4.0, True)]
    assert [row["name"] for row in rows[2:]] == list(CONSTRUCTIVE)
    assert {row["name"]: row["makespan_s"] for row in rows}["one_device"] == 4


def test_large_graphs_are_left_to_the_fast_heuristics(monkeypatch):
    monkeypatch.setattr(methods, "MOST_FOR_ALL", 1)
    assert [row["name"] for row in compared(None)[2:]] == list(FAST)


def test_a_method_that_runs_out_of_memory_has_no_makespan():
    found = {row["name"]: row["makespan_s"] for row in compared(10.0)}
    assert (found["one_device"], found["heft"]) == (None, 2.0)


@pytest.mark.parametrize(("makespans_s", "name"), [
    ({BEST: 1.0, GREEDY: 2.0, "heft": 4.0, "etf": 3.0, "random": None}, "etf"), ({BEST: 1.0, "heft": None}, None),
])
def test_the_fastest_heuristic(makespans_s, name):
    assert fastest_heuristic(makespans_s) == name


@pytest.mark.parametrize(("baselines", "found"), [
    ({"one_device": {"median_s": 2.0}, "heft": {"median_s": 1.0}, "etf": {"median_s": None}}, ("heft", 1.0)), ({}, ("none", None)),
])
def test_the_fastest_baseline(baselines, found):
    assert fastest_baseline({"baselines": baselines}) == found


def test_what_was_measured_has_a_table_of_its_own():
    graphs = {name: {"best_makespan_s": 4.0, "lower_bound_s": 2.0, "methods": {"heft": 3.0}} for name in ("learned", "measured")}
    graphs["measured"]["measured"] = {"best_s": 1.0, "before_s": 2.0, "baselines": {"one_device": {"median_s": 1.5}}}
    assert shown(graphs).split()[-8:-2] == ["measured", "1,000", "ms", "2,000", "ms", "1,500"]
    assert "(one_device)" in shown(graphs)
    assert "measured in stage III" not in shown({"learned": graphs["learned"]})


def shown(graphs: dict) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(*render({"graphs": graphs, "page": "page.html"})[:-1])
    return console.file.getvalue()
