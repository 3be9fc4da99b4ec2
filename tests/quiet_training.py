"""Training and policies as most tests want them: without bars and pictures, and all share what is compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from agents.episodes.features import padded_sizes
from agents.serving import placing
from agents.training import run as training
from agents.training.learner import KeptLearner, Learner
from agents.training.task import Task


class KeptLearners:
    """Keeps a learner for each case and kind of network: tests train the same small graphs in turns, and tracing takes longest."""

    def __init__(self, make: Callable[[Task], Learner] = Learner):
        """Args: make: makes the learner of a task."""
        self._kept: defaultdict[tuple, KeptLearner] = defaultdict(lambda: KeptLearner(make))

    def lent(self, task: Task) -> AbstractContextManager[Learner]:
        """As by one `KeptLearner`, which decides whether the learner of such a case serves again."""
        sizes, config = padded_sizes(task.graphs), task.config
        case = len(task.graphs), sizes, task.costs[0].num_devices, config.method, config.batch, config.hidden, config.rounds, config.rule
        return self._kept[case].lent(task)

    def forget(self) -> None:
        """Drops all learners."""
        self._kept.clear()


KEPT = KeptLearners()
train = partial(training.train, progress=False, pictures=False, kept=KEPT)
load_policy = partial(placing.load_policy, kept=placing.KeptSamplers())
