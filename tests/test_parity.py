"""The recorded makespans of the simulator that the paper's authors released."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.validation import validate_trace

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"


@pytest.mark.parametrize("name", ["chainmm", "ffnn", "llama_block"])
def test_all_ten_cases_exactly(name):
    if not REFERENCE.exists():
        pytest.skip(f"no reference cases at {REFERENCE}")
    graph = read_graph(REFERENCE / f"{name}.graph.json")
    base = build_costs(graph, ideal(4))
    cases = json.loads((REFERENCE / f"{name}.parity.json").read_text())["cases"]
    assert len(cases) == 10
    for case in cases:
        exec_s = np.repeat(np.array(case["exec_s"], np.float64)[:, None], 4, axis=1)
        costs = dataclasses.replace(base, exec_s=exec_s, explicit_transfer_s=np.array(case["transfer_s"], np.float64)[graph.sources])
        assignment = Assignment(np.array(case["assignment"], np.int32))
        trace = simulate(graph, costs, assignment)
        assert trace.makespan_s == case["makespan_s"]
        assert FastSimulator(graph, costs).makespans(assignment.device[None]).tolist() == [case["makespan_s"]]
        assert validate_trace(graph, costs, assignment, trace).work_conserving
