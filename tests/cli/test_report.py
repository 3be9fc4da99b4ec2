"""`report`: the page's figures, where they come from, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from doppler_tf.formats.chrome_trace import read_trace
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.records import graph_from_records
from tests.cli.conftest import DIAMOND
from tests.cli.test_bad_input import refused
from tests.runs import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of the diamond and of another graph: (folder, figures)."""
    folder = tmp_path_factory.mktemp("runs") / "a run"
    graphs = [graph_from_records(DIAMOND["nodes"], DIAMOND["edges"], {"name": name}) for name in ("diamond", "<other> & \"more\"")]
    return folder, make_run(folder, graphs, read_topology("ideal:2"))


@pytest.fixture
def run(made, tmp_path):
    """A copy of it that a test may spoil."""
    return shutil.copytree(made[0], tmp_path / "a run")


def test_the_json_object_holds_the_figures(cli, run, made):
    _, figures = made
    outcome = cli("report", run, "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert (found["run"], found["page"]) == (str(run), str(run / "report" / "index.html"))
    for name, row in figures.items():
        one = found["graphs"][name]
        assert {key: one[key] for key in row} == row
        assert one["simulated_makespan_s"] == row["best_makespan_s"] == one["methods"]["learned, best"] == one["methods"]["critical_path"]
        assert one["methods"]["learned, greedy"] == row["greedy_makespan_s"]
        assert {"heft", "round_robin", "one_device"} <= set(one["methods"])
        assert read_trace(one["trace"]).trace.makespan_s == row["best_makespan_s"]
    assert "diamond" in outcome.err


def test_the_page_needs_nothing_else(cli, run):
    page = (run / "report" / "index.html") if cli("report", run).code == 0 else None
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!#|data:)(?!index\.)', text)
    assert "<other>" not in text
    assert "&lt;other&gt; &amp; &#34;more&#34;" in text


def test_measured_traces_of_the_graph_are_linked(cli, run, write, tmp_path, diamond):
    assignment, elsewhere = write([None, 0, 1, 0]), tmp_path / "pages" / "one.html"
    cli("simulate", diamond, "--topology", "ideal:2", "--assignment", assignment, "--trace", run / "traces" / "measured #1.json")
    (run / "traces" / "notes.json").write_text("{}")
    outcome = cli("report", run, "--out", elsewhere, "--json")
    assert "not linked" in outcome.err
    assert "notes.json" in outcome.err
    assert outcome.json["graphs"]["diamond"]["measured_traces"] == [str(run / "traces" / "measured #1.json")]
    assert (tmp_path / "pages" / "one.diamond.trace.json").exists()
    assert 'href="../a%20run/traces/measured%20%231.json"' in elsewhere.read_text()
    assert not (run / "report").exists()


def test_curves_end_where_the_summaries_do(run):
    """A file that was cut off in the middle of a record counts up to there."""
    (events,) = (run / "train" / "simulated" / "diamond").glob("events.*")
    events.write_bytes(events.read_bytes()[:-10])
    from doppler_tf.api.runs.learning_curves import learning_charts

    stage_i, stage_ii = learning_charts(run, 8, "diamond")
    assert [line["points"] for line in stage_i["series"]] == [[[8, -1.5]]]
    assert [[x for x, _ in line["points"]] for line in stage_ii["series"]] == 3 * [[16, 24, 32]]  # a record holds all of an update


def test_long_curves_are_thinned_and_keep_their_ends():
    from doppler_tf.api.runs.learning_curves import MOST_POINTS, _thinned

    for count in (1, MOST_POINTS, MOST_POINTS + 1, 1599, 1600, 100_000):
        points = _thinned([[x, 0.0] for x in range(count)])
        assert (points[0][0], points[-1][0]) == (0, count - 1)
        assert min(count, MOST_POINTS) / 2 <= len(points) <= MOST_POINTS


@pytest.mark.parametrize("name", ["graphs/diamond.json", "topology.json"])
def test_what_the_run_was_made_for_is_its_own(cli, run, name):
    kept = json.loads((run / name).read_text())
    changed = {**kept, "edges": kept["edges"][:-1]} if "edges" in kept else {"devices": [{"name": "a"}]}
    (run / name).write_text(json.dumps(changed))
    refused(cli("report", run, "--json"), name, "expected what the run was made for, got something else; put it back")
    (run / name).unlink()
    refused(cli("report", run, "--json"), name, "expected the run's own copy, got none; put it back")


def test_what_is_no_finished_run(cli, run, tmp_path):
    refused(cli("report", tmp_path / "nowhere", "--json"), "nowhere", "result.json", "train")
    (run / "result.json").write_text(json.dumps({"graphs": {"diamond": {}}}))
    refused(cli("report", run, "--json"), "result.json", "train again")
    refused(cli("report", run, "--out", run, "--json"), "cannot be written")
    refused(cli("report", run, "--out", f"{tmp_path}/new/", "--json"), "new/", "expected the name of a file, got a folder's")
    assert not (tmp_path / "new").exists()
