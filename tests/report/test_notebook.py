"""What placements and traces show: a few lines when printed, tables and a picture in a notebook that a kernel runs."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import nbclient
import nbformat
import numpy as np
import pytest
from matplotlib.image import imread

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.placement import place
from doppler_tf.report import notebook
from doppler_tf.report.gantt import gantt_figure, gantt_png
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate

CELLS = ("""
from doppler_tf import place, simulate
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
nodes = [{"id": "a", "exec_s": 2e-3}, {"id": "b", "exec_s": 2e-3}, {"id": "c", "exec_s": 1e-3, "pin": 0}]
edges = [{"source": v, "target": "c", "transfer_s": 1e-3} for v in "ab"]
graph = graph_from_records(nodes, edges, {"name": "<b>join</b> & $x$"})
placed = place(graph, ideal(2))
placed""", "simulate(graph, ideal(2), placed.assignment)", "placed.plot()")
PICTURE = re.compile(r'src="data:image/png;base64,([^"]+)"')


@pytest.fixture
def case():
    nodes = [{"id": v, "exec_s": 2, **({"pin": 0} if v == 2 else {})} for v in range(3)]
    graph = graph_from_records(nodes, [{"source": 0, "target": 2, "transfer_s": 1}], {"name": "three"})
    return graph, build_costs(graph, ideal(2))


def picture(shown: str, folder) -> np.ndarray:
    (folder / "it.png").write_bytes(base64.b64decode(PICTURE.search(shown)[1]))
    return imread(folder / "it.png")


def test_a_notebook_shows_tables_and_pictures(tmp_path):
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    done = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120, kernel_name="python3").execute()
    shown = [output["data"] for cell in done.cells for output in cell.outputs if output.output_type == "execute_result"]
    assert [output.get("name") for cell in done.cells for output in cell.outputs if output.output_type != "execute_result"] == []
    placed, trace, figure = shown
    for data, title in ((placed, "Placement"), (trace, "Trace")):
        page = data["text/html"]
        assert page.startswith(f"<b>{title}</b>")
        assert "&lt;b&gt;join&lt;/b&gt; &amp; $x$" in page
        assert "<b>join" not in page
        assert all(text in page for text in ("4.000 ms", "device:0", "device:1", "busy"))
        assert data["text/plain"].startswith(f"{title}\n  graph: <b>join</b>")
        pixels = picture(page, tmp_path)
        assert pixels.shape[1] == 1950
        assert pixels.std() > 0.1  # something is drawn
    assert "lower bound" in placed["text/html"]
    assert figure["image/png"].startswith("iVBOR")


def test_printed_in_a_few_lines(case):
    placed = place(*case, "critical_path")
    lines = str(placed).splitlines()
    assert lines == ["Placement", "  graph: three on ideal:2", f"  method: critical_path, rule {placed.assignment.dispatch}",
                     "  makespan: 4,000 ms", "  lower bound: 4,000 ms (makespan +0.0%)", lines[-1]]
    assert lines[-1].endswith("; 2 of 2 devices")
    trace = simulate(*case, placed.assignment)
    assert repr(trace).splitlines()[:2] == ["Trace", "  graph: three on ideal:2"]
    many = graph_from_records([{"id": v, "exec_s": 1} for v in range(40)], [])
    spread = str(place(many, ideal(20), "round_robin"))
    assert len(spread) < 400
    assert "and 12 more; 20 of 20 devices" in spread


def test_a_large_graph_is_drawn_when_asked(case, monkeypatch):
    monkeypatch.setattr(notebook, "_MOST_DRAWN", 2)
    shown = place(*case, "critical_path")._repr_html_()
    assert "<img" not in shown
    assert "plot()" in shown
    assert place(*case, "critical_path").plot().axes


def test_pinned_vertices_are_outlined_in_the_picture(case, tmp_path):
    graph, costs = case
    trace = simulate(graph, costs, Assignment(np.array([0, 1, 0], np.int32)))
    free = replace(costs, allowed=np.ones_like(costs.allowed))
    labels = [text.get_text() for text in gantt_figure(graph, costs, trace).legends[0].get_texts()]
    assert "pinned" in labels
    assert "pinned" not in [text.get_text() for text in gantt_figure(graph, free, trace).legends[0].get_texts()]
    assert gantt_png(graph, costs, trace) != gantt_png(graph, free, trace)
