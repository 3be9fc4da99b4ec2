"""Odd and broken GraphDefs end with TensorFlow's own outputs or in one line, as functions to capture and as captured folders to run."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data.capture import capture
from doppler_tf.errors import UserError
from tests.captured_models import run_pieces
from tests.data.capture.odd_graphs import BASES, X, base, crashing, imported, in_order, make_odd, mark_functions

# Hypothesis draws so many; the thorough test takes the first 2,000 seeds.
EXAMPLES, SEEDS = 60, 2_000
W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
_numbers = itertools.count()
ALONE, OURS = "TensorFlow alone", "captured"
ROOT = Path(__file__).parents[3]


def outcome(function, variable, *inputs):
    """What a call gives: arrays and the variable's value, or what TensorFlow raises. The variable is as before."""
    try:
        made = [np.asarray(x) for x in function(*map(tf.constant, inputs))]
        return [*made, variable.numpy()]
    except (tf.errors.OpError, UserError) as error:
        return error
    finally:
        variable.assign(W)


def one_line(error: Exception) -> str:
    """Asserts that an error is a line that says something."""
    assert isinstance(error, UserError)
    assert str(error).count("\n") == 0
    assert len(str(error)) > 20
    return "refused"


def same(found, expected) -> bool:
    """Whether arrays are equal up to rounding."""
    return len(found) == len(expected) and all(
        a.shape == b.shape and np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(found, expected, strict=True))


def captured(seed: int, folder, begins=lambda stage: None) -> str:
    """Captures an odd function and runs it; returns what came of it. Args: begins: hears of ALONE and OURS before what may crash."""
    rng = random.Random(seed)
    original, outputs = base(rng.choice(BASES))
    graph = tf.compat.v1.GraphDef()
    graph.CopyFrom(original)
    mark_functions(graph, f"_{next(_numbers)}")
    make_odd(graph, rng)
    variable = tf.Variable(W, name="w")
    function = imported(graph, outputs, variable)
    try:
        traced = tf.compat.v1.wrap_function(function, [X])
    except Exception:  # whatever TensorFlow makes of it, a capture of the Python function ends in one line
        with pytest.raises(UserError) as caught:
            capture(function, (X,), model_folder=folder)
        return one_line(caught.value)
    x = np.random.default_rng(seed).normal(size=X.shape).astype(np.float32)
    broken = crashing(graph)
    begins(ALONE)
    expected = RuntimeError(broken) if broken else outcome(lambda x: tf.nest.flatten(traced(x)), variable, x)
    begins(OURS)
    try:
        found = capture(traced, [X], model_folder=folder, grouping=rng.random() < 0.5)
        made, updates = run_pieces(found, {each["name"]: x for each in found.attributes["captured"]["inputs"]})
    except UserError as error:
        return one_line(error)
    except tf.errors.OpError:  # as the original does when it runs
        assert isinstance(expected, Exception)
        return "both raise"
    if isinstance(expected, Exception):  # of an operation that nothing needs
        return "left out"
    if in_order(graph, "w"):
        assert same([*made.values(), updates.get("w", W)], expected)
    return "equal"


