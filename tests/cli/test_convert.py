"""`convert`, and `--costs estimated`: what they write, other commands take."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_bad_input import refused
from tests.formats.foreign.files import DOT, SAGA, STG, WFFORMAT


def test_an_instance_of_saga_is_converted_placed_and_simulated(cli, write, tmp_path):
    graph, topology, placed = tmp_path / "g.json", tmp_path / "t.json", tmp_path / "a.json"
    result = cli("convert", write(SAGA), "--out", graph, "--topology-out", topology, "--json").json
    assert (result["graph"], result["vertices"], result["devices"]) == ("four", 4, 2)
    assert cli("place", graph, "--topology", topology, "--out", placed, "--json").json["makespan_s"] == 7
    assert cli("simulate", graph, "--topology", topology, "--assignment", placed, "--json").json["makespan_s"] == 7
    back = tmp_path / "back.json"
    assert cli("convert", graph, "--to", "saga", "--topology", topology, "--out", back).code == 0
    assert json.loads(back.read_text())["task_graph"] == SAGA["task_graph"]


@pytest.mark.parametrize(("document", "name", "seconds"), [(STG, "x.stg", 7), (DOT, "x.dot", 9), (WFFORMAT, "x.json", 36)])
def test_other_formats(cli, write, tmp_path, document, name, seconds):
    file, graph, topology = write(document, name), tmp_path / "g.json", "ideal:2"
    more = ("--topology-out", topology := tmp_path / "t.json") if document is WFFORMAT else ()
    outcome = cli("convert", file, "--out", graph, *more)
    assert outcome.code == 0
    assert "vertices" in outcome.out
    assert cli("place", graph, "--topology", topology, "--json").json["makespan_s"] == pytest.approx(seconds)
    if document is not WFFORMAT:
        again = tmp_path / f"again_{name}"
        assert cli("convert", graph, "--out", again).code == 0
        assert cli("convert", again, "--out", tmp_path / "twice.json", "--json").json["vertices"] == (6 if document is STG else 4)


def test_what_does_not_go_together(cli, write, tmp_path):
    stg = write(STG, "x.stg")
    refused(cli("convert", stg, "--out", tmp_path / "g.graphml", "--json"), "g.graphml", "expected JSON, .stg, .dot or .gv")
    assert not (tmp_path / "g.graphml").exists()
    assert cli("convert", stg, "--to", "dot", "--out", tmp_path / "g.graphml").code == 0
    refused(cli("convert", stg, "--out", tmp_path / "g.json", "--topology-out", tmp_path / "t.json", "--json"),
            "--topology-out", "expected a file that describes machines", "choose a topology such as ideal:4")
    refused(cli("convert", stg, "--out", tmp_path / "g.json", "--to", "saga", "--json"), "flops: expected a number for every vertex")
    refused(cli("place", stg, "--topology", "ideal:2", "--json"), "x.stg: file: expected JSON (doppler-graph/1), got '.stg'; `convert`")
    refused(cli("info", write(WFFORMAT), "--json"), "nodes: expected a list, got None", "`convert` reads graphs of SAGA, WfCommons")
    assert not (tmp_path / "g.json").exists()


def test_costs_are_estimated_where_times_are_of_other_devices(cli, write, tmp_path):
    graph = write({"graph": {"name": "measured"}, "edges": [{"source": "a", "target": "b", "transfer_s": 9}],
                   "nodes": [{"id": "a", "exec_s": [1, 2], "flops": 989e12, "output_bytes": 8}, {"id": "b", "exec_s": [3, 4], "flops": 0}]})
    placed = tmp_path / "a.json"
    refused(cli("place", graph, "--topology", "h100x8", "--json"), "got a list of 2; times belong to their devices", "--costs estimated")
    estimated = ("--topology", "h100x8", "--costs", "estimated", "--json")
    result = cli("place", graph, *estimated, "--out", placed).json
    assert result["makespan_s"] == pytest.approx(1, rel=1e-4)
    assert cli("simulate", graph, *estimated, "--assignment", placed).json["makespan_s"] == result["makespan_s"]
    assert cli("info", graph, *estimated).json["work_s"] == pytest.approx(1, rel=1e-4)
    assert cli("compare", graph, *estimated, "--methods", "heft").json["methods"]["heft"]["makespan_s"] == pytest.approx(1, rel=1e-4)
    lacking = write({"nodes": [{"id": "a", "exec_s": 1}], "edges": []}, "lacking.json")
    refused(cli("place", lacking, *estimated), "lacking.json: vertex 'a': flops: expected a number, from which its time can be estimated")
