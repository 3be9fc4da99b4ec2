"""A graph in which something repeats, as a small graph: two copies of it, in which counterparts share a device."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.shortened import shorten
from doppler_tf.heuristics.search.move_sets import units
from doppler_tf.schedule.assignment import Assignment

# As many copies have transfers from one to the next.
_COPIES = 2


class TiedGraph(NamedTuple):
    """A small graph whose assignments are assignments of a whole one.

    Attributes:
      graph, costs: the small graph, without kernels; each of its work vertices is in a colocation group.
      of_whole: int32 [N], the colocation group of each vertex of the whole graph, -1 for inputs.
      order: int32, the work vertices of the whole graph, level by level.
    """

    graph: DataflowGraph
    costs: CostModel
    of_whole: np.ndarray
    order: np.ndarray

    def whole(self, assignment: Assignment) -> Assignment:
        """An assignment of the small graph for the whole graph: vertices go to the devices of their groups, in the order of levels."""
        work = self.graph.work_vertices
        device = np.full(len(self.graph.groups) + 1, -1, np.int32)  # the last is for inputs
        device[self.graph.colocate[work]] = assignment.device[work]
        return Assignment(device[self.of_whole], self.order, assignment.method)


def tie(problem: Problem) -> TiedGraph | None:
    """The small graph; None if nothing repeats often enough (see `find_repetition`), or no copy can be left out (see `shorten`).

    All that its costs depend on is written into it, as what is left out may have decided it.
    """
    short = shorten(problem, _COPIES)
    if short is None:
        return None
    of_whole = units(problem.graph, problem.costs, problem.repetition.chain).unit_of
    group, digits = of_whole[short.vertex], len(str(of_whole.max()))
    graph, costs, allowed = short.problem.graph, short.problem.costs, short.problem.costs.allowed
    pin = (int(np.argmax(row)) if row.sum() == 1 < row.size else None for row in allowed)
    may_run = allowed | (costs.eligible & (allowed.sum(axis=1, keepdims=True) == 1))  # a pin says the rest
    small = replace(
        graph, name=f"{problem.graph.name}_tied", colocate=group, groups=tuple(f"{g:0{digits}}" for g in range(of_whole.max() + 1)),
        pin=tuple(pin), exec_s=np.where(may_run, costs.exec_s, np.inf),
        tensor_bytes=np.where(np.isnan(graph.tensor_bytes), costs.tensor_bytes, graph.tensor_bytes))
    return TiedGraph(small, replace(costs, colocate=group), of_whole, problem.order)
