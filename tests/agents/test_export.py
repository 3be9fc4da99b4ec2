"""Exported models: as TensorFlow Serving expects them, without our code, and the same placements as the policy in Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from agents.config import TrainConfig
from agents.serving.export import export_policy
from agents.serving.tensor_features import Problem, problem_of
from doppler_tf.errors import CheckpointError, ConfigError, CostError, FormatError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from tests.quiet_training import load_policy, train

TINY = {"imitation": 32, "simulated": 64, "batch": 8, "hidden": 16, "rounds": 1}
# Bytes of three episodes of a graph padded to 16 vertices, on two devices: of so many at once the model draws what it is asked for.
THREE_ROWS = 160 * 16 * 2 * 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training."""
    folder = tmp_path_factory.mktemp("run")
    nodes = [{"id": v, "exec_s": 1.0 + v % 3, "output_bytes": 8.0} for v in range(8)]
    edges = [{"source": u, "target": u + 3, "transfer_s": 0.5} for u in range(5)]
    train([graph_from_records(nodes, edges, {"name": "small"})], ideal(2), folder, TrainConfig(**TINY))
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The version after the first, of the last checkpoint by its own path."""
    models = tmp_path_factory.mktemp("models")
    (models / "1").mkdir()
    return export_policy(run / "checkpoints" / "step-00000012", models, THREE_ROWS)


@pytest.fixture(scope="module")
def model(exported):
    return tf.saved_model.load(str(exported))


def ask(model, problem: Problem, signature: str = "place", **rest) -> dict[str, np.ndarray]:
    specs = model.signatures[signature].structured_input_signature[1]
    given = {**problem._asdict(), **rest}
    return {k: v.numpy() for k, v in model.signatures[signature](**{k: tf.constant(given[k], s.dtype) for k, s in specs.items()}).items()}


def by_hand(**changed) -> Problem:
    """Two vertices on two devices, one after the other."""
    fields = {"exec_s": [[1.0, 2.0], [2.0, 1.0]], "edges": [[0, 1]], "edge_bytes": [4.0], "transfer_s": [np.nan],
              "latency_s": [[0, 0.25], [0.25, 0]], "bandwidth_bytes_per_s": [[1, 16.0], [16.0, 1]], "output_bytes": [4.0, 4.0],
              "memory_bytes": [np.inf, np.inf]}
    return Problem(**{**fields, **changed})


@pytest.mark.parametrize(("count", "devices"), [(10, 2), *(pytest.param(*size, marks=pytest.mark.thorough)
                                                          for size in ((60, 8), (23, 3), (141, 4)))])
def test_the_model_places_as_the_policy_does(run, model, random_graph, count, devices):
    graph = random_graph(count, seed=count)
    costs = build_costs(graph, ideal(devices))
    samples = list(load_policy(run, batch_bytes=THREE_ROWS)(graph, costs, 8, 5))
    seconds = FastSimulator(graph, costs, "order").makespans_of(samples)
    best = samples[int(np.argmin(seconds))]
    got = ask(model, problem_of(graph, costs), samples=8, seed=5)
    np.testing.assert_array_equal(got["device"], best.device[graph.work_vertices])
    np.testing.assert_array_equal(graph.work_vertices[got["order"]], best.order)
    assert got["makespan_s"] == seconds.min()
    assert got["dispatch"] == b"order"  # that of the training


def test_more_samples_than_fit_at_once_are_drawn_in_turns(run, model, random_graph):
    graph = random_graph(12, seed=2)
    costs = build_costs(graph, ideal(2))
    samples = list(load_policy(run, batch_bytes=THREE_ROWS)(graph, costs, 7, 1))
    seconds = FastSimulator(graph, costs, "order").makespans_of(samples)
    got = ask(model, problem_of(graph, costs), samples=7, seed=1)
    np.testing.assert_array_equal(got["device"], samples[int(np.argmin(seconds))].device[graph.work_vertices])


def test_score_is_the_probability_of_the_choices(model):
    problem = by_hand(edges=np.zeros((0, 2)), edge_bytes=[], transfer_s=[])
    orders, devices = [[0, 1], [1, 0]], [[0, 0], [0, 1], [1, 0], [1, 1]]
    device, order = np.repeat(devices, 2, axis=0), np.tile(orders, (4, 1))
    got = ask(model, problem, "score", device=device, order=order)
    assert np.exp(got["log_probability"]).sum() == pytest.approx(1.0, abs=1e-5)  # every episode there is
    np.testing.assert_allclose(got["log_probability"], got["sel_log_probability"] + got["plc_log_probability"], rtol=1e-6)
    np.testing.assert_array_equal(got["makespan_s"], [3, 3, 1, 1, 2, 2, 3, 3])


def test_a_forced_order_is_certain(model):
    got = ask(model, by_hand(), "score", device=[[0, 1]], order=[[0, 1]])
    assert got["sel_log_probability"] == pytest.approx(0.0, abs=1e-6)
    assert got["makespan_s"] == 1 + 0.25 + 4 / 16 + 1


def test_seconds_beyond_all_numbers_have_an_answer_too(model):
    got = ask(model, by_hand(exec_s=np.full((2, 2), 1e308)), samples=2, seed=0)
    assert (got["order"].tolist(), got["makespan_s"]) == ([0, 1], np.inf)


def test_what_does_not_fit_in_memory_takes_infinitely_long(model):
    """Each output has 4 bytes: one device of 6 holds one of them, and no copy beside it; two devices hold one each, without an edge."""
    assert ask(model, by_hand(memory_bytes=[6, 6]), samples=8, seed=0)["makespan_s"] == np.inf
    apart = by_hand(memory_bytes=[6, 6], edges=np.zeros((0, 2)), edge_bytes=[], transfer_s=[])
    got = ask(model, apart, samples=64, seed=0)
    assert (sorted(got["device"].tolist()), got["makespan_s"] in (1, 2)) == ([0, 1], True)
    scored = ask(model, by_hand(memory_bytes=[8, 3]), "score", device=[[0, 0], [0, 1]], order=[[0, 1]] * 2)
    assert scored["makespan_s"].tolist() == [3, np.inf]


def test_devices_that_cannot_run_a_vertex_and_missing_links_are_not_chosen(model):
    """Only device 1 can run the second vertex, and no link leads there: the first one goes there, too, or nothing can run."""
    problem = by_hand(exec_s=[[1.0, 2.0], [np.inf, 1.0]], bandwidth_bytes_per_s=[[1, 0.0], [16.0, 1]])
    scored = ask(model, problem, "score", device=[[1, 1], [0, 1], [1, 0]], order=[[0, 1]] * 3)
    assert scored["makespan_s"].tolist() == [3, np.inf, np.inf]
    assert np.isfinite(scored["log_probability"]).all()
    got = ask(model, problem, samples=64, seed=0)
    assert (got["device"].tolist(), got["makespan_s"]) == ([1, 1], 3)


@pytest.mark.parametrize(("changed", "message"), [
    ({"edges": [[0, 1], [1, 0]], "edge_bytes": [1, 1], "transfer_s": [1, 1]}, "expected a graph without cycles"),
    ({"edges": [[1, 1]]}, "expected a graph without cycles"),
    ({"edges": [[0, 2]]}, "edges: expected vertices from 0 to"),
    ({"exec_s": [[1, np.nan], [1, 1]]}, "exec_s: expected seconds >= 0, infinity for a device that cannot run a vertex"),
    ({"exec_s": [[1, -1], [1, 1]]}, "exec_s: expected seconds >= 0"),
    ({"exec_s": [[1, 1], [np.inf, np.inf]]}, "at least one finite by vertex"),
    ({"exec_s": np.zeros((0, 2))}, "exec_s: expected 1 to 131072 vertices"),
    ({"transfer_s": [np.inf]}, "transfer_s: expected finite seconds >= 0, or NaN"),
    ({"transfer_s": [1, 1]}, "transfer_s: expected shape"),
    ({"latency_s": [[0]]}, "latency_s: expected shape"),
    ({"bandwidth_bytes_per_s": [[1, -1], [1, 1]]}, "bandwidth_bytes_per_s: expected numbers >= 0"),
    ({"memory_bytes": [np.nan, 1]}, "memory_bytes: expected numbers > 0"),
    ({"output_bytes": [1]}, "output_bytes: expected shape"),
])
def test_bad_tensors_are_named(model, changed, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        ask(model, by_hand(**changed), samples=2, seed=0)


@pytest.mark.parametrize(("asked", "message"), [
    ({"samples": 0}, "samples: expected 1 to 100000"), ({"samples": 100_001}, "samples: expected 1 to 100000"),
    ({"seed": -1}, "seed: expected an integer >= 0")])
def test_bad_questions_are_named(model, asked, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        ask(model, by_hand(), **{"samples": 2, "seed": 0, **asked})


@pytest.mark.parametrize(("device", "order", "message"), [
    ([[0, 2]], [[0, 1]], "device: expected devices from 0 to"), ([[0, 1]], [[1, 0]], "order: expected each vertex after its producers"),
    ([[0, 1]], [[0, 0]], "order: expected each vertex once"), ([[0]], [[0]], "device: expected shape"),
    ([[0, 1]], [[0, 1], [0, 1]], "order: expected shape"),
    (np.zeros((0, 2)), np.zeros((0, 2)), "device: expected at least one row, got] [0]")])
def test_bad_episodes_are_named(model, device, order, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        ask(model, by_hand(), "score", device=device, order=order)


def test_versions_count_up_and_say_what_they_are(exported):
    assert exported.name == "2"
    assert sorted(path.name for path in exported.parent.iterdir()) == ["1", "2"]  # nothing half-written
    said = json.loads((exported / "assets.extra" / "doppler.json").read_text())
    assert (said["schema"], said["version"], said["step"], list(said["graphs"])) == ("doppler-model/1", 2, 12, ["small"])
    assert said["config"]["hidden"] == 16
    assert said["git_revision"] is None or re.fullmatch("[0-9a-f]{40}", said["git_revision"])


def test_warm_up_requests_are_what_serving_replays(exported, model):
    asked = []
    for record in tf.data.TFRecordDataset(str(exported / "assets.extra" / "tf_serving_warmup_requests")).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        signature = request.model_spec.signature_name
        answer = model.signatures[signature](**{k: tf.constant(tf.make_ndarray(v)) for k, v in request.inputs.items()})
        assert all(np.isfinite(value).all() for key, value in answer.items() if key != "dispatch")
        asked.append(signature)
    assert asked == ["place", "score"]


def test_tensorflow_alone_serves_it(exported, tmp_path):
    script = """
