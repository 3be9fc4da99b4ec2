"""Examples of moves and the training on them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pretrain
from benchmarks.move_examples import Examples, examples, untrained
from benchmarks.pretrain import fit, kept, write_proposals
from data.generated import generated_problem
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.proposals import FEATURES, read_proposals


def network(proposals, x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ proposals.first + proposals.first_bias, 0)
    return np.maximum(hidden @ proposals.second + proposals.second_bias, 0) @ proposals.last


@pytest.mark.parametrize("dispatch", ["fifo", "order"])
def test_examples_of_a_graph_repeat_and_some_shorten_it(dispatch):
    graph, costs, _ = generated_problem(2, (60, 90), 4, "layered")
    found, again = (examples(Problem(graph, costs, dispatch), 0) for _ in range(2))
    assert found.features.shape == (len(found.shortens), len(FEATURES))
    assert np.isfinite(found.features).all()
    assert 0 < found.shortens.mean() < 0.5
    assert (found.features == again.features).all()
    assert (found.shortens == again.shortens).all()


def test_what_shortens_is_learned_whatever_its_scale():
    """Moves shorten if the sum of two features is small; one of these counts in thousands."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, len(FEATURES))).astype(np.float32)
    x[:, 3] *= 1000
    shortens = x[:, 1] + x[:, 3] / 1000 < -1.5
    proposals = fit([Examples(x, shortens), Examples(x[:100], np.zeros(100, bool))])
    value = network(proposals, x.astype(np.float64))
    assert value[shortens].mean() > value[~shortens].mean()
    assert ((value > np.quantile(value, 1 - shortens.mean())) == shortens).mean() > 0.93


def test_an_untrained_network_finds_all_alike():
    assert (network(untrained(), np.random.default_rng(0).normal(size=(9, len(FEATURES)))) == 0).all()


def test_a_graph_that_fails_is_told_and_the_others_are_kept(tmp_path, monkeypatch):
    def some(seed):
        if seed == 1:
            raise ValueError("no graph")
        return Examples(np.full((2, len(FEATURES)), seed, np.float32), np.ones(2, bool))

    monkeypatch.setattr(pretrain, "labelled", some)
    assert pretrain.collect([0, 1, 2], tmp_path, None, None) == {1: "ValueError: no graph"}
    assert sorted(path.stem for path in tmp_path.glob("*.npz")) == ["00000", "00002"]
    assert (kept(2, tmp_path).features == 2).all()
    monkeypatch.setattr(pretrain, "labelled", None)
    assert pretrain.collect([0, 2], tmp_path, None, None) == {}


def test_examples_are_kept_and_the_file_is_read_again(tmp_path, monkeypatch):
    graph, costs, _ = generated_problem(2, (20, 30), 4, "layered")
    monkeypatch.setattr(pretrain, "labelled", lambda seed: examples(Problem(graph, costs), seed))
    first = kept(2, tmp_path)
    monkeypatch.setattr(pretrain, "labelled", None)
    assert (kept(2, tmp_path).features == first.features).all()
    proposals = fit([Examples(first.features[:200], first.shortens[:200])])
    write_proposals(proposals, tmp_path / "made.json", {"graphs": 1})
    read = read_proposals((tmp_path / "made.json").read_text(), "made.json")
    for name in ("first", "first_bias", "second", "second_bias", "last"):
        assert getattr(read, name) == pytest.approx(getattr(proposals, name), abs=1e-6)
