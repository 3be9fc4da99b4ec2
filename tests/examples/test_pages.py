"""The code on docs/tutorial.md and docs/howto.md works as it stands there, and the quick commands print what the pages show."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

from data import decompose, evaluate_program, execute_tiles, relative_error
from docs import samples
from doppler_tf import Topology, build_costs, read_graph
from doppler_tf.graph import topology
from doppler_tf.heuristics import HEURISTICS
from tests.heuristics import test_contract

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, HOWTO = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("tutorial", "howto"))


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def names_of(block: str, **known) -> dict:
    """What a block of Python defines."""
    exec(compile(block, "a block of a page", "exec"), known)
    return known


def test_the_tutorial_up_to_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (_, model), (two, server) = blocks(TUTORIAL, "python"), blocks(TUTORIAL, "json")
    names_of(model)
    Path("my/server.json").write_text(server)
    Path("two.json").write_text(two)
    assert read_graph("my/model.json").name == "my_model"
    assert build_costs(read_graph("two.json"), Topology.from_json(json.loads(server))).exec_s[0].tolist() == [0.002] * 4
    described = TUTORIAL.partition("# A graph that you describe")[2]
    quick = [sample for sample in samples.samples(described) if sample.is_quick]
    assert [sample.argv[0] for sample in quick] == ["info", "place", "simulate"]
    for sample in quick:
        assert samples.stale(sample, samples.call(sample)) == [], sample.command
    assert Path("my/placed.png").stat().st_size > 1000


def test_the_workload_computes_what_it_says_however_many_devices():
    workload = names_of(blocks(HOWTO, "python")[0])["MLP"]
    program = workload.program({"batch": 24, "features": 8, "hidden": 16})
    tensors = program.draw_inputs(0)
    expected = np.maximum(tensors["X"] @ tensors["W1"], 0) @ tensors["W2"]
    assert relative_error(evaluate_program(program, tensors), {"out": expected}) < 1e-6
    for devices in (1, 3, 4):
        graph = decompose(program, workload.tiling(program, devices), 4, {"name": "mlp"})
        assert relative_error(execute_tiles(graph, tensors), {"out": expected}) < 1e-6


@pytest.mark.parametrize("rule", [rule for rule in vars(test_contract) if rule.startswith("test_")
                                  and "name" in inspect.signature(getattr(test_contract, rule)).parameters])
def test_the_heuristic_keeps_the_contract(rule, monkeypatch):
    made = names_of(blocks(HOWTO, "python")[1], __name__="least_loaded")["least_loaded"]
    monkeypatch.setitem(HEURISTICS, "least_loaded", made)
    getattr(test_contract, rule)(name="least_loaded")


def test_the_topology_as_a_file_and_as_a_preset_is_the_same():
    made = names_of(blocks(HOWTO, "python")[3], **vars(topology))
    assert made["PRESETS"]["l4x2"] is made["l4x2"]
    assert {*made["PRESETS"]} == {*topology.PRESETS, "l4x2"}
    read = Topology.from_json(json.loads(blocks(HOWTO, "json")[0]))
    assert made["l4x2"]().topology_hash == read.topology_hash
