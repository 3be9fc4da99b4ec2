"""`--memory`: the devices of any topology with other limits, on every command that takes a topology."""

from __future__ import annotations

import argparse
import json

import pytest

from doppler_tf.cli.options import sizes

CHAIN = {"graph": {"name": "chain"},
         "nodes": [*({"id": f"w{i}", "input": True, "output_bytes": 4000} for i in range(6)),
                   *({"id": f"v{i}", "exec_s": 1, "output_bytes": 100} for i in range(6))],
         "edges": [*({"source": f"w{i}", "target": f"v{i}"} for i in range(6)),
                   *({"source": f"v{i}", "target": f"v{i + 1}"} for i in range(5))]}


@pytest.mark.parametrize(("text", "expected"), [("2GB", [2e9]), ("1.5 GiB", [1.5 * 2**30]), ("700", [700]), ("3kb,4 MB", [3e3, 4e6]),
                                                (".5TB", [5e11]), ("1e3KiB", [1024e3])])
def test_sizes_have_units(text, expected):
    assert sizes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0.5", "-1GB", "2XB", "GB", "1GB,", "nan", "1e400GB", "2 G B"])
def test_what_is_no_size_is_told(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected bytes >= 1 with a unit"):
        sizes(text)


def test_devices_get_their_limits(cli, tmp_path):
    graph, placed = tmp_path / "g.json", tmp_path / "p.json"
    graph.write_text(json.dumps(CHAIN))
    short = ("--topology", "cpu:2", "--memory", "6kB")
    assert cli("info", graph, *short, "--json").json["memory"]["limited"]
    found = cli("place", graph, *short, "--out", placed, "--json").json
    assert found["offload"]["reloads"] > 0
    assert cli("simulate", graph, *short, "--assignment", placed, "--json").json["makespan_s"] == found["makespan_s"]
    assert "offload" not in cli("place", graph, "--topology", "cpu:2", "--memory", "1GB,6kB", "--json").json
    for arguments, words in ((("simulate", graph, "--topology", "cpu:2", "--assignment", placed),
                              "p.json: memory_bytes: expected none, as the devices of cpu:2 have, got 6kB; it was made with other limits "
                              "of memory: give --memory 6kB, or place again"),
                             (("info", graph, "--memory", "1GB"), "--memory: expected --topology T beside it, got none"),
                             (("info", graph, "--topology", "cpu:2", "--memory", "1,2,3"),
                              "--memory: expected a size, or one for each of the 2 devices of cpu:2, got 3")):
        refused = cli(*arguments)
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.err.strip().splitlines()) == 1


def test_compare_finds_what_place_finds(cli, tmp_path):
    graph, short = tmp_path / "g.json", ("--topology", "cpu:2", "--memory", "6kB")
    graph.write_text(json.dumps(CHAIN))
    table = cli("compare", graph, *short, "--methods", "one_device,heft", "--json")
    rows = table.json["methods"]
    assert "reloads" in table.err
    for method in ("one_device", "heft"):
        alone = cli("place", graph, *short, "--method", method, "--json").json
        assert (rows[method]["makespan_s"], rows[method]["reloads"]) == (alone["makespan_s"], alone["offload"]["reloads"])
        assert rows[method]["makespan_s"] >= table.json["lower_bound_s"]
    leader = min(("one_device", "heft"), key=lambda method: rows[method]["makespan_s"])
    assert list(rows) == ["one_device", "heft", f"{leader}, by a pager"]
    assert rows[f"{leader}, by a pager"]["reloads"] > 0
    fits = cli("compare", graph, "--topology", "cpu:2", "--memory", "1GB", "--methods", "one_device", "--json")
    assert list(fits.json["methods"]) == ["one_device"]
    assert "reloads" not in fits.err


def test_compare_says_why_nothing_fits(cli, tmp_path):
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(CHAIN))
    found = cli("compare", graph, "--topology", "cpu:2", "--memory", "4kB", "--methods", "heft", "--json")
    assert found.json["methods"]["heft"]["makespan_s"] is None
    assert "alone needs 4.1 kB" in found.err
