"""What `trace` says of a run: the critical chain and idle time by cause."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def stored(cli, diamond, write, tmp_path):
    """The diamond on two devices: a 0-2 and c 3-4 on the first, b 0-2 on the second, its output sent 2-3."""
    path = tmp_path / "run.trace.json"
    cli("simulate", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--trace", path)
    return path


def test_the_diamond(cli, stored):
    outcome = cli("trace", stored, "--json")
    none = {"input_s": 0, "link_s": 0, "memory_s": 0, "overhead_s": 0, "finished_s": 0}
    assert outcome.json["idle"] == {"device:0": {**none, "link_s": 1}, "device:1": {**none, "finished_s": 2}}
    link = "device:1 -> device:0"
    rows = [("exec", "b", "device:1", 0, 2, "nothing"), ("transfer", "b", link, 2, 3, "input"), ("exec", "c", "device:0", 3, 4, "transfer")]
    assert outcome.json["critical_chain"] == {"exec_s": 3, "transfer_s": 1, "waiting_s": 0, "elements": [
        {"kind": kind, "id": name, "name": name, "lane": lane, "start_s": start, "end_s": end, "waited_for": waited_for, "waiting_s": 0}
        for kind, name, lane, start, end, waited_for in rows]}


def test_tables(cli, stored):
    out = " ".join(cli("trace", stored).out.split())
    for words in ("device busy peak memory idle for input for link for memory overhead nothing left",
                  "device:0 75.0% 0 B 1,000 ms 0 ms 1,000 ms 0 ms",
                  "exec 3,000 ms, 75.0% transfer 1,000 ms, 25.0% waiting 0 ms, 0.0%",
                  "c device:0 3,000 ms 4,000 ms transfer (b) 0 ms"):
        assert words in out


def test_of_a_long_chain_the_longest_elements_are_shown(cli, write, tmp_path):
    nodes = [{"id": f"v{v}", "exec_s": 1 + v % 2} for v in range(50)]
    edges = [{"source": f"v{v}", "target": f"v{v + 1}", "transfer_s": 1} for v in range(49)]
    graph, path = write({"nodes": nodes, "edges": edges, "graph": {"name": "line"}}, "line.json"), tmp_path / "line.trace.json"
    cli("simulate", graph, "--topology", "ideal:1", "--assignment", write([0] * 50), "--trace", path)
    outcome = cli("trace", path, "--json")
    assert len(outcome.json["critical_chain"]["elements"]) == 50
    assert "the 20 longest of 50 elements" in outcome.err
    names = [words[0] for line in outcome.err.splitlines() if (words := line.split()) and words[0].startswith("v") and len(words) > 6]
    assert names == [f"v{v}" for v in range(1, 41, 2)]


def test_an_impossible_trace_is_not_explained(cli, stored, write):
    spoiled = json.loads(stored.read_text())
    for event in spoiled["traceEvents"]:
        if event.get("cat") == "vertex" and event["args"]["vertex"] == 3:
            event["args"]["start_s"] = 1.0
    outcome = cli("trace", write(spoiled, "spoiled.json"), "--json")
    assert (outcome.code, outcome.json["critical_chain"], outcome.json["idle"]) == (0, None, None)


@pytest.mark.parametrize("executor", ["emulated", "synchronous"])
def test_runs_say_why_devices_idled(cli, diamond, write, tmp_path, executor):
    path = tmp_path / "run.trace.json"
    found = cli("run", diamond, "--topology", "ideal:2", "--assignment", write([None, 0, 1, 0]), "--executor", executor,
                "--time-scale", 0.02, "--tolerance-s", 1, "--trace", path, "--json").json
    for name, causes in found["idle"].items():
        assert sum(causes.values()) == pytest.approx((1 - found["busy"][name]) * found["makespan_s"])
    events = json.loads(path.read_text())["traceEvents"]
    start_s, end_s = ({event["args"]["vertex"]: event["args"][key] for event in events if event.get("cat") == "vertex"}
                      for key in ("start_s", "end_s"))
    sent, = (event["args"] for event in events if event.get("cat") == "transfer")
    # From the end of both producers on, either of which a wall clock may show late.
    assert found["idle"]["device:0"]["link_s"] == pytest.approx(min(sent["end_s"], start_s[3]) - max(end_s[1], end_s[2]))
    chain = cli("trace", path, "--tolerance-s", 1, "--json").json["critical_chain"]
    assert chain["exec_s"] + chain["transfer_s"] + chain["waiting_s"] == pytest.approx(found["makespan_s"])
