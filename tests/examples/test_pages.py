"""The code on docs/tutorial.md works as it stands there, and the quick commands print what the page shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs import samples
from doppler_tf import Topology, build_costs, read_graph

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def names_of(block: str, **known) -> dict:
    """What a block of Python defines."""
    exec(compile(block, "a block of a page", "exec"), known)
    return known


def test_the_tutorial_up_to_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (model,), (two, server) = blocks(TUTORIAL, "python"), blocks(TUTORIAL, "json")
    names_of(model)
    Path("my/server.json").write_text(server)
    Path("two.json").write_text(two)
    assert read_graph("my/model.json").name == "my_model"
    assert build_costs(read_graph("two.json"), Topology.from_json(json.loads(server))).exec_s[0].tolist() == [0.002] * 4
    quick = [sample for sample in samples.samples(TUTORIAL) if sample.is_quick]
    assert [sample.argv[0] for sample in quick] == ["info", "place", "simulate"]
    for sample in quick:
        assert samples.stale(sample, samples.call(sample)) == [], sample.command
    assert Path("my/placed.png").stat().st_size > 1000
