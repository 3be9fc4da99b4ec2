"""What of a training is compiled with XLA: what takes longer than the compiler does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agents.config import TrainConfig
from doppler_tf.graph import DataflowGraph

# Of a training, steps of episodes from which on episodes are compiled, and from which on updates are too; and updates.
_STEPS_FOR_EPISODES, _STEPS_FOR_UPDATES, _UPDATES = 2000, 20_000, 100
# In how many updates at most an annealed teacher is learned, and in how many it usually is.
MOST_REPEATED, _USUALLY_REPEATED = 500, 80


class Compiled(NamedTuple):
    """What is compiled; else it runs op by op."""

    episodes: bool
    updates: bool


def worth_compiling(config: TrainConfig, graphs: Sequence[DataflowGraph]) -> Compiled:
    """Whether there is so much to do that compiling it pays."""
    rows = max(1, config.batch // len(graphs))
    rounds = math.ceil(config.real / min(config.real_batch, rows + 1))
    repeated = _USUALLY_REPEATED if repeats_teacher(config) else 0
    updates = (config.imitation + config.simulated) / rows + repeated + rounds * (1 + config.real_updates)
    steps = updates * max(graph.work_vertices.size for graph in graphs)
    return Compiled(steps >= _STEPS_FOR_EPISODES, updates >= _UPDATES or steps >= _STEPS_FOR_UPDATES)


def repeats_teacher(config: TrainConfig) -> bool:
    """Whether an annealed assignment is learned before it is varied."""
    return config.teacher == "annealing" and config.elite > 0
