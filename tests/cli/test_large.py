"""What commands print of large graphs stays readable; the JSON object holds everything."""

from __future__ import annotations

from doppler_tf.cli.info import SHOWN_KINDS
from doppler_tf.cli.trace import SHOWN_LINKS


def test_info_shows_the_commonest_kinds(cli, write):
    nodes = [{"id": v, "exec_s": 1, "kind": "matmul" if v < 5 else f"kind {v}"} for v in range(1000)]
    outcome = cli("info", write({"nodes": nodes, "edges": []}), "--json")
    assert len(outcome.json["kinds"]) == 996
    table = outcome.err.splitlines()
    assert len(table) < 50
    first = next(i for i, line in enumerate(table) if "matmul" in line)
    assert "976 more" in table[first + SHOWN_KINDS]
    assert table[first + SHOWN_KINDS].split()[2] == "976"


def test_trace_shows_the_busiest_links(cli, write, tmp_path):
    """Every one of 12 devices sends to the 11 others; the link from device 0 to 1 carries most."""
    nodes = [{"id": v, "exec_s": 1} for v in range(24)]
    edges = [{"source": u, "target": v, "transfer_s": 3 if (u, v) == (0, 13) else 1} for u in range(12) for v in range(12, 24)]
    devices = [v % 12 for v in range(24)]
    path, trace = write({"nodes": nodes, "edges": edges}), tmp_path / "t.json"
    assert cli("simulate", path, "--topology", "cpu:12", "--assignment", write(devices, "a.json"), "--trace", trace).code == 0
    outcome = cli("trace", trace, "--json")
    assert len(outcome.json["busy_links"]) == 132
    shown = [line for line in outcome.err.splitlines() if "->" in line and "%" in line]
    assert len(shown) == SHOWN_LINKS
    assert "CPU:0 -> CPU:1 " in shown[0]
    assert f"{SHOWN_LINKS} busiest links" in outcome.err
