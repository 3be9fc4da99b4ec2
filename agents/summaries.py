"""TensorBoard summaries; every tag name stands here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

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


class Summaries:
    """Scalars of one run, one writer a stage and graph, so that curves share a tag and differ by name."""

    def __init__(self, folder: Path):
        """Args: folder: the run's `train` folder."""
        self._folder = folder
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, stage: str, graph: str, step: int, scalars: Mapping[str, float]) -> None:
        """Writes `scalars` by tag at update `step`."""
        name = f"{stage}/{graph}"
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        with self._writers[name].as_default(step=step):
            for tag, value in scalars.items():
                tf.summary.scalar(tag, value)

    def text(self, tag: str, content: str) -> None:
        """Writes a text once, the run's config for instance."""
        with tf.summary.create_file_writer(str(self._folder)).as_default(step=0):
            tf.summary.text(tag, content)

    def flush(self) -> None:
        """Hands everything to the file system."""
        for writer in self._writers.values():
            writer.flush()
