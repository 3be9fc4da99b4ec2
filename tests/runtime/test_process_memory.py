"""What this process may still take."""

from __future__ import annotations

import math

import pytest

from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.schedule.batch_state import BatchState
from doppler_tf.schedule.batches import repeat_graph
from runtime import graph_calls, process_memory


def test_there_is_some_memory_and_not_more_than_the_machine_has():
    with open("/proc/meminfo", encoding="ascii") as file:
        total_bytes = 1024 * int(file.readline().split()[1])
    assert 0 < process_memory.available_bytes() < total_bytes


@pytest.mark.parametrize(("files", "expected"), [
    ({"limit": "1000\n", "taken": "900\n", "memory.stat": "cache 1\ninactive_file 50\n"}, 150),
    ({"limit": "max\n", "taken": "900\n", "memory.stat": "inactive_file 50\n"}, math.inf), ({}, math.inf)])
def test_files_in_memory_make_way_within_a_control_group(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert process_memory._left_in(tmp_path, "limit", "taken") == expected


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_group_counts(tmp_path, monkeypatch, version):
    """A process in group `inner` of a group, each with a limit of its own."""
    root, limit, taken = tmp_path / "root", "limit", "taken"
    for folder, most in ((root, 10**6), (root / "outer" / "inner", 1000)):
        folder.mkdir(parents=True)
        for name, content in ((limit, most), (taken, 100), ("memory.stat", "inactive_file 0")):
            (folder / name).write_text(str(content))
    monkeypatch.setattr(process_memory, "_GROUPS", {version: (root, limit, taken)})
    groups = tmp_path / "groups"
    groups.write_text(f"0:{'memory,cpu' if version == 1 else ''}:/outer/inner\n")
    path = process_memory.Path
    monkeypatch.setattr(process_memory, "Path", lambda name: groups if name == "/proc/self/cgroup" else path(name))
    assert process_memory.available_bytes() == 900


@pytest.mark.parametrize("batches", [1, 2])
def test_copies_of_weights_must_fit(monkeypatch, batches):
    records = [{"id": "w", "input": True, "output_bytes": 100}, {"id": "x", "input": True, "output_bytes": 1000},
               {"id": "a", "exec_s": 1.0, "output_bytes": 4}]
    captured = {"model": "nowhere", "weights": [{"vertex": "w", "variable": "w", "frozen": True}, {"vertex": "x", "variable": "x"}]}
    graph = graph_from_records(records, [{"source": v, "target": "a"} for v in "wx"], {"name": "one weight", "captured": captured})
    if batches > 1:
        graph = repeat_graph(graph, ideal(2), batches, batches, BatchState([])).graph
    for available_bytes, fits in ((300.0, True), (299.0, False)):
        monkeypatch.setattr(graph_calls, "available_bytes", lambda found=available_bytes: found)
        assert graph_calls.weights_fit(graph, 3) is fits


@pytest.mark.parametrize(("dropped_bytes", "collects"), [(9.0, False), (11.0, True), (None, True)])
def test_what_is_small_waits_for_python(monkeypatch, dropped_bytes, collects):
    collected = []
    monkeypatch.setattr(process_memory, "available_bytes", lambda: 1000.0)
    monkeypatch.setattr(process_memory.gc, "collect", lambda: collected.append(True))
    process_memory.give_memory_back() if dropped_bytes is None else process_memory.give_memory_back(dropped_bytes)
    assert bool(collected) is collects
