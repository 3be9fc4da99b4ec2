"""The user's mistakes: exit code 2, one line on stderr that names the culprit, the same in {"error"}."""

from __future__ import annotations

import argparse

import pytest

from doppler_tf.cli.options import refuse_overwriting


def refused(outcome, *fragments: str) -> None:
    """Exit code 2, one line on stderr without usage or traceback, and the same line as JSON."""
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert outcome.err.startswith("error: ")
    assert list(outcome.json) == ["error"]
    assert outcome.err == f"error: {outcome.json['error']}\n"
    absent = [fragment for fragment in fragments if fragment not in outcome.err]
    assert not absent, f"{absent} not in {outcome.err!r}"


def _spoil(path: str, value):
    """A change of the record: the field at `path` set to `value`."""

    def change(record: dict) -> None:
        *way, last = path.split(".")
        for step in way:
            record = record[int(step)] if step.isdigit() else record[step]
        record[last] = value

    return change


def _add_edge(source: str, target: str):
    return lambda record: record["edges"].append({"source": source, "target": target, "transfer_s": 1})


SPOILED = {
    "cycle": (_add_edge("c", "a"), ["cycle", "'a'", "'c'"]),
    "unknown vertex": (_add_edge("a", "nowhere"), ["'nowhere'", "target"]),
    "duplicate id": (_spoil("nodes.2.id", "a"), ["'a'", "id", "twice"]),
    "negative cost": (_spoil("nodes.1.exec_s", -1), ["'a'", "exec_s", "-1"]),
    "NaN cost": (_spoil("nodes.1.exec_s", float("nan")), ["NaN"]),
    "text for a cost": (_spoil("nodes.1.exec_s", "fast"), ["'a'", "exec_s", "'fast'"]),
    "missing cost": (lambda record: record["nodes"][1].pop("exec_s"), ["'a'", "exec_s", "flops"]),
    "missing transfer": (lambda record: record["edges"][2].pop("transfer_s"), ["'a' -> 'c'", "bytes"]),
    "empty graph": (lambda record: (record["nodes"].clear(), record["edges"].clear()), ["empty"]),
    "double edge": (_add_edge("a", "c"), ["'a' -> 'c'"]),
    "unknown pin": (_spoil("nodes.1.pin", 9), ["'a'", "pin", "9"]),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_bad_graphs(cli, record, write, spoil):
    change, fragments = SPOILED[spoil]
    change(record)
    graph = write(record, "bad.json")
    refused(cli("place", graph, "--topology", "ideal:2", "--json"), "bad.json", *fragments)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", "", '{"nodes": 1}', "\x00"])
def test_files_that_are_no_graphs(cli, write, text):
    refused(cli("info", write(text, "bad.json"), "--json"), "bad.json")


@pytest.mark.parametrize(("devices", "fragments"), [
    ([None, 0, 1, 2], ["'c'", "device", "0 to 1"]),
    ([None, 0, -1, 0], ["'b'", "device"]),
    ([None, 0, 1], ["expected 4", "got 3"]),
    ([None, 0, None, 0], ["'b'", "null"]),
    ([None, 0, 1.5, 0], ["'b'", "1.5"]),
    ({"schema": "other/1"}, ["schema"]),
    ({"schema": "doppler-assignment/1", "device": [None, 0, 1, 0], "graph_hash": "0" * 64}, ["graph_hash", "another graph"]),
    ({"schema": "doppler-assignment/1", "device": [None, 0, 1, 0], "dispatch": "lifo"}, ["lifo", "fifo"]),
])
def test_assignments_that_do_not_fit(cli, diamond, write, devices, fragments):
    refused(cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write(devices, "bad.json"), "--json"), *fragments)


@pytest.mark.parametrize(("argv", "fragments"), [
    (["--topology", "h200x8"], ["h200x8", "p100x4"]),
    (["--topology", "ideal:0"], ["ideal:0", "number of devices"]),
    (["--topology", "p100x4", "--method", "magic"], ["magic", "critical_path"]),
    (["--topology", "ideal:2", "--method", "policy"], ["--policy"]),
    (["--topology", "ideal:2", "--dispatch", "lifo"], ["lifo", "b_level"]),
    (["--topology", "ideal:2", "--samples", "0"], ["--samples", ">= 1", "'0'"]),
    (["--topology", "ideal:2", "--samples", "1000000000"], ["--samples", "1 to 100000"]),
    (["--topology", "ideal:2", "--budget-s", "nan"], ["--budget-s", "> 0"]),
    (["--topology", "ideal:2", "--sample", "3"], ["--sample"]),
    (["--topology"], ["--topology", "argument"]),
    ([], ["--topology", "required"]),
])
def test_bad_options(cli, diamond, argv, fragments):
    refused(cli("place", diamond, *argv, "--json"), *fragments)


@pytest.mark.parametrize("argv", [[], ["fly"], ["place"], ["compare", "g.json", "--topology", "ideal:2", "--methods", "a,,b"]])
def test_bad_commands(cli, argv):
    refused(cli(*argv, "--json"))


