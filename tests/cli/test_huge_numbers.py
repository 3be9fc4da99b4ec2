"""Integers of any size in a number's place: taken, or refused in one line."""

from __future__ import annotations

import copy

import pytest

from doppler_tf.cli.app import DONE, FAILED, USERS_MISTAKE
from tests.cli.test_bad_input import refused

HUGE = (2**31, 2**53 + 1, 2**63, 2**64, 2**70, -2**70, 10**308, 10**400)
DOCUMENTS = {
    "graph.json": {
        "graph": {"name": "g"},
        "nodes": [{"id": "x", "input": True, "output_bytes": 4},
                  {"id": "a", "exec_s": [2, 2], "flops": 3, "output_bytes": 5, "pin": 0,
                   "kernel": {"op": "add", "operands": [{"vertex": "x", "slice": [[0, 4]]}], "params": {}}},
                  {"id": "b", "flops": 3, "output_bytes": 5}],
        "edges": [{"source": "x", "target": "a", "bytes": 3}, {"source": "a", "target": "b", "bytes": 3, "transfer_s": 1}],
    },
    "topology.json": {
        "name": "t", "link_slots": 1,
        "devices": [{"name": name, "flops_per_s": 10, "mem_bytes_per_s": 10, "launch_s": 1, "memory_bytes": 100, "slots": 1}
                    for name in "pq"],
        "links": {"bandwidth_bytes_per_s": [[1, 1], [1, 1]], "latency_s": [[0, 1], [1, 0]]},
    },
    "assignment.json": {"schema": "doppler-assignment/1", "device": [None, 0, 1], "order": [1, 2], "makespan_s": 3},
}


def numbers(value, path: tuple = ()) -> list[tuple]:
    """Where numbers stand in a document."""
    if isinstance(value, dict | list):
        return [found for key, below in (value.items() if isinstance(value, dict) else enumerate(value))
                for found in numbers(below, (*path, key))]
    return [path] if isinstance(value, int) and not isinstance(value, bool) else []


FIELDS = [(name, path) for name, document in DOCUMENTS.items() for path in numbers(document)]


@pytest.mark.parametrize(("name", "path"), FIELDS, ids=[f"{name} {'.'.join(map(str, path))}" for name, path in FIELDS])
def test_they_are_taken_or_refused(cli, write, name, path):
    files = {other: write(document, other) for other, document in DOCUMENTS.items()}
    call = "simulate", files["graph.json"], "--topology", files["topology.json"], "--assignment", files["assignment.json"], "--json"
    for number in HUGE:
        document = copy.deepcopy(DOCUMENTS[name])
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = number
        write(document, name)
        outcome = cli(*call)
        if outcome.code == USERS_MISTAKE:
            refused(outcome, name)
        elif outcome.code == FAILED:  # a tensor that no device holds
            assert "out of memory" in outcome.err
        else:
            assert outcome.code == DONE


def test_memory_beyond_64_bits_is_memory_enough(cli, diamond, write):
    devices = [{"name": name, "memory_bytes": 2**70} for name in "pq"]
    topology = write({"devices": devices}, "topology.json")
    assert cli("info", diamond, "--topology", topology).code == DONE
    for method in ("heft", "cp_sat"):
        placed = cli("place", diamond, "--topology", topology, "--method", method, "--samples", 16, "--json")
        assert placed.json["makespan_s"] == 4.0


@pytest.mark.parametrize("field", ["simulated", "real_minutes", "batch", "learning_rate", "seed", "time_scale"])
def test_settings_say_how_large_they_may_be(cli, diamond, write, tmp_path, field):
    call = "train", diamond, "--topology", "ideal:2", "--run-dir", tmp_path / "run", "--json", "--config"
    for number in (2**64, 2**70, 10**400):
        refused(cli(*call, write({field: number}, "config.json")), field, "from 0 to" if field != "batch" else "from 1 to")
