"""Several graphs of one computation, cut in different ways: each is placed, and the one that ends first is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.placement import Placement, as_problem, place
from doppler_tf.schedule.assignment import AUTO


@dataclass(frozen=True)
class Alternative:
    """One graph, and how it was placed.

    Attributes:
      constructed: without a search; None where every assignment runs out of memory.
      searched: with one; None where it was not searched.
    """

    graph: DataflowGraph
    constructed: Placement | None
    searched: Placement | None = None

    @property
    def makespan_s(self) -> float:
        """The best that was found; infinite where nothing fits in memory."""
        return min((placed.makespan_s for placed in (self.constructed, self.searched) if placed is not None), default=math.inf)


def place_alternatives(graphs: Mapping[str, DataflowGraph], topology: Topology, budget_s: float, seed: int = 0, dispatch: str = AUTO,
                       always: Collection[str] = (),
                       progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Alternative]:
    """Places every graph without a search, and the better half of them with one.

    Args:
      always: names of graphs that are searched even if they are not in the better half, so that others compare with them.
      budget_s: seconds of all searches together. What is left when all graphs are constructed is shared equally.
      progress: told how many placements of all are done.

    Returns:
      All alternatives by name, the fastest first. Of equally fast ones the one with fewer vertices is first.
    """
    started, half, found = time.perf_counter(), math.ceil(len(graphs) / 2), dict[str, Alternative]()
    problems = {name: as_problem(graph, topology, dispatch) for name, graph in graphs.items()}
    for name, problem in problems.items():
        progress(len(found), len(graphs) + half)
        try:
            found[name] = Alternative(graphs[name], place(problem, seed=seed))
        except DeadlockError:
            found[name] = Alternative(graphs[name], None)
    by_makespan = sorted(found, key=lambda name: found[name].makespan_s)
    searched = [name for name in by_makespan if (name in by_makespan[:half] or name in always) and found[name].constructed is not None]
    share_s = max(0.0, budget_s - (time.perf_counter() - started)) / max(1, len(searched))
    for i, name in enumerate(searched):
        progress(len(graphs) + i, len(graphs) + len(searched))
        found[name] = replace(found[name], searched=place(problems[name], seed=seed, budget_s=share_s))
    return dict(sorted(found.items(), key=lambda item: (item[1].makespan_s, item[1].graph.num_vertices)))
