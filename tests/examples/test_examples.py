"""Every example runs as its docstring says and prints what it promises."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.commands import ROOT, example


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {
        "place_networkx", "run_on_devices", "collect_with_dynamic_episode_driver", "evaluate_with_py_driver", "custom_executor",
        "serve_http", "ask_server", "train_with_checkpointer", "save_policy", "keras_model", "training_step", "batches_in_flight",
        "mobilenet_v2", "own_program"}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_the_docstring_says_how_to_run_it(name):
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f".venv/bin/python -m examples.{name}" in source.split('"""')[1]
    assert len(source.splitlines()) <= (120 if name == "serve_http" else 64)  # a server hears from strangers


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "agents" in path.read_text()))
def test_keras_2_is_chosen_before_tensorflow_is_imported(name):
    """A test that calls an example in this process, where the choice was made before, would not notice."""
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("import tensorflow", "from tf_agents", "from agents")))
    assert lines[first].startswith("from agents") or any("TF_USE_LEGACY_KERAS" in line for line in lines[:first])


def test_place_networkx_names_a_device_for_every_vertex():
    *placed, last = example("place_networkx").splitlines()
    assert [line.split(": ")[0] for line in placed] == ["load", "left", "right", "join"]
    assert all(re.fullmatch(r"\w+: GPU:[0-3]", line) for line in placed)
    makespan_ms, bound_ms = map(float, re.fullmatch(r"([\d.]+) ms, at best ([\d.]+) ms", last).groups())
    assert makespan_ms == bound_ms  # a diamond this small is placed as well as can be


def test_the_readme_shows_that_very_example():
    source = (ROOT / "examples" / "place_networkx.py").read_text(encoding="utf-8")
    code = source.split('"""')[2].strip()
    assert code in (ROOT / "README.md").read_text(encoding="utf-8")


def test_run_on_devices_computes_what_the_program_says():
    printed = example("run_on_devices")
    assert "relative error against the unsharded program" in printed
    assert "(ok)" in printed
    assert "trace valid: True, work conserving: True" in printed
    assert float(re.search(r"measured ([\d.]+) ms", printed)[1]) > 0


@pytest.mark.thorough  # the same in one process: tests/data/test_own_workloads.py
def test_a_program_of_ones_own_is_checked():
    assert re.search(r"mixer_training: \d+ vertices, simulated [\d.]+ ms\n.* relative error \S+ \(ok\)", example("own_program"))


@pytest.mark.thorough  # the same in one process: tests/cli/test_distribution.py
def test_a_keras_model_is_placed_and_handed_back_to_tensorflow_alone(tmp_path):
    printed = example("keras_model", tmp_path / "placed")
    assert "(ok)" in printed
    assert "TensorFlow alone, frozen" in printed
    assert re.search(r"run by (engine|TensorFlow's executor|TensorFlow alone)", printed)
    alone = f"""import sys, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
model = tf.saved_model.load({str(tmp_path / "placed")!r})
print(model.signatures["serving_default"](inputs=tf.zeros([8, 64, 64, 3]))["output"].shape)
assert not any(name.partition(".")[0] in ("doppler_tf", "runtime", "data", "agents") for name in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", alone], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "(8, 10)" in done.stdout, done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "expected"), [("training_step", "(ok)"), ("batches_in_flight", "2 in flight"),
                                                  ("mobilenet_v2", "TensorFlow alone, frozen")])
def test_examples_of_captured_functions(name, expected):
    assert expected in example(name)


@pytest.mark.thorough
def test_collecting_with_the_standard_driver_learns():
    printed = example("collect_with_dynamic_episode_driver")
    first, last = map(float, re.search(r"first five updates (-[\d.]+), of the last five (-[\d.]+)", printed).groups())
    assert last > first


@pytest.mark.thorough
def test_training_goes_on_from_a_checkpoint(tmp_path):
    printed = []
    for _ in range(2):
        printed += example("train_with_checkpointer", tmp_path).splitlines()
    said, greedy_ms = zip(*(re.fullmatch(r"(.*): greedy ([\d.]+) ms", line).groups() for line in printed), strict=True)
    assert said == ("starts at update 0", "stops at update 20", "continues at update 20", "stops at update 40")
    assert greedy_ms[0] != greedy_ms[1] == greedy_ms[2]  # what was learned came back


@pytest.mark.thorough
def test_stage_three_learns_on_a_custom_executor():
    runs, planned, measured = example("custom_executor").splitlines()
    count, failed, invalid = map(int, re.fullmatch(r"(\d+) runs, (\d+) failed, (\d+) with an invalid trace", runs).groups())
    assert 40 <= count <= 48
    assert (failed, invalid) == (count // 10, 0)
    plan_ms, bound_ms = map(float, re.fullmatch(r"planned: ([\d.]+) ms, at best ([\d.]+) ms", planned).groups())
    before_ms, after_ms = map(float, re.fullmatch(r"measured: ([\d.]+) ms before stage III, ([\d.]+) ms after it", measured).groups())
    assert bound_ms <= plan_ms
    assert after_ms < before_ms  # links that are 20 times as slow as planned ask for another assignment
