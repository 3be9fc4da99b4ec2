"""What was compiled for one training serves the next: to trace and load it takes longer than many a training."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agents.config import TrainConfig
from agents.stages import Learner, worth_compiling
from doppler_tf.costs import CostModel
from doppler_tf.graph import DataflowGraph

# All that a learner's compiled functions and arrays hold, beside graphs and costs.
_HELD = ("method", "batch", "clip", "hidden", "rounds", "identity", "features")
_lock = threading.Lock()
_kept: dict[tuple, Learner] = {}  # at most one, and none while it is in use


@contextmanager
def learner_for(graphs: Sequence[DataflowGraph], costs: Sequence[CostModel], config: TrainConfig) -> Iterator[Learner]:
    """A learner as made anew: the last one where it was made for the same graphs, costs and networks, of whatever seed, and of
    budgets for which as much is compiled.

    It is kept in memory until the next one begins, however the training ends.
    """
    made_for = (tuple((graph.name, graph.graph_hash) for graph in graphs), tuple(each.topology.topology_hash for each in costs),
                worth_compiling(config, graphs), *(getattr(config, name) for name in _HELD))
    with _lock:
        learner = _kept.get(made_for)
        _kept.clear()
    if learner is None:
        learner = Learner(graphs, costs, config)
    else:
        learner.begin_anew(graphs, costs, config)
    try:
        yield learner
    finally:
        with _lock:
            _kept.clear()
            _kept[made_for] = learner