def damaged(seed: int, bases, folder, begins=lambda stage: None) -> str:
    """Damages a captured folder and runs it; returns what came of it. Args: begins: as of `captured`."""
    rng = random.Random(seed)
    found = rng.choice(bases)
    shutil.copytree(found.attributes["captured"]["model"], folder)
    graph, meta = tf.compat.v1.GraphDef.FromString((folder / "function.pb").read_bytes()), json.loads((folder / "meta.json").read_text())
    before = graph.SerializeToString(deterministic=True)
    make_odd(graph, rng, functions=False)
    content = graph.SerializeToString(deterministic=True)
    (folder / "function.pb").write_bytes(content)
    accepted = rng.random() < 0.75 and not crashing(graph)
    if accepted:  # as if `capture` had written it
        meta["sha256"]["function.pb"] = hashlib.sha256(content).hexdigest()
        (folder / "meta.json").write_text(json.dumps(meta))
    attributes = {**found.attributes, "captured": {**found.attributes["captured"], "model": str(folder)}}
    x = np.random.default_rng(seed).normal(size=X.shape).astype(np.float32)
    arguments, resources = ([each[key] for each in group] for key, group in (
        ("tensor", meta["arguments"]), ("placeholder", meta["variables"].values())))
    variable = tf.Variable(W)

    def function(x):
        handle = tf.compat.v1.get_default_graph().capture(variable.handle)
        feeds = {name: x for name in arguments} | {f"{name}:0": handle for name in resources}
        used = {f"{text.partition(':')[0]}:0" for node in graph.node for text in node.input if not text.startswith("^")}
        used |= {each["tensor"] for each in meta["outputs"]}
        return tf.import_graph_def(graph, {key: value for key, value in feeds.items() if key in used},
                                   [each["tensor"] for each in meta["outputs"]], name="")

    begins(ALONE)
    expected = None
    if accepted:
        try:
            expected = outcome(tf.compat.v1.wrap_function(function, [X]), variable, x)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            expected = error
    begins(OURS)
    try:
        made, _ = run_pieces(dataclasses.replace(found, attributes=attributes), {each["name"]: x for each in meta["arguments"]})
    except UserError as error:
        return one_line(error)
    except tf.errors.OpError as error:
        made = error
    if expected is None:  # what is not as it was written is only run if nothing has changed
        assert content == before
        return "unchanged"
    if isinstance(expected, Exception) or isinstance(made, Exception):
        assert isinstance(expected, Exception)
        return "both raise" if isinstance(made, Exception) else "left out"
    if all(in_order(graph, name) for name in resources):
        assert same(list(made.values()), expected[:-1])
    return "equal"


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 1 << 32))
def test_an_odd_function_gives_its_outputs_or_one_line(seed, tmp_path_factory):
    captured(seed, tmp_path_factory.mktemp("odd") / "model")


def whole(folder):
    """Captured functions that are in order."""
    variable, found = tf.Variable(W, name="w"), []
    for i, make in enumerate(BASES):
        original, outputs = base(make)
        graph = tf.compat.v1.GraphDef()
        graph.CopyFrom(original)
        traced = tf.compat.v1.wrap_function(imported(graph, outputs, variable), [X])
        found += [capture(traced, [X], model_folder=folder / f"{i}{each}.model", grouping=each) for each in (False, True)]
    return found


@pytest.fixture(scope="module", name="whole")
def whole_functions(tmp_path_factory):
    """One for all damages."""
    return whole(tmp_path_factory.mktemp("whole"))


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_folder_gives_its_outputs_or_one_line(seed, whole, tmp_path_factory):
    damaged(seed, whole, tmp_path_factory.mktemp("damaged") / "model")


def many(kind: str, first: int, folder: Path) -> None:
    """Goes through the seeds from `first`; writes a line before each stage and for each outcome. It may crash, as TensorFlow does."""
    bases = whole(folder / f"whole{first}") if kind == "damaged" else None
    with (folder / "log").open("a", encoding="utf-8", buffering=1) as log:
        for seed in range(first, SEEDS):
            def begins(stage, seed=seed):
                log.write(f"{seed} {stage}\n")

            signal.alarm(60)  # TensorFlow alone may also wait for ever; the signal ends the process
            odd = folder / "odd" / str(seed)
            came = captured(seed, odd, begins) if kind == "captured" else damaged(seed, bases, odd, begins)
            log.write(f"{seed} {came}\n")
            shutil.rmtree(odd, ignore_errors=True)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["captured", "damaged"])
def test_two_thousand_end_with_outputs_or_in_one_line(kind, tmp_path):
    """In processes of their own, as TensorFlow alone crashes on some or does not return."""
    first, crashed = 0, []
    while first < SEEDS:
        call = ("import pathlib; from tests.data.capture import test_odd_graphs as odd; "
                f"odd.many({kind!r}, {first}, pathlib.Path({str(tmp_path)!r}))")
        done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True)
        seed, _, stage = (tmp_path / "log").read_text().splitlines()[-1].partition(" ")
        if done.returncode:
            assert done.returncode < 0, (seed, done.stderr[-3000:])  # what fails is ours, what crashes may be TensorFlow's
            assert (stage, int(seed) >= first) == (ALONE, True), (seed, done.stderr[-3000:])
            crashed.append(int(seed))
        first = int(seed) + 1
    outcomes = Counter(line.partition(" ")[2] for line in (tmp_path / "log").read_text().splitlines())
    ended = {stage: count for stage, count in outcomes.items() if stage not in (ALONE, OURS)}
    print(kind, ended, "TensorFlow alone crashed:", crashed)
    assert sum(ended.values()) + len(crashed) == SEEDS
    assert min(ended["equal"], ended["refused"]) > SEEDS // 20
