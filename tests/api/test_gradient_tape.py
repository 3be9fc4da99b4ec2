"""What `run` tells of a training step's gradients."""

import numpy as np
import pytest

from data import build_workload, gradient_rules
from data.training import OPTIMIZERS
from doppler_tf.api.comparison.gradient_tape import gradient_error
from doppler_tf.api.executors import Program
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.batches import repeat_graph
from tests.crossed import crossed
from tests.data.test_workloads import TINY


@pytest.mark.parametrize(*crossed(name=["chainmm", "ffnn", "llama_layer"], optimizer=list(OPTIMIZERS)))
def test_they_are_those_of_the_tape_whatever_the_optimizer(name, optimizer):
    graph = build_workload(name, 2, "small", optimizer=optimizer, recompute=name == "llama_layer", **TINY[name])
    assert gradient_error(graph.attributes["workload"]) <= 1e-12
    program = Program(graph)
    assert program.repeated(repeat_graph(graph, cpu(2), 2, 1), 0).gradient_error() == program.gradient_error() <= 1e-12


def test_a_wrong_rule_is_found(monkeypatch):
    graph = build_workload("ffnn", 2, "small", optimizer="sgd", **TINY["ffnn"])
    monkeypatch.setitem(gradient_rules._FUNCTIONS, "relu", lambda p, k: p.times(p.value, k))
    assert gradient_error(graph.attributes["workload"]) > 0.01


def test_one_that_is_not_finite_is_no_match(monkeypatch):
    graph = build_workload("ffnn", 2, "small", optimizer="sgd", **TINY["ffnn"])
    monkeypatch.setitem(gradient_rules._FUNCTIONS, "relu", lambda p, k: p.times(p.apply("log", p.value).times(1.0), k))
    with np.errstate(all="ignore"):
        assert np.isnan(gradient_error(graph.attributes["workload"]))


def test_a_forward_pass_has_none():
    assert Program(build_workload("ffnn", 2, "small", **TINY["ffnn"])).gradient_error() is None
