"""Twice the graph, twice the work: counted in lines executed by our own code, as clocks on shared machines prove nothing."""

import sys
from pathlib import Path

import pytest

from data import build_workload
from doppler_tf.formats.graph_json import read_graph, write_graph

ROOT = str(Path(__file__).resolve().parents[2])


def lines(work) -> int:
    """Lines that `work()` executes in this repository, each turn of a loop or comprehension counted."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(ROOT) and ".venv" not in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("name", "sizes"), [
    ("llama_stack", [(2, {"layers": layers}) for layers in (2, 4, 8)]),
    ("ffnn", [(devices, {}) for devices in (16, 32, 64)]),
    ("layered", [(2, {"vertices": vertices}) for vertices in (250, 500, 1000)]),
])
def test_building_writing_and_reading(tmp_path, name, sizes):
    counts = []
    for devices, options in sizes:
        graph = build_workload(name, devices, **options)
        path = tmp_path / "g.json"
        counts.append((graph.num_vertices, lines(lambda d=devices, o=options: build_workload(name, d, **o)),
                       lines(lambda g=graph, p=path: write_graph(p, g)), lines(lambda p=path: read_graph(p))))
    small, middle, large = counts
    for few, some, many in zip(small, middle, large, strict=True):
        assert many - some <= 2.1 * (some - few)  # n log n would be some 2.2 here, n^2 is 4
