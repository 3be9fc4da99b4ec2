"""The methods that a report compares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics import CONSTRUCTIVE, FAST
from doppler_tf.report import methods
from doppler_tf.report.methods import BEST, GREEDY, compared_methods, fastest_heuristic


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
