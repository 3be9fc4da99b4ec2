"""From an assignment that does not fit to one with an `Offload`: compiled along a run without limits, then along its own runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from doppler_tf.errors import DeadlockError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.judging import ranks
from doppler_tf.heuristics.mending import frugal_orders
from doppler_tf.heuristics.problem import Problem
from doppler_tf.offload.compiler import LATE, PLANNED, Style, compile_offload
from doppler_tf.schedule.any_order import fits_in_any_order
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.memory import MORE_MEMORY, needed_bytes, never_fits
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace

# Compilations along the run of the one before, while each is faster.
_AGAIN = 3
# Shares of the depth-first order in the sequences that are tried where the own one costs more than this share of the makespan: for less,
# they take longer than they gain.
_SHARES, _NO_WORSE = (0.0, 0.25, 0.5, 0.75, 1.0), 0.02


def without_limits(costs: CostModel) -> CostModel:
    """The same costs on devices that hold everything."""
    return replace(costs, topology=costs.topology.with_memory(None))


def roomy(problem: Problem) -> Problem:
    """The problem without limits, where a vertex may only be on devices that hold its inputs and outputs, with all of its group.

    Raises:
      DeadlockError: a group for which there is no such device.
    """
    graph, costs = problem.graph, problem.costs
    fits = needed_bytes(graph, costs)[:, None] <= costs.memory_bytes
    allowed, members = costs.allowed & (fits | graph.is_input[:, None]), np.flatnonzero((graph.colocate >= 0) & ~graph.is_input)
    common = np.ones((len(graph.groups), costs.num_devices), bool)
    np.logical_and.at(common, graph.colocate[members], allowed[members])
    nowhere = np.flatnonzero(~common.any(axis=1))
    if nowhere.size:
        raise DeadlockError(f"{graph.name}: colocate group {graph.groups[nowhere[0]]!r}: no device that its vertices may use holds each of "
                            f"them with its inputs and outputs; {MORE_MEMORY}")
    allowed[members] = common[graph.colocate[members]]
    return Problem(graph, replace(without_limits(costs), allowed=allowed), problem.dispatch)


def without_shortage(graph: DataflowGraph, costs: CostModel) -> CostModel:
    """The costs by which policies learn: `roomy` where memory may run short and a host takes what does not fit, else as they are.

    Raises:
      DeadlockError: no assignment fits even with the host.
    """
    if costs.topology.host is None or costs.tensor_bytes.sum() <= costs.memory_bytes.min():
        return costs
    if (proof := never_fits(graph, costs, host=True)) is not None:
        raise DeadlockError(f"{graph.name}: out of memory with any assignment: {proof}; {MORE_MEMORY}")
    return roomy(Problem(graph, costs)).costs


def crossing_bound_s(graph: DataflowGraph, costs: CostModel) -> float:
    """No run is faster, as inputs for which there is no room at the start have to cross the links from the host."""
    topology, host = costs.topology, costs.topology.host
    used = np.unique(graph.edge_tensor[graph.is_input[graph.sources]])
    crossing_bytes = costs.tensor_bytes[used].sum() - costs.memory_bytes.sum()
    if crossing_bytes <= 0 or topology.link_slots is None:
        return 0.0
    bandwidth = topology.with_host.bandwidth_bytes_per_s[-1, :-1]
    return float(crossing_bytes / ((bandwidth.max() if host.shared else bandwidth.sum()) * topology.link_slots))


def plan_offload(graph: DataflowGraph, costs: CostModel, assignment: Assignment, style: Style = PLANNED,
                 again: int = _AGAIN) -> tuple[float, Assignment]:
    """Simulated seconds, and the assignment with an `Offload`, compiled along its run without limits, then along its own runs.

    Raises:
      DeadlockError: as `compile_offload`. AssignmentError: it needs a link that is missing.
    """
    bare, free = replace(assignment, offload=None, after=None), without_limits(costs)
    starts_s = FastSimulator(graph, free, bare.dispatch).starts_s(bare)
    if starts_s is None:  # this says which link is missing
        starts_s = _starts(graph, Simulator().execute(graph, free, bare))
    return _along(starts_s, graph, costs, bare, style, 1 + again)


def fastest_plan(graph: DataflowGraph, costs: CostModel, assignment: Assignment, again: int = _AGAIN) -> tuple[float, Assignment]:
    """As `plan_offload`. If the assignment's run fits within the limits, the plan that is compiled along that one, if it is faster: what
    has fitted once needs hardly more than to keep its order.

    Raises:
      DeadlockError: as `compile_offload`.
    """
    bare = replace(assignment, offload=None, after=None)
    ways = [lambda: plan_offload(graph, costs, bare, PLANNED, again)]
    if (starts_s := FastSimulator(graph, costs, bare.dispatch).starts_s(bare)) is not None:
        ways.append(lambda: _along(starts_s, graph, costs, bare, LATE, 1))
    return _fastest(ways)


def _along(starts_s: np.ndarray, graph: DataflowGraph, costs: CostModel, bare: Assignment, style: Style, most: int
           ) -> tuple[float, Assignment]:
    best = math.inf, bare
    for _ in range(most):
        try:
            planned = compile_offload(graph, costs, bare, starts_s, style)
        except DeadlockError:
            if best[0] == math.inf:
                raise
            break
        trace = Simulator().execute(*offloaded(graph, costs, planned))
        if trace.makespan_s >= best[0]:
            break
        best, starts_s = (trace.makespan_s, planned), _starts(graph, trace)
    return best


def _fastest(ways: Iterable[Callable[[], tuple[float, Assignment]]]) -> tuple[float, Assignment]:
    """The first of the fastest plans. Raises DeadlockError where no way leads to one."""
    found, failed = [], None
    for way in ways:
        try:
            found.append(way())
        except DeadlockError as error:
            failed = failed or error
    if not found:
        raise failed
    return min(found, key=lambda pair: pair[0])


def fitted(problem: Problem, makespan_s: float, assignment: Assignment) -> tuple[float, Assignment]:
    """An assignment that was found by costs `without_shortage`: as it is where there is no host, or where it fits in any order of
    execution, else with a plan in the best of several sequences. Simulated seconds, and the assignment.

    Args: problem: with the limits; makespan_s: simulated by those costs.
    """
    graph, costs = problem.graph, problem.costs
    if costs.topology.host is None or fits_in_any_order(graph, costs, assignment.device):
        return makespan_s, assignment
    return best_sequence(graph, costs, *fastest_plan(graph, costs, assignment), makespan_s)


def in_any_order(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Assignment:
    """The assignment, with a plan if it has none and some order of execution might run out of memory.

    Without one only where there is no host, or none that can take what a plan may put there.
    """
    if assignment.offload is not None or costs.topology.host is None or fits_in_any_order(graph, costs, assignment.device):
        return assignment
    try:
        return fastest_plan(graph, costs, assignment)[1]
    except DeadlockError:
        return assignment


def best_sequence(graph: DataflowGraph, costs: CostModel, planned_s: float, planned: Assignment, before_s: float,
                  left_s: Callable[[], float] = lambda: math.inf) -> tuple[float, Assignment]:
    """What `plan_offload` has returned, or, if it costs more than a little, the same in the best of several sequences: its own, the
    depth-first one that holds few tensors at a time (see `frugal_orders`), and mixtures of both, with copies made early and late.

    A breadth-first sequence keeps all devices busy and holds much at once, a depth-first one the other way round. The mean of a vertex's
    places in two topological orders gives a topological order again.

    Args: before_s: what it was expected to take; left_s: seconds that are left.
    """
    if not costs_much(planned_s, before_s):
        return planned_s, planned
    assignment = replace(planned, offload=None)
    own = ranks(_starts(graph, Simulator().execute(*offloaded(graph, costs, planned))))
    frugal = ranks(next(frugal_orders(graph, costs, assignment)).priority)
    mixed = [replace(assignment, dispatch="order", order=None, priority=(1 - share) * own + share * frugal) for share in _SHARES]
    found = [(planned_s, planned)]
    for style in (PLANNED, LATE):
        for each in mixed:
            if left_s() <= 0:
                return min(found, key=lambda pair: pair[0])
            with contextlib.suppress(DeadlockError):  # another sequence may need more of the host
                found.append(plan_offload(graph, costs, each, style, 0))
    fastest = min(found[1:], key=lambda pair: pair[0], default=found[0])[1]
    return _fastest([lambda: min(found, key=lambda pair: pair[0]),
                     *(lambda style=style: plan_offload(graph, costs, fastest, style) for style in (PLANNED, LATE))])


def costs_much(planned_s: float, before_s: float) -> bool:
    """Whether what takes longer than before takes so much longer that something else is worth a try."""
    return planned_s > before_s * (1 + _NO_WORSE)


def _starts(graph: DataflowGraph, trace: Trace) -> np.ndarray:
    """float64 [N]: when vertices of the graph without host started."""
    start_s, mine = np.zeros(graph.num_vertices), trace.vertex < graph.num_vertices
    start_s[trace.vertex[mine]] = trace.start_s[mine]
    return start_s