def test_missing_files(cli, diamond, tmp_path):
    absent = tmp_path / "absent.json"
    refused(cli("info", absent, "--json"), str(absent), "no such file")
    refused(cli("simulate", diamond, "--topology", "ideal:2", "--assignment", absent, "--json"), str(absent))
    refused(cli("trace", absent, "--json"), str(absent))
    refused(cli("info", tmp_path, "--json"), str(tmp_path))


def test_places_that_cannot_be_written(cli, diamond, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.json", tmp_path):
        refused(cli("place", diamond, "--topology", "ideal:2", "--out", place, "--json"), str(place), "cannot be written")
    made = cli("workload", "chainmm", "--devices", 2, "--scale", "small", "--out", tmp_path / "file" / "g.json", "--json")
    refused(made, "cannot be written")


def test_what_is_read_is_not_written_over(cli, diamond, write, tmp_path):
    """Nor are two results written into one file."""
    topology = write({"schema": "doppler-topology/1", "devices": [{"name": "a"}, {"name": "b"}], "links": {"bandwidth_bytes_per_s": 1}},
                     "topology.json")
    module, placed, new = write("def twice(x):\n    return 2.0 * x\n", "mine.py"), write([None, 0, 1, 0], "placed.json"), tmp_path / "new"
    (tmp_path / "link.json").symlink_to(diamond)
    place, simulate = ("place", diamond, "--topology", topology), ("simulate", diamond, "--topology", topology, "--assignment", placed)
    before = {path: path.read_bytes() for path in (diamond, topology, module, placed)}
    for argv in ((*place, "--out", diamond), (*place, "--out", topology), (*place, "--gantt", tmp_path / "link.json"),
                 (*simulate, "--trace", placed), (*simulate, "--gantt", tmp_path / "." / "topology.json"),
                 ("convert", diamond, "--out", diamond), ("capture", f"{module}:twice", "--input", "x=f32[2]", "--out", module)):
        refused(cli(*argv, "--json"), str(argv[-2]), "expected another file than those that are read")
    refused(cli(*place, "--out", new, "--gantt", new, "--json"), "--gantt", "a file of its own", "that of --out")
    write(diamond.read_text(), "other.json")
    refused(cli("place", diamond, tmp_path / "other.json", "--topology", "ideal:2", "--out", tmp_path, "--json"), "another folder")
    measured = write(diamond.read_text(), "graph.json")
    refused(cli("calibrate", measured, "--topology", "ideal:2", "--executor", "emulated", "--out", tmp_path, "--json"), "--out",
            f"another folder than that of {measured}")
    assert {path: path.read_bytes() for path in before} == before
    assert not new.exists()
    refuse_overwriting(argparse.Namespace(out="/dev/null", gantt="/dev/null"))  # which takes all there is


def test_traces_of_another_make(cli, diamond, write):
    refused(cli("trace", diamond, "--json"), "doppler-trace/1")


@pytest.mark.parametrize(("argv", "fragments"), [
    (["resnet", "--devices", "4"], ["resnet", "chainmm"]),
    (["chainmm", "--devices", "0"], ["--devices"]),
    (["chainmm", "--devices", "4", "--scale", "huge"], ["huge", "small"]),
    (["chainmm", "--devices", "4", "--option", "size"], ["--option", "key=value"]),
    (["chainmm", "--devices", "4", "--option", "colour=3"], ["colour"]),
    (["chainmm", "--devices", "4", "--option", "size=big"], ["size", "big"]),
    (["chainmm", "--devices", "4", "--layers", "3"], ["chainmm", "n, dtype_bytes", "'layers'"]),
    (["llama_stack", "--devices", "4", "--vertices", "3"], ["llama_stack", "layers", "'vertices'"]),
    (["llama_stack", "--devices", "4", "--layers", "2.5"], ["layers", "integer from 1 to 10000", "2.5"]),
    (["layered", "--devices", "4", "--layers", "3"], ["layered", "vertices, width", "'layers'"]),
    (["layered", "--devices", "4", "--vertices", "many"], ["vertices", "number", "'many'"]),
    (["layered", "--devices", "4", "--vertices", "0"], ["vertices", "1 to", "0"]),
    (["layered", "--devices", "4", "--vertices", "10", "--option", "vertices=20"], ["vertices", "one value", "10, 20"]),
])
def test_bad_workloads(cli, tmp_path, argv, fragments):
    refused(cli("workload", *argv, "--out", tmp_path / "g.json", "--json"), *fragments)
    assert not (tmp_path / "g.json").exists()


def test_compare_names_an_unknown_method(cli, diamond):
    refused(cli("compare", diamond, "--topology", "ideal:2", "--methods", "random,magic", "--json"), "magic", "critical_path")
    refused(cli("compare", diamond, "--topology", "ideal:2", "--methods", "policy", "--json"), "--policy")


def test_run_needs_kernels_for_real_execution(cli, diamond, write):
    argv = ("run", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--json")
    refused(cli(*argv, "--executor", "tf"), "diamond", "kernel", "any but layered", "emulated")
    refused(cli(*argv, "--executor", "warp"), "warp", "emulated")
    refused(cli(*argv), "--executor")
