"""Tables of a bench by hand: means and spreads, bounds and bests of all records, ratios beside the paper's, Markdown, CSV, pictures."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from matplotlib.image import imread

from doppler_tf.report.bench.bars import bars_png
from doppler_tf.report.bench.curves import curves_png, mean_curve
from doppler_tf.report.bench.paper import FIGURES_MS
from doppler_tf.report.bench.results import best_known, csv_text, fastest, long_table, matrix_table, results_page, summarise


def record(method: str, seed: int, best_s: float, graph: str = "chainmm", **more) -> dict:
    return {"key": f"{graph}-{method}-{seed}", "method": method, "graph": graph, "topology": "p100x4", "seed": seed, "status": "done",
            "does": "places", "best_makespan_s": best_s, "lower_bound_s": 0.05, "seconds": 2.0, **more}


RECORDS = [
    record("heft", 0, 0.12), record("heft", 1, 0.12),
    record("learned", 0, 0.1, greedy_makespan_s=0.11, best_seen_s=0.075, episodes=100, simulations=64),
    record("learned", 1, 0.08, greedy_makespan_s=0.09, best_seen_s=0.08, episodes=100, simulations=64, seconds=4.0),
    record("cp_sat", 0, 0.1, lower_bound_s=0.06),
    record("executed", 0, 0.07, executed=True, lower_bound_s=None),
    {"key": "x", "method": "joint", "graph": "chainmm", "topology": "p100x4", "seed": 0, "status": "failed", "does": "trains",
     "error": "out of memory"},
    record("heft", 0, 0.3, "ffnn"),
]


def rows_of(*methods: str, graphs=("chainmm",), seeds=None) -> list[dict]:
    return summarise(RECORDS, methods, graphs, ("p100x4",), seeds)


def test_bests_are_of_all_records_and_of_simulated_ones_alone():
    assert best_known(RECORDS) == {("chainmm", "p100x4"): {"lower_bound_s": 0.06, "best_known_s": 0.075},
                                   ("ffnn", "p100x4"): {"lower_bound_s": 0.05, "best_known_s": 0.3}}
    assert fastest(RECORDS, "chainmm", "p100x4")["key"] == "chainmm-learned-1"
    assert fastest(RECORDS, "ffnn", "v100x8") is None


def test_a_row_is_mean_and_extremes_over_seeds():
    (row,) = rows_of("learned")
    assert row == pytest.approx({
        "topology": "p100x4", "graph": "chainmm", "method": "learned", "seeds": 2, "failed": 0, "mean_s": 0.09, "least_s": 0.08,
        "most_s": 0.1, "greedy_s": 0.1, "best_seen_s": 0.075, "lower_bound_s": 0.06, "best_known_s": 0.075, "above_bound": 0.5,
        "above_best": 0.2, "seconds": 3.0, "episodes": 100, "simulations": 64, "executed": False})
    assert rows_of("learned", seeds=1)[0]["mean_s"] == 0.1


def test_what_was_executed_has_no_bound_of_the_model():
    (row,) = rows_of("executed")
    assert (row["mean_s"], row["executed"], row["lower_bound_s"], row["above_best"]) == (0.07, True, None, None)


def test_failures_are_counted_and_said():
    (row,) = rows_of("joint")
    assert (row["seeds"], row["failed"], row["mean_s"], row["error"]) == (0, 1, None, "out of memory")
    assert long_table([row]) == (["method", "mean"], [["joint", "failed"]])
    assert long_table([row, *rows_of("learned")])[1][0] == ["joint", "failed", *["–"] * 7]
    assert rows_of("absent") == []


def test_a_matrix_has_ratios_and_the_papers_figures_beside():
    rows = rows_of("heft", "learned", "joint", graphs=("chainmm", "ffnn"))
    columns, table = matrix_table(rows, "heft", {"heft": "critical path", "learned": "stages I+II"})
    assert columns == ["method", "chainmm", "paper", "ffnn", "paper"]
    assert FIGURES_MS["stages I+II"]["chainmm"] / FIGURES_MS["critical path"]["chainmm"] == pytest.approx(0.532, abs=5e-4)
    assert table == [["heft", "120.0 ms ×1.000", "230.4 ms ×1.000", "300.0 ms ×1.000", "217.8 ms ×1.000"],
                     ["learned", "90.0 ms (80.0 to 100.0) ×0.750", "122.5 ms ×0.532", "–", "49.9 ms ×0.229"],
                     ["joint", "failed", "–", "–", "–"]]
    assert matrix_table(rows, spread=False) == (["method", "chainmm", "ffnn"], [
        ["heft", "120.0 ms", "300.0 ms"], ["learned", "90.0 ms", "–"], ["joint", "failed", "–"]])


def test_where_the_paper_tells_ratios_alone():
    assert matrix_table(rows_of("heft", "learned"), "heft", {"learned": "work conserving"})[1][1][-1] == "×0.750"


def test_the_long_table_tells_everything():
    columns, table = long_table(rows_of("heft", "learned"))
    assert columns == ["method", "mean", "least to most", "greedy", "above bound", "above best", "episodes", "simulations", "seconds"]
    assert table == [["heft", "120.0 ms", "–", "–", "+100.0%", "+60.0%", "–", "–", "2.0 s"],
                     ["learned", "90.0 ms", "80.0 to 100.0", "100.0 ms", "+50.0%", "+20.0%", "100", "64", "3.0 s"]]
    assert long_table(rows_of("heft", graphs=("chainmm", "ffnn")))[0][0] == "graph"


def test_csv():
    (line,) = csv.DictReader(io.StringIO(csv_text(rows_of("heft"))))
    assert (line["graph"], line["mean_s"], line["greedy_s"], line["seeds"]) == ("chainmm", "0.12", "", "2")


def test_the_page_has_prose_tables_pictures_and_failures():
    section = {"title": "Main", "text": "Words.", "table": (["a"], [["1"]]), "pictures": {"bars": "results/bars.png"}}
    prose = {"title": "", "text": "More.", "table": None, "pictures": {}}
    parts = results_page("Results", "Intro.", [section, prose], {"key": "error"}, "bench s.toml").split("\n\n")
    assert parts == ["# Results", "<!-- made by `bench s.toml`; do not edit -->", "Intro.", "## Main", "Words.", "| a |\n| --- |\n| 1 |",
                     "![bars](results/bars.png)", "More.", "## Cells that failed", "| cell | error |\n| --- | --- |\n| `key` | error |\n"]


def test_curves_are_compared_at_the_same_episodes():
    def curve(**points):
        return [{"episodes": int(key[1:]), "greedy_s": value} for key, value in points.items()]

    episodes, values = mean_curve([curve(e10=3.0, e20=2.0), curve(e5=4.0, e15=1.0, e30=0.5)])
    np.testing.assert_array_equal(episodes, [5, 10, 15, 20])
    np.testing.assert_array_equal(values, [[np.nan, 3, 3, 2], [4, 4, 1, 1]])


@pytest.mark.parametrize("draw", [
    lambda: bars_png("title $", rows_of("heft", "learned", "executed", graphs=("chainmm", "ffnn"))),
    lambda: bars_png("title", []),
    lambda: curves_png("title $", [
        {**RECORDS[2], "curve": [{"episodes": 10, "greedy_s": 0.2}, {"episodes": 20, "greedy_s": 0.1}]},
        {**RECORDS[3], "curve": [{"episodes": 10, "greedy_s": 0.1}, {"episodes": 20, "greedy_s": 0.08}]},
        {**RECORDS[2], "method": "imitated", "curve": []}], {"chainmm": 0.075})])
def test_pictures(draw):
    picture = imread(io.BytesIO(draw()))
    assert picture.shape[0] > 100
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
