"""`bench`: cells are run once and kept, what is half done or made for another thing is run again, failures are told, suites checked."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given

from doppler_tf.graph.topology import cpu
from doppler_tf.placement import place
from tests.cli.test_bad_input import refused
from tests.cli.test_memory import CHAIN
from tests.formats.test_fuzz import accepted, mutated

SUITE = """
title = "Diamonds"
text = "Two methods."
seeds = 2

[methods.slow]
method = "one_device"

[graphs.diamond]
file = "{file}"

[[sections]]
title = "Both"
text = "Words of the section."
methods = ["critical_path", "slow"]
graphs = ["diamond"]
topologies = ["ideal:2"]
reference = "slow"
pictures = ["bars", "gantt"]
"""


@pytest.fixture
def suite(write, diamond):
    """Writes SUITE, changed by (old, new) pairs."""

    def put(*changes, name="suite.toml"):
        text = SUITE.format(file=diamond)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return write(text, name)

    return put


def cells(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((folder / "cells").glob("*.json"))}


def test_a_suite_makes_tables_pictures_and_a_page(bench, suite, tmp_path):
    outcome = bench(suite(), "--page", tmp_path / "docs" / "page.md")
    found = outcome.json
    assert outcome.code == 0
    assert (found["cells"], found["ran"], found["kept"], found["failed"]) == (4, 4, 0, {})
    (section,) = found["sections"]
    assert [(row["method"], row["mean_s"], row["seeds"], row["above_bound"]) for row in section["rows"]] == [
        ("critical_path", 4.0, 2, 0.0), ("slow", 5.0, 2, 0.25)]
    page = (tmp_path / "docs" / "page.md").read_text()
    for fragment in ("# Diamonds", "Two methods.", "## Both", "Words of the section.", "| slow | 5,000 ms ×1.000 |", "×0.800"):
        assert fragment in page
    pictures = {path.name for path in (tmp_path / "docs" / "page").iterdir()}
    assert pictures == {"both.bars.png", "diamond.ideal_2.gantt.png"}
    assert all(f"(page/{name})" in page for name in pictures)
    lines = list(csv.DictReader((tmp_path / "bench" / "results.csv").open()))
    assert [(line["method"], line["mean_s"]) for line in lines] == [("critical_path", "4.0"), ("slow", "5.0")]
    assert len(json.loads((tmp_path / "bench" / "results.json").read_text())["cells"]) == 4


def test_what_is_done_is_kept_and_what_is_half_done_is_not(bench, suite, tmp_path):
    bench(suite())
    written = {key: path.stat().st_mtime_ns for key, path in cells(tmp_path / "bench").items()}
    again = bench(suite()).json
    assert (again["ran"], again["kept"]) == (0, 4)
    assert {key: path.stat().st_mtime_ns for key, path in cells(tmp_path / "bench").items()} == written
    first, second, *_ = cells(tmp_path / "bench").values()
    first.write_text(first.read_text()[:40])
    second.unlink()
    assert bench(suite()).json["ran"] == 2
    assert bench(suite(("seeds = 2", "seeds = 3"))).json["ran"] == 2


@pytest.mark.parametrize("changes", [[('method = "one_device"', 'method = "round_robin"')],
                                     [('method = "one_device"', 'method = "one_device"\nsamples = 3')]])
def test_changed_settings_are_run_again(bench, suite, changes):
    bench(suite())
    assert bench(suite(*changes)).json["ran"] == 2


def test_a_changed_graph_or_topology_is_run_again(bench, suite, record, write):
    bench(suite())
    record["nodes"][1]["exec_s"] = 3
    write(record, "diamond.json")
    assert bench(suite()).json["ran"] == 4
    assert bench(suite(("ideal:2", "ideal:3"))).json["ran"] == 4


def test_a_failed_cell_is_told_and_tried_again_and_the_others_go_on(bench, suite, record, write):
    for node in record["nodes"][1:]:
        node["output_bytes"] = 10
    write(record, "diamond.json")
    topology = write({"devices": [{"name": "d0", "memory_bytes": 19}, {"name": "d1", "memory_bytes": 30}]}, "tiny.json")
    outcome = bench(suite(("ideal:2", str(topology))))
    assert outcome.code == 1
    assert list(outcome.json["failed"]) == [f"tiny--diamond--slow--seed{seed}" for seed in range(2)]
    assert "out of memory" in outcome.json["failed"]["tiny--diamond--slow--seed0"]
    assert "failed" in outcome.err
    good, bad = outcome.json["sections"][0]["rows"]
    assert (good["seeds"], bad["seeds"], bad["failed"]) == (2, 0, 2)
    again = bench(suite(("ideal:2", str(topology))))
    assert (again.code, again.json["ran"], again.json["kept"]) == (1, 2, 2)


def test_what_does_not_fit_is_placed_with_a_host_drawn_and_executed(bench, suite, write):
    graph, topology = write(CHAIN, "diamond.json"), write(cpu(2).with_memory(6000).to_json(), "small.json")
    executed = """[methods.slow]
