"""TensorBoard summaries and the names of all tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api as hp
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from agents.policies.agent import UpdateInfo
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.tables import markdown_table

GREEDY, SAMPLED, BEST = "makespan/greedy_s", "makespan/sampled_mean_s", "makespan/best_s"
OVER_BOUND = "makespan/greedy_over_bound"
# Stage III, of the episodes that were run: seconds measured, simulated with the caller's costs, and with the refitted ones of the round
# before; and how far simulated seconds are from measured ones.
MEASURED, SIMULATED, REFITTED = "real/measured_mean_s", "real/simulated_mean_s", "real/refitted_mean_s"
SIMULATED_ERROR, REFITTED_ERROR = "real/simulated_error", "real/refitted_error"
MEASURED_GREEDY, RUNS, FAILED = "real/measured_greedy_s", "real/runs", "real/failed_runs"
LOSS, SEL_ENTROPY, PLC_ENTROPY = "loss/total", "entropy/sel", "entropy/plc"
SEL_GRADIENT, PLC_GRADIENT = "gradient_norm/sel", "gradient_norm/plc"
RATE, AGREEMENT = "speed/episodes_per_s", "imitation/log_likelihood_a_step"
# Of greedy episodes as training goes on: what ran where and when, and the share of the makespan in which each device was busy.
GANTT, LOAD = "gantt/greedy", "load/devices_busy"
# What the whole run reached, beside its settings in the HParams table; means over graphs.
OUTCOME_GREEDY, OUTCOME_BEST, OUTCOME_SECONDS = "outcome/greedy_over_bound", "outcome/best_over_bound", "outcome/seconds"
# Each scalar's description in TensorBoard; docs/cli.md repeats them.
MEANINGS = {
    GREEDY: "simulated seconds of the policies' greedy episode",
    SAMPLED: "mean simulated seconds of the sampled episodes of this update that fit in memory",
    BEST: "simulated seconds of the best assignment so far, whoever found it: a policy, a climb or the annealed teacher",
    OVER_BOUND: "how far the greedy episode is above the graph's lower bound: 0.1 is 10%, 0 is optimal",
    LOSS: "by stage. Imitation: mean negative log-likelihood of the teacher's choices a step, SEL and PLC together. Simulated and real: "
          "REINFORCE with ranks as advantages, less the entropy bonus, plus the imitation of the best episodes; its size says little",
    SEL_ENTROPY: "mean entropy of SEL's choices a step, in nats", PLC_ENTROPY: "mean entropy of PLC's choices a step, in nats",
    SEL_GRADIENT: "norm of SEL's gradient", PLC_GRADIENT: "norm of PLC's gradient",
    RATE: "simulated episodes by second of the update",
    AGREEMENT: "mean log-likelihood of the teacher's choices a step; 0 is perfect",
    MEASURED: "mean measured seconds of this round's runs", SIMULATED: "mean of the same episodes simulated with the costs given",
    REFITTED: "mean of the same episodes simulated with the costs refitted before this round",
    SIMULATED_ERROR: "median of simulated by measured seconds, less 1, with the costs given",
    REFITTED_ERROR: "median of simulated by measured seconds, less 1, with refitted costs",
    MEASURED_GREEDY: "measured seconds of the greedy assignment", RUNS: "measured runs so far", FAILED: "failed runs so far",
    OUTCOME_GREEDY: "mean over graphs of how far the greedy makespan is above the lower bound, at the end",
    OUTCOME_BEST: "mean over graphs of how far the best makespan is above the lower bound, at the end",
    OUTCOME_SECONDS: "seconds of all updates",
}
CONFIG_TEXT, GRAPH_TEXT, REAL_TEXT, POLICY_GRAPH = "config", "graph", "stage III", "policy"


def of_update(info: UpdateInfo) -> dict[str, float]:
    """The scalars of one update, by tag."""
    tags = (LOSS, SEL_ENTROPY, PLC_ENTROPY, SEL_GRADIENT, PLC_GRADIENT)
    return {tag: float(value) for tag, value in zip(tags, info, strict=True)}


class Summaries:
    """The TensorBoard summaries of one run; each stage and graph has a writer, so that curves share a tag and differ by name."""

    def __init__(self, folder: Path):
        """Args: folder: the run's `train` folder."""
        self._folder = folder
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, stage: str, graph: str, step: int, scalars: Mapping[str, float]) -> None:
        """Writes `scalars` by tag at update `step`; all at once, as each `tf.summary.scalar` takes half a millisecond."""
        values = [value for tag, scalar in scalars.items() for value in scalar_pb(tag, scalar, MEANINGS[tag]).value]
        with self._writer(f"{stage}/{graph}").as_default(step=step):
            tf.summary.experimental.write_raw_pb(Summary(value=values).SerializeToString())

    def picture(self, stage: str, graph: str, step: int, gantt_png: bytes, busy: np.ndarray) -> None:
        """Writes a Gantt picture of a greedy episode and how busy its devices were (float [D], shares of the makespan)."""
        with self._writer(f"{stage}/{graph}").as_default(step=step):
            tf.summary.image(GANTT, tf.io.decode_png(gantt_png, channels=3)[None])
            tf.summary.histogram(LOAD, busy, buckets=len(busy))

    def record(self, tag: str, value) -> None:
        """Writes a JSON value once, the run's settings for instance, as a text."""
        self._text(tag, f"```\n{json.dumps(value, indent=1)}\n```")

    def table_of_graphs(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], bounds_s: Sequence[float]) -> None:
        """Writes the graphs with their lower bounds (seconds) and the topology, as a text."""
        topology = costs[0].topology
        rows = [[g.name, f"{g.work_vertices.size:,}", f"{g.work_edges.size:,}", f"{1e3 * c.mean_exec_s.sum():.6g}", f"{1e3 * bound_s:.6g}"]
                for g, c, bound_s in zip(graphs, costs, bounds_s, strict=True)]
        table = markdown_table(("graph", "vertices", "edges", "work (ms)", "lower bound (ms)"), rows)
        self._text(GRAPH_TEXT, f"on {topology.name}, {topology.num_devices} devices\n\n{table}")

    def _text(self, tag: str, content: str) -> None:
        """Markdown."""
        with self._writer().as_default(step=0):
            tf.summary.text(tag, content)

    def policy(self, graph: tf.Graph) -> None:
        """Writes the computation of the policies' episodes, for the page of graphs."""
        with self._writer().as_default(step=0):
            tf.summary.graph(graph)

    def outcome(self, settings: Mapping[str, bool | float | str], scalars: Mapping[str, float]) -> None:
        """Writes a row of the HParams table: the run's settings and results, by tag.

        No `hparams_config`: without one TensorBoard shows those settings first that differ between the runs of its logdir. In a folder of
        its own, as all scalars below that of a row are outcomes then.
        """
        with self._writer("outcome").as_default(step=0):
            hp.hparams(dict(settings), trial_id=self._folder.parent.name)
            for tag, value in scalars.items():
                tf.summary.scalar(tag, value, description=MEANINGS[tag])

    def _writer(self, name: str = "") -> tf.summary.SummaryWriter:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        return self._writers[name]

    def flush(self) -> None:
        """Writes all pending summaries to disk."""
        for writer in self._writers.values():
            writer.flush()
