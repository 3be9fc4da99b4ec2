"""A bound that a search has proved stands in the assignment file, and all who read the file tell it; searches end at it."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from doppler_tf.formats.assignment_json import assignment_from_json, assignment_to_json
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.heuristics import Pool
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.bounds import lower_bounds
from tests.cli.test_bad_input import refused

# Three equal tasks on two devices take two of them one after the other, and CP-SAT proves it; adding up work proves one and a half.
TASKS = {"graph": {"name": "tasks"}, "nodes": [{"id": v, "exec_s": 2} for v in "abc"], "edges": []}
ON = "--topology", "ideal:2"


@pytest.fixture
def placed(cli, write, tmp_path):
    """The graph's file, and that of an assignment with a proven bound."""
    graph, assignment = write(TASKS, "tasks.json"), tmp_path / "a.json"
    found = cli("place", graph, *ON, "--method", "cp_sat", "--out", assignment, "--json").json
    assert (found["makespan_s"], found["lower_bound_s"]) == (4.0, 4.0)
    return graph, assignment


def test_whoever_reads_the_file_tells_the_bound(cli, placed, tmp_path):
    graph, assignment = placed
    assert json.loads(assignment.read_text())["proven_bound_s"] == 4.0
    assert cli("info", graph, *ON, "--json").json["lower_bound_s"] == 3.0
    given = graph, *ON, "--assignment", assignment, "--json"
    trace, real = tmp_path / "t.json", tmp_path / "r.json"
    for outcome in (cli("simulate", *given, "--trace", trace), cli("trace", trace, "--json"),
                    cli("simulate", *given, "--dispatch", "b_level"),
                    cli("run", *given, "--executor", "emulated", "--time-scale", 0.01, "--trace", real), cli("trace", real, "--json")):
        assert outcome.json["lower_bound_s"] == 4.0, outcome.err


def test_a_bound_counts_for_its_own_graph_and_topology_alone(cli, placed, write):
    graph, assignment = placed
    stored = json.loads(assignment.read_text())
    nameless = write({**stored, "graph_hash": None}, "nameless.json")
    assert cli("simulate", graph, *ON, "--assignment", nameless, "--json").json["lower_bound_s"] == 3.0
    batches = cli("simulate", graph, *ON, "--assignment", assignment, "--repeat", 2, "--in-flight", 2, "--json").json
    assert batches["lower_bound_s"] == 6.0  # of two calls, by their work
    for value in (-1, "4", True):
        refused(cli("simulate", graph, *ON, "--assignment", write({**stored, "proven_bound_s": value}), "--json"), "proven_bound_s", ">= 0")
    refused(cli("simulate", graph, *ON, "--assignment", write({**stored, "proven_bound_s": 40}), "--json"),
            "proven_bound_s: expected at most 4, in which this assignment ends, got 40.0; remove it")
    refused(cli("simulate", graph, *ON, "--assignment", write({**stored, "proven_bounds_s": 4}), "--json"), "the field proven_bound_s")


def test_batches_keep_the_bound_of_all(cli, placed, tmp_path):
    graph, _ = placed
    several = tmp_path / "several.json"
    found = cli("place", graph, *ON, "--method", "cp_sat", "--in-flight", 3, "--out", several, "--json").json
    refused(cli("simulate", graph, *ON, "--assignment", several, "--json"), "batches: expected none", "got 3; give --repeat 3")
    again = cli("simulate", graph, *ON, "--assignment", several, "--repeat", 3, "--in-flight", 3, "--json").json
    assert again["lower_bound_s"] == found["lower_bound_s"]


def test_an_assignment_without_a_bound_is_written_as_before():
    graph = graph_from_records(TASKS["nodes"], TASKS["edges"], TASKS["graph"])
    costs = build_costs(graph, ideal(2))
    record = assignment_to_json(graph, costs, Assignment(np.array([0, 1, 0], np.int32)))
    assert "proven_bound_s" not in record
    assert assignment_from_json(record, graph, costs).proven_bound_s == 0.0
    assert lower_bounds(graph, costs).best_s == 3.0


def test_searches_end_at_a_bound_that_differs_in_the_last_digits_of_ticks():
    assert Pool(None, 0.032343317).reached(0.032343333)
    pool = Pool(None)
    pool.offer(0.032343333, Assignment(np.zeros(1, np.int32)))
    assert not pool.over
    pool.raise_bound(0.032343317)
    assert pool.over


def test_the_portfolio_ends_when_cp_sat_has_proved_the_best(cli, placed):
    graph, _ = placed
    started = time.perf_counter()
    found = cli("place", graph, *ON, "--budget-s", 200, "--json").json
    assert time.perf_counter() - started < 150
    assert (found["makespan_s"], found["lower_bound_s"]) == (4.0, 4.0)