method = "execute"
of = "critical_path"
executor = "{}"
kernel_ms = 1
"""
    changes = ("ideal:2", str(topology)), ('reference = "slow"\n', ""), ("seeds = 2", "seeds = 1"), ('"bars", ', "")
    slow = '[methods.slow]\nmethod = "one_device"\n'
    placed = place(graph, topology, "critical_path")
    assert placed.assignment.offload.loads
    outcome = bench(suite((slow, executed.format("emulated")), *changes))
    assert outcome.code == 0, outcome.err
    rows = {row["method"]: row for row in outcome.json["sections"][0]["rows"]}
    assert rows["critical_path"]["mean_s"] == placed.makespan_s
    assert rows["slow"]["mean_s"] > 0
    failed = bench(suite((slow, executed.format("synchronous")), *changes)).json["failed"]
    assert ["slow: executor: expected emulated for an assignment with a plan" in told for told in failed.values()] == [True]


def test_options_make_a_suite_with_budgets(bench, diamond):
    found = bench("--graph", diamond, "--topology", "ideal:2", "ideal:3", "--method", "heft", "annealing@20", "annealing@0.05s",
                  "--seeds", 1).json
    rows = {(row["topology"], row["method"]): row for row in found["sections"][0]["rows"]}
    assert len(rows) == found["cells"] == 6
    assert {row["mean_s"] for row in rows.values()} == {4.0}
    # What was made, not what was allowed: the first meets the bound.
    assert rows["ideal:2", "annealing@20"]["simulations"] == rows["ideal:3", "annealing@0.05s"]["simulations"] == 1


def test_a_folder_is_one_benchs_alone(bench, suite, tmp_path):
    import fcntl

    (tmp_path / "bench").mkdir()
    with (tmp_path / "bench" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(bench(suite()), "--out", "another process")
    assert bench(suite()).code == 0


def test_an_unexpected_error_fails_the_cell_and_those_that_need_it(tmp_path, monkeypatch):
    from doppler_tf.api.benchmark import cell_queue
    from doppler_tf.api.benchmark.cells import Cell

    done = []

    def fails(folder, cell, needed):
        done.append(cell.key)
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(cell_queue, "do_cell", fails)
    made = {name: Cell(name, name, "g", "t", 0, {"does": "places", "graphs": ["g.json"]}, {}, needs)
            for name, needs in (("fails", {}), ("waits", {"seconds_of": "fails"}), ("waits too", {"of": "waits"}))}
    records, ran = cell_queue.run_cells(tmp_path, made)
    assert (ran, done) == ([*made], ["fails"])
    assert [record["error"] for record in records.values()] == [
        "ZeroDivisionError: division by zero", "needs fails, which failed", "needs waits, which failed"]
    assert cells(tmp_path).keys() == made.keys()


def test_what_learns_on_one_graph_goes_to_one_worker(tmp_path):
    """Whatever method and seed; searches go anywhere, and another worker begins with what this one has not compiled."""
    from doppler_tf.api.benchmark.cell_queue import _next
    from doppler_tf.api.benchmark.cells import Cell

    rows = (("a0", "g", "trains", {}), ("a1", "g", "samples", {"init": "a0"}), ("s", "g", "places", {}), ("b0", "h", "trains", {}))
    waiting = {key: Cell(key, key, graph, "t", 0, {"does": does}, {}, needs) for key, graph, does, needs in rows}

    def chosen(records, worker, last) -> str:
        return getattr(_next(waiting, {key: {"status": "done"} for key in records}, worker, last), "key", "")

    g, h = ("g", "t"), ("h", "t")
    assert chosen([], 0, {}) == "a0"
    assert chosen([], 1, {0: g}) == "s"
    assert chosen([], 0, {0: h, 1: g}) == "b0"
    del waiting["a0"]
    assert chosen([], 0, {0: g}) == "s"
    assert chosen(["a0"], 0, {0: g, 1: None}) == "a1"
    assert chosen(["a0"], 1, {0: g, 1: None}) == "s"
    del waiting["s"], waiting["b0"]
    assert chosen(["a0"], 1, {0: g, 1: None}) == "a1"  # nothing else to do
    assert chosen([], 0, {}) == ""


def test_the_learned_methods_are_the_agents(cli):
    from agents.config import METHOD_NAMES
    from doppler_tf.api.benchmark.suite import LEARNED_METHODS

    assert LEARNED_METHODS == METHOD_NAMES


@pytest.mark.thorough
def test_cells_start_from_others_and_may_spend_as_much(bench, suite, tmp_path):
    """One tiny policy, its samples on another topology, a search with as many simulations, its assignment executed."""
    changed = suite(('[methods.slow]\nmethod = "one_device"', """
