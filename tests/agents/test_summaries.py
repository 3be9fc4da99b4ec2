"""What TensorBoard finds in a run folder, read with TensorBoard's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from agents.config import TrainConfig
from agents.training import summaries
from agents.training.run import train
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from tests.quiet_training import KEPT

CONFIG = TrainConfig(imitation=16, simulated=64, batch=8, hidden=8, rounds=1, seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training on one graph: its folder, and what `train` returned."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, train([three_chains()], ideal(3), folder, CONFIG, progress=False, kept=KEPT)


def three_chains() -> DataflowGraph:
    nodes = [{"id": v, "exec_s": 1.0 + v % 2} for v in range(9)]
    edges = [{"source": v, "target": v + 3, "transfer_s": 0.5} for v in range(6)]
    return graph_from_records(nodes, edges, {"name": "three chains"})


def read(folder) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0}).Reload()


def values(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]


def test_scalars_of_each_stage(run):
    folder, trained = run
    imitation, simulated = (read(folder / "train" / stage / "three_chains") for stage in ("imitation", "simulated"))
    learned = {summaries.LOSS, summaries.SEL_ENTROPY, summaries.PLC_ENTROPY, summaries.SEL_GRADIENT, summaries.PLC_GRADIENT}
    pictures = {summaries.GANTT, summaries.LOAD}
    assert set(imitation.Tags()["tensors"]) == {summaries.AGREEMENT, *learned, *pictures}
    assert set(simulated.Tags()["tensors"]) == {summaries.GREEDY, summaries.SAMPLED, summaries.BEST, summaries.OVER_BOUND, summaries.RATE,
                                                *learned, *pictures}
    assert [step for step, _ in values(imitation, summaries.LOSS)] == [1, 2]
    assert [step for step, _ in values(simulated, summaries.GREEDY)] == list(range(3, 11))
    assert values(simulated, summaries.BEST)[-1][1] >= trained["three chains"]["best_makespan_s"] - 1e-6


def test_every_scalar_is_described_in_tensorboard_and_in_the_docs(run):
    scalars = {tag for name, tag in vars(summaries).items() if name.isupper() and isinstance(tag, str) and "/" in tag}
    assert set(summaries.MEANINGS) == scalars - {summaries.GANTT, summaries.LOAD}
    events = read(run[0] / "train" / "simulated" / "three_chains")
    assert events.SummaryMetadata(summaries.LOSS).summary_description == summaries.MEANINGS[summaries.LOSS]
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert all(f"| `{tag}` | {meaning} |" in page for tag, meaning in summaries.MEANINGS.items())


def test_pictures_of_greedy_episodes(run):
    simulated = read(run[0] / "train" / "simulated" / "three_chains")
    pictures = simulated.Tensors(summaries.GANTT)
    assert [event.step for event in pictures] == [4, 6, 8, 10]  # at each quarter of the stage
    width, height, *png = tf.make_ndarray(pictures[-1].tensor_proto)
    assert tf.io.decode_png(png[0]).shape == (int(height), int(width), 3)
    for event in simulated.Tensors(summaries.LOAD):
        left, right, count = tf.make_ndarray(event.tensor_proto).T
        assert count.sum() == 3  # devices
        assert 0 <= left.min() <= right.max() <= 1


def test_settings_graphs_and_the_outcome_of_the_run(run):
    folder, trained = run
    events = read(folder / "train")
    shown = {tag: tf.make_ndarray(events.Tensors(tag)[0].tensor_proto).item().decode() for tag in (summaries.CONFIG_TEXT,
                                                                                                   summaries.GRAPH_TEXT)}
    assert json.loads(shown[summaries.CONFIG_TEXT].strip("`\n")) == CONFIG.to_json()
    assert "on ideal:3, 3 devices" in shown[summaries.GRAPH_TEXT]
    assert "| three chains | 9 | 6 | 13000 |" in shown[summaries.GRAPH_TEXT]  # 5 vertices of 1 s, 4 of 2 s
    row = trained["three chains"]
    outcome = read(folder / "train" / "outcome")
    reached = {tag: values(outcome, tag)[0][1] for tag in (summaries.OUTCOME_GREEDY, summaries.OUTCOME_BEST, summaries.OUTCOME_SECONDS)}
    assert reached[summaries.OUTCOME_GREEDY] == pytest.approx(row["greedy_makespan_s"] / row["lower_bound_s"] - 1, abs=1e-6)
    assert reached[summaries.OUTCOME_BEST] == pytest.approx(row["best_makespan_s"] / row["lower_bound_s"] - 1, abs=1e-6)
    assert reached[summaries.OUTCOME_SECONDS] == pytest.approx(row["seconds"], abs=1e-2)


def test_the_page_of_graphs_shows_a_few_named_parts(run):
    graph = read(run[0] / "train").Graph()
    assert {node.name.split("/")[0] for node in graph.node if node.op not in ("Placeholder", "Identity", "NoOp")} == {
        "encode", "begin", "episodes"}
    (step,) = [function for function in graph.library.function if "while_body" in function.signature.name
               and any("/SEL/" in node.name for node in function.node_def)]
    assert {part for node in step.node_def for part in node.name.split("/")} >= {"SEL", "PLC", "place"}


def test_a_row_of_the_hparams_table(run):
    events = read(run[0] / "train" / "outcome")
    assert {tag for tag in events.Tags()["tensors"] if not tag.startswith("_hparams_")} == {
        summaries.OUTCOME_GREEDY, summaries.OUTCOME_BEST, summaries.OUTCOME_SECONDS}
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    started = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert started.group_name == "first"
    settings = {key: getattr(value, value.WhichOneof("kind")) for key, value in started.hparams.items()}
    assert settings == {name: value for name, value in CONFIG.to_json().items() if name not in ("checkpoint_every", "keep")}


def test_pictures_can_be_left_out(tmp_path, run):
    config = TrainConfig(**{**CONFIG.to_json(), "simulated": 8})
    train([three_chains()], ideal(3), tmp_path, config, progress=False, pictures=False, kept=KEPT)  # as before, for what is traced
    assert summaries.GANTT not in read(tmp_path / "train" / "simulated" / "three_chains").Tags()["tensors"]
    assert not read(tmp_path / "train").Tags()["graph"]
    assert np.isfinite(values(read(tmp_path / "train" / "outcome"), summaries.OUTCOME_BEST)[0][1])
