"""Training and policies as most tests want them: without bars and pictures, and all share what is compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from agents.config import TrainConfig
from agents.serving import placing
from agents.training import run as training
from agents.training.learner import KeptLearner, Learner
from agents.training.task import Task
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph


class KeptLearners:
    """Keeps a learner for each case and kind of network: tests train the same small graphs in turns, and tracing takes longest."""

    def __init__(self, make: Callable[[Task], Learner] = Learner):
        """Args: make: makes the learner of a task."""
        self._kept: defaultdict[tuple, KeptLearner] = defaultdict(lambda: KeptLearner(make))

    def lent(self, graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig
             ) -> AbstractContextManager[tuple[Task, Learner]]:
        """As by one `KeptLearner`, which decides whether the learner of such a case serves again."""
        case = (tuple(graph.graph_hash for graph in graphs), tuple(each.topology.topology_hash for each in costs))
        return self._kept[*case, config.method, config.batch, config.hidden, config.rounds].lent(graphs, costs, config)

    def forget(self) -> None:
        """Drops all learners."""
        self._kept.clear()


KEPT = KeptLearners()
train = partial(training.train, progress=False, pictures=False, kept=KEPT)
load_policy = partial(placing.load_policy, kept=placing.KeptSamplers())