[methods.learned]
method = "doppler"
config = "reinforce"
settings = { imitation = 2, simulated = 4, batch = 2, hidden = 8, rounds = 1 }
[methods.elsewhere]
method = "doppler"
init = "learned"
init_topology = "ideal:2"
zero_shot = true
[methods.equal]
method = "annealing"
simulations_of = "learned"
[methods.executed]
method = "execute"
of = "learned"
repeats = 1
kernel_ms = 1
"""), ('methods = ["critical_path", "slow"]', 'methods = ["learned", "equal", "executed"]'),
        ('reference = "slow"', ""),
        ('"gantt"]', '"curves"]\n[[sections]]\ngraphs = ["diamond"]\ntopologies = ["ideal:3"]\nmethods = ["elsewhere"]'))
    outcome = bench(changed, "--seeds", 1, "--samples", 4)
    assert outcome.code == 0, outcome.err
    first, second = outcome.json["sections"]
    learned, equal, executed = first["rows"]
    assert (learned["episodes"], learned["simulations"], equal["simulations"]) == (6, 4, 10)
    assert 4.0 <= learned["mean_s"] <= learned["greedy_s"] <= 5.0
    assert (executed["executed"], executed["lower_bound_s"]) == (True, None)
    assert (second["rows"][0]["episodes"], second["rows"][0]["seeds"]) == (0, 1)
    (record,) = [json.loads(path.read_text()) for key, path in cells(tmp_path / "bench").items() if "--learned--" in key]
    assert [point["episodes"] for point in record["curve"]] == [4, 6]
    assert (tmp_path / "bench" / "results" / "both.ideal_2.curves.png").exists()
    assert bench(changed, "--seeds", 1, "--samples", 4).json["ran"] == 0


@pytest.mark.thorough
def test_the_simulations_of_an_annealed_teacher_count(bench, suite):
    """Here it begins with the optimum, or finds it at once."""
    changed = suite(('[methods.slow]\nmethod = "one_device"', """