import sys, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
link = tf.constant([[0, .25], [.25, 0]], tf.float64)
got = model.signatures["place"](exec_s=tf.constant([[1, 2], [2, 1]], tf.float64), edges=tf.constant([[0, 1]]),
    edge_bytes=tf.constant([4], tf.float64), transfer_s=tf.constant([float("nan")], tf.float64), latency_s=link,
    bandwidth_bytes_per_s=link + 1, output_bytes=tf.constant([4, 4], tf.float64), memory_bytes=tf.constant([64, 64], tf.float64),
    samples=tf.constant(64), seed=tf.constant(0))
ours = [m for m in sys.modules if m.split(".")[0] in ("agents", "doppler_tf", "data", "runtime", "tensorflow_gnn", "tf_agents")]
print(got["device"].numpy().tolist(), float(got["makespan_s"]), ours)
"""
    done = subprocess.run([sys.executable, "-c", script, str(exported)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] in ("[0, 0] 3.0 []", "[1, 1] 3.0 []")  # split, it takes 1 + 0.25 + 4 / 1.25 + 1


@pytest.mark.thorough
def test_the_tool_of_tensorflow_runs_it(exported):
    tensors = ("exec_s=[[1.0,2.0],[2.0,1.0]];edges=[[0,1]];edge_bytes=[4.0];transfer_s=[0.5];latency_s=[[0,0.25],[0.25,0]];"
               "bandwidth_bytes_per_s=[[16.0,16.0],[16.0,16.0]];output_bytes=[4.0,4.0];memory_bytes=[64.0,64.0];samples=64;seed=0")
    done = subprocess.run([sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", "run", "--dir", str(exported), "--tag_set",
                           "serve", "--signature_def", "place", "--input_exprs", tensors], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = dict(re.findall(r"Result for output key (\w+):\n(.*)", done.stdout))
    assert printed == {"device": "[0 1]", "dispatch": "b'order'", "makespan_s": "2.5", "order": "[0 1]"}


def test_errors_name_the_remedy(run, tmp_path, random_graph):
    with pytest.raises(CheckpointError, match="expected a run folder or a checkpoint"):
        export_policy(tmp_path / "nowhere", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=r"file: cannot be written: .*; choose another place"):
        export_policy(run, tmp_path / "file")
    pinned = random_graph(3, seed=0, pin=lambda v: 0)
    with pytest.raises(CostError, match="got one with pins; place it with `place`"):
        problem_of(pinned, build_costs(pinned, ideal(2)))


def test_only_served_methods_are_exported(tmp_path, random_graph):
    config = TrainConfig(method="sel_only", **{**TINY, "imitation": 0, "simulated": 0})
    train([random_graph(5, seed=1)], ideal(2), tmp_path / "run", config)
    with pytest.raises(ConfigError, match=r"method: expected 'doppler', the one that can be served, got 'sel_only'"):
        export_policy(tmp_path / "run", tmp_path / "models")
