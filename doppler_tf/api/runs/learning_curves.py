"""Learning curves of a training run from its TensorBoard summaries: one curve for `bench`, charts by stage for `report`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.formats.files import file_name

STAGES = ("imitation", "simulated", "real")
# The most points that a curve keeps.
MOST_POINTS = 200


def learning_curve(run_dir: Path, batch: int, graph: str) -> list[dict[str, Any]]:
    """The learning curve of one graph: stage, episodes so far, greedy and best seconds; thinned to MOST_POINTS."""
    tags, points, before = _tags(), [], 0
    for stage in STAGES:
        for update, scalars in _scalars(run_dir, stage, graph).items():
            episodes = before + int(scalars[tags.RUNS]) if tags.RUNS in scalars else update * batch
            if tags.GREEDY in scalars:
                points.append({"stage": stage, "episodes": episodes, "greedy_s": scalars[tags.GREEDY], "best_s": scalars.get(tags.BEST)})
        before = points[-1]["episodes"] if points else before
    return points[::max(1, -(-len(points) // MOST_POINTS))]


def learning_charts(run_dir: Path, batch: int, graph: str) -> list[dict[str, Any]]:
    """The charts of one graph, one per stage that has summaries.

    Args:
      batch: sampled episodes of this graph per update.

    Returns:
      For each chart `title`, the axis labels `x` and `y`, `seconds` (whether y is in seconds), and `series`. Each series has a `name` and
      `points` [x, y]: at most MOST_POINTS, always including the last one.
    """
    tags, charts = _tags(), []
    layouts = {
        "imitation": ("Stage I: imitation of the teacher", "log-likelihood of a step", False, {tags.AGREEMENT: "the teacher's choices"}),
        "simulated": ("Stage II: simulated episodes", "makespan", True,
                      {tags.SAMPLED: "mean of the sampled episodes", tags.GREEDY: "greedy episode", tags.BEST: "best so far"}),
        "real": ("Stage III: real runs", "makespan", True,
                 {tags.MEASURED: "measured, mean of the runs", tags.MEASURED_GREEDY: "measured, greedy episode",
                  tags.REFITTED: "simulated with refitted costs, the same runs", tags.SIMULATED: "simulated with the costs given"}),
    }
    for stage, (title, y, seconds, names) in layouts.items():
        by_update = _scalars(run_dir, stage, graph)
        series = []
        for tag, name in names.items():
            points = [[scalars.get(tags.RUNS, update * batch), scalars[tag]] for update, scalars in by_update.items()
                      if math.isfinite(scalars.get(tag, math.nan))]
            if points:
                series.append({"name": name, "points": _thinned(points)})
        if series:
            x = "runs" if stage == "real" else "episodes"
            charts.append({"title": title, "x": x, "y": y, "seconds": seconds, "series": series})
    return charts


def _scalars(run_dir: Path, stage: str, graph: str) -> dict[int, Mapping[str, float]]:
    """Scalars by update and tag. If a resumed run repeated updates, the later ones count. Records written in part are skipped."""
    import tensorflow as tf

    by_update: dict[int, dict[str, float]] = {}
    for path in sorted((run_dir / "train" / stage / file_name(graph)).glob("events.*")):
        records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        try:
            for content in records:
                event = tf.compat.v1.Event.FromString(content)
                for value in event.summary.value:
                    if value.tensor.tensor_shape.dim:  # pictures and histograms have dimensions
                        continue
                    by_update.setdefault(event.step, {})[value.tag] = float(tf.make_ndarray(value.tensor))
        except tf.errors.DataLossError:
            continue
    return dict(sorted(by_update.items()))


def _tags():
    """The module that names every tag; it imports TensorFlow."""
    return import_quietly("agents.training.summaries")


def _thinned(points: list) -> list:
    return points if len(points) <= MOST_POINTS else [*points[:-1:-(-(len(points) - 1) // (MOST_POINTS - 1))], points[-1]]