[methods.annealed]
method = "doppler"
config = "annealed"
settings = { imitation = 0, simulated = 2, batch = 2, hidden = 8, rounds = 1 }
[methods."as much"]
method = "random_search"
simulations_of = "annealed"
"""), ('methods = ["critical_path", "slow"]', 'methods = ["annealed", "as much"]'), ('reference = "slow"', ""))
    (section,) = bench(changed, "--seeds", 1, "--samples", 4).json["sections"]
    annealed, as_much = section["rows"]
    assert annealed["simulations"] > 4
    assert as_much["simulations"] == 2 + annealed["simulations"]


def test_cells_stand_behind_those_that_they_need(diamond, record, write, tmp_path):
    from doppler_tf.api.benchmark.cells import plan
    from doppler_tf.api.benchmark.suite import Override
    from doppler_tf.api.benchmark.suite_file import suite_from_record

    record["graph"]["name"] = "twin"
    suite = suite_from_record({
        "methods": {"zero": {"method": "doppler", "init": "doppler", "init_graph": "a+b", "init_topology": "ideal:3", "zero_shot": True},
                    "equal": {"method": "annealing", "seconds_of": "doppler"}},
        "graphs": {"a": {"file": str(diamond)}, "b": {"file": str(write(record, "twin.json"))}},
        "sections": [{"methods": ["zero", "equal"], "graphs": ["a"], "topologies": ["ideal:2"], "seeds": 1}]}, "test", Override())
    made = plan(suite, tmp_path)
    names = ["ideal_3--a_b--doppler", "ideal_2--a--zero", "ideal_2--a--doppler", "ideal_2--a--equal"]
    assert list(made) == [f"{name}--seed0" for name in names]
    both, zero, _, equal = made.values()
    assert [Path(path).name for path in both.job["graphs"]] == ["diamond.json", "twin.json"]
    assert (zero.needs, equal.needs) == ({"init": both.key}, {"seconds_of": "ideal_2--a--doppler--seed0"})


@pytest.mark.parametrize(("change", "fragments"), [
    (("seeds = 2", "seeds = 0"), ["seeds", "integer >= 1", "0"]),
    (("seeds = 2", 'seeds = "two"'), ["seeds", "an integer", "'two'"]),
    (("seeds = 2", "sed = 2"), ["sed", "seeds"]),
    (("seeds = 2", "seeds ="), ["malformed TOML", "line"]),
    (('"one_device"', '"magic"'), ["methods.slow", "method", "critical_path", "'magic'"]),
    (('"one_device"', '"one_device"\nsettings = { batch = 2 }'), ["methods.slow", "settings", "simulations"]),
    (('"one_device"', '"doppler"\nsettings = { batch = 0 }'), ["batch", "from 1"]),
    (('"one_device"', '"doppler"\nsettings = { speed = 0 }'), ["methods.slow: settings", "speed"]),
    (('"one_device"', '"doppler"\ninit = "critical_path"'), ["methods.slow", "init", "trains"]),
    (('"one_device"', '"annealing"\nseconds_of = "slow"'), ["methods.slow", "do not need this one"]),
    (('"one_device"', '"execute"'), ["methods.slow", "of", "label"]),
    (('methods = ["critical_path", "slow"]', 'methods = ["critical_path", "fast"]'), ["methods.fast", "'fast'"]),
    (('methods = ["critical_path", "slow"]', "methods = [3]"), ["sections[0]", "methods", "3"]),
    (('graphs = ["diamond"]', 'graphs = ["heart"]'), ["graphs.heart", "chainmm", "[graphs.heart]"]),
    (('file = "', 'file = "absent'), ["absent", "no such file"]),
    (('reference = "slow"', 'reference = "heft"'), ["sections[0]", "reference", "'heft'"]),
    (('reference = "slow"', 'paper = { slow = "EnumOpp" }'), ["sections[0]", "paper", "EnumOpt", "'EnumOpp'"]),
    (('"bars", "gantt"', '"pie"'), ["sections[0]", "pictures", "'pie'"]),
    (('topologies = ["ideal:2"]', 'topologies = ["ideal:0"]'), ["ideal:0"]),
    (('topologies = ["ideal:2"]', ""), ["sections[0]", "topologies"]),
])
def test_suites_that_are_none(bench, suite, change, fragments):
    refused(bench(suite(change)), *fragments)


RECORD = {
    "title": "t", "seeds": 2, "samples": 3,
    "graphs": {"g": {"file": "g.json"}, "h": {"workload": "chainmm", "scale": "small", "options": {}}},
    "methods": {"search": {"method": "annealing", "simulations": 20, "seconds": 0.5},
                "equal": {"method": "local_search", "seconds_of": "search"},
                "learned": {"method": "doppler", "settings": {"imitation": 2, "batch": 2, "hidden": 8, "elite": 0.5, "features": "paper"}},
                "ran": {"method": "execute", "of": "learned", "executor": "emulated", "repeats": 1, "kernel_ms": 1.5}},
    "sections": [{"methods": ["equal", "ran", "heft"], "graphs": ["g", "h"], "topologies": ["ideal:2"], "layout": "long", "seeds": 1,
                  "reference": "heft", "paper": {"heft": "EnumOpt"}, "pictures": ["bars"]}]}


@given(mutated(RECORD).filter(lambda record: isinstance(record, dict)))
def test_whatever_stands_in_a_suite_is_taken_or_refused_in_one_line(record):
    from doppler_tf.api.benchmark.suite import Override
    from doppler_tf.api.benchmark.suite_file import suite_from_record

    suite = accepted(lambda: suite_from_record(record, "test", Override(settings={"real": 0})))
    if suite is not None:
        assert all(type(section.seeds) is int and section.seeds >= 1 for section in suite.sections)
        assert {label for section in suite.sections for label in section.methods} <= {*suite.methods}


@pytest.mark.parametrize(("argv", "fragments"), [
    (["absent.toml"], ["absent.toml", "no such file"]),
    ([], ["--workload or --graph"]),
    (["--workload", "chainmm", "--method", "heft"], ["--topology"]),
    (["--workload", "chainmm", "--topology", "p100x4", "--method", "heft@20"], ["--method", "annealing", "heft@20"]),
    (["--workload", "chainmm", "--topology", "p100x4", "--method", "annealing@soon"], ["--method", "annealing@soon"]),
    (["--workload", "chainmm", "chainmm", "--topology", "p100x4", "--method", "heft"], ["different names", "chainmm"]),
    (["s.toml", "--method", "heft"], ["--method", "s.toml"]),
])
def test_bad_options(bench, argv, fragments):
    refused(bench(*argv), *fragments)


def test_tilings_of_a_workload_are_compared_and_drawn(bench, write, tmp_path):
    suite = write("""
[graphs.published]
workload = "ffnn"
[graphs.cut]
workload = "ffnn"
tiling = "eindecomp"
pieces = 8
[[sections]]
title = "Cuts"
methods = ["critical_path"]
graphs = ["published", "cut"]
topologies = ["p100x4"]
pictures = ["tilings"]
""", "suite.toml")
    made = bench(suite, "--page", tmp_path / "page.md").json
    assert {row["graph"] for row in made["sections"][0]["rows"]} == {"published", "cut"}
    assert (tmp_path / "page" / "cuts.p100x4.tilings.png").stat().st_size > 5000
    assert "into how many parts each expression cuts each label, p100x4" in (tmp_path / "page.md").read_text()
    cut = [path for path in (tmp_path / "bench" / "graphs").glob("cut-*.json")]
    assert json.loads(cut[0].read_text())["graph"]["workload"]["tiling"] == {"method": "eindecomp", "pieces": 8}
