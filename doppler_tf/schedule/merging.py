"""Vertices that a device runs one after the other become one call, so that fewer calls have to be handed over.

A run costs some tens of microseconds for each call, and operations within one call are fused by TensorFlow. But a call takes all its
inputs at its start and gives all its outputs at its end. So vertices are merged where no device waits longer for that by simulation.
What results is a graph like any other: it is simulated, run and traced by the same parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import TOKEN, DataflowGraph
from doppler_tf.schedule.any_order import most_bytes
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.memory import may_run_short
from doppler_tf.schedule.merged_graph import Merged, MergedGraphs
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace, arrivals

# So many pairs in a row that cannot be joined end the search, and so many simulated vertices in all.
_IN_VAIN, _SIMULATED = 8, 100_000
# Sums in another order differ by so much.
_ROUNDING = 1e-9


def merge_calls(graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int] = ()) -> Merged:
    """The assignment in as few calls as do not make it slower by simulation.

    A vertex with operands that come from another device begins a call unless they are there by then, and one whose output another device
    needs ends a call. Neighbours on a device are then joined where nobody waits longer for it than the simulated run leaves room for, many
    at a time. Of several vertices a call saves all but one time the seconds that a device takes for a kernel without work (`launch_s`).
    Devices that run several vertices at once keep their vertices apart, and where larger calls might exceed memory, whose inside is not
    counted, such with too little for all.

    Args: fetch: tensors that are wanted, whoever takes them. Those that hold results of a captured function are wanted anyway.
    """
    short = may_run_short(graph, costs, assignment.device)
    merged = _merged(graph, costs, assignment, fetch, costs.slots > 1)
    if assignment.after is None and short.any() and (most_bytes(graph, costs, assignment.device, merged.vertex) > costs.memory_bytes).any():
        merged = _merged(graph, costs, assignment, fetch, (costs.slots > 1) | short)
    return merged


def _merged(graph: DataflowGraph, costs: CostModel, assignment: Assignment, fetch: Collection[int], apart_on: np.ndarray) -> Merged:
    """Args: apart_on: bool [D], the devices whose vertices stay apart."""
    trace, singly = Simulator().execute(graph, costs, assignment), apart_on.tolist()
    if assignment.after is not None:  # what waits for a vertex would wait for the whole call
        return _unmerged(graph, costs, assignment, trace)
    graphs = MergedGraphs(graph, costs, assignment, frozenset(fetch) | frozenset(graph.results.tolist()))
    calls = _by_messages(graph, assignment, trace, singly)
    best, apart = graphs.made(calls, kernels=False), [[v] for call in calls for v in call]
    if best is None or not _as_fast(best.makespan_s, trace.makespan_s):
        calls, best = apart, graphs.made(apart, kernels=False)
    refused: set[tuple[int, int]] = set()
    pairs = [] if best is None else _pairs(graph, costs, calls, best, refused, singly)
    at_once, in_vain, simulated = len(pairs), 0, 0
    while pairs and in_vain < _IN_VAIN and simulated < _SIMULATED:
        at_once = min(at_once, len(pairs))
        joined = _joined(calls, pairs[:at_once])
        found, simulated = graphs.made(joined, kernels=False), simulated + len(joined)
        if found is not None and _as_fast(found.makespan_s, best.makespan_s):
            calls, best, at_once, in_vain = joined, found, 2 * at_once, 0
        elif at_once > 1:
            at_once //= 2
            continue
        else:
            refused.add((calls[pairs[0][0]][-1], calls[pairs[0][1]][0]))
            in_vain += 1
        pairs = _pairs(graph, costs, calls, best, refused, singly)
    if best is None or len(calls) == len(apart) or not _as_fast(best.makespan_s, trace.makespan_s):
        return _unmerged(graph, costs, assignment, trace)
    return graphs.made(calls, _lone(calls, best.trace))


def _unmerged(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> Merged:
    return Merged(graph, costs, assignment, np.arange(graph.num_vertices, dtype=np.int32), np.arange(graph.num_tensors, dtype=np.int32),
                  trace)


def _joined(calls: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The calls, each second one of a pair behind the first."""
    second = dict(pairs)
    return [[*call, *calls[second[i]]] if i in second else list(call) for i, call in enumerate(calls) if i not in second.values()]


def _lone(calls: Sequence[Sequence[int]], trace: Trace) -> list[int]:
    """The positions of merged calls beside which no other device works."""
    start_s, end_s, device = trace.start_s, trace.end_s, trace.device
    beside = (start_s[:, None] < end_s) & (start_s < end_s[:, None]) & (device[:, None] != device)
    first = int(trace.vertex.min())
    return [i for v in trace.vertex[~beside.any(axis=1)].tolist() if len(calls[i := v - first]) > 1]


def _as_fast(makespan_s: float, than_s: float) -> bool:
    return makespan_s <= than_s * (1.0 + _ROUNDING)


def _by_messages(graph: DataflowGraph, assignment: Assignment, trace: Trace, singly: Sequence[bool]) -> list[list[int]]:
    """Calls in order of time, cut where a device needs something of another, and where another needs something of it.

    Args: singly: the devices whose vertices stay apart.
    """
    device, arrived_s, batch = assignment.device, arrivals(graph, trace), _batch(graph)
    needs_s, sends = np.zeros(graph.num_vertices), np.zeros(graph.num_vertices, bool)
    for e in graph.work_edges.tolist():
        u, v = graph.sources[e], graph.targets[e]
        if device[u] != device[v]:
            sends[u] = True
            needs_s[v] = max(needs_s[v], arrived_s[int(graph.edge_tensor[e]), int(device[v])])
    calls: list[list[int]] = []
    last: dict[int, tuple[list[int], float]] = {}  # by device: the open call and its start
    position = np.argsort(graph.topological_order)
    rows = np.lexsort((position[trace.vertex], trace.start_s))
    for v, start_s in zip(trace.vertex[rows].tolist(), trace.start_s[rows].tolist(), strict=True):
        d = int(device[v])
        call, since_s = last.get(d, (None, 0.0))
        apart = _is_apart(graph, v)
        if call is None or singly[d] or needs_s[v] > since_s or apart or batch[v] != batch[call[-1]]:
            call, since_s = [], start_s
            calls.append(call)
        call.append(v)
        if sends[v] or apart:
            last.pop(d, None)
        else:
            last[d] = call, since_s
    return calls


def _batch(graph: DataflowGraph) -> np.ndarray:
    """The batch of each vertex. Calls of several batches stay apart, so that equal batches run equal calls."""
    return np.searchsorted(graph.attributes.get("batches", {}).get("first", [0]), np.arange(graph.num_vertices), side="right")


def _is_apart(graph: DataflowGraph, v: int) -> bool:
    """Whether a vertex must be a call of its own: it says that a batch is done, for which others wait, or it draws random numbers from a
    seed, with which each other call would begin anew."""
    kernel = graph.kernel[v]
    return kernel is not None and (kernel.op == TOKEN or "seeded" in kernel.params)


def _pairs(graph: DataflowGraph, costs: CostModel, calls: Sequence[Sequence[int]], tried: Merged,
           refused: Collection[tuple[int, int]], singly: Sequence[bool]) -> list[tuple[int, int]]:
    """Neighbours on a device that may be joined by the room which a run leaves, no call twice, those with the most room first.

    Args:
      tried: the run of these calls.
      refused: pairs, by the last vertex of the first and the first of the second, that have been tried alone.
      singly: the devices whose vertices stay apart.
    """
    made, trace, first = tried.graph, tried.trace, tried.graph.num_vertices - len(calls)
    launch_s, batch = [each.launch_s for each in costs.topology.devices], _batch(graph)
    start_s, end_s, device = np.zeros(len(calls)), np.zeros(len(calls)), np.zeros(len(calls), np.int32)
    start_s[trace.vertex - first], end_s[trace.vertex - first], device[trace.vertex - first] = trace.start_s, trace.end_s, trace.device
    arrived_s = arrivals(made, trace)
    arrives: list[dict[int, float]] = [{} for _ in calls]  # by call what it waits for, and when that is there
    for e in made.work_edges.tolist():
        u, v = int(made.sources[e]) - first, int(made.targets[e]) - first
        at_s = end_s[u] if device[u] == device[v] else arrived_s[int(made.edge_tensor[e]), int(device[v])]
        arrives[v][u] = max(at_s, arrives[v].get(u, 0.0))
    order = np.lexsort((np.argsort(made.topological_order)[first:], start_s)).tolist()
    behind: dict[int, int] = {}
    last: dict[int, int] = {}
    for i in order:
        if device[i] in last:
            behind[last[device[i]]] = i
        last[device[i]] = i
    # The latest end of a call, and what others leave for it beside the call behind it.
    latest_s, others_s = np.zeros(len(calls)), np.full(len(calls), trace.makespan_s)
    for i in reversed(order):
        latest_s[i] = others_s[i]
        if i in behind:
            latest_s[i] = min(latest_s[i], latest_s[behind[i]] - (end_s[behind[i]] - start_s[behind[i]]))
        for u, at_s in arrives[i].items():
            if behind.get(u) != i:
                others_s[u] = min(others_s[u], latest_s[i] - (end_s[i] - start_s[i]) - (at_s - end_s[u]))
    found = []
    for i, j in behind.items():
        u, v = calls[i][-1], calls[j][0]
        if (u, v) in refused or singly[device[i]] or batch[u] != batch[v] or _is_apart(graph, u) or _is_apart(graph, v):
            continue
        begins_s = max([start_s[i], *(at_s for u, at_s in arrives[j].items() if u != i)])
        ends_s = begins_s + end_s[i] - start_s[i] + end_s[j] - start_s[j] - launch_s[device[i]]
        room_s = min(others_s[i], latest_s[j]) - ends_s
        if room_s >= -_ROUNDING * trace.makespan_s:
            found.append((room_s, i, j))
    pairs, taken = [], set()
    for _, i, j in sorted(found, reverse=True):
        if not taken & {i, j}:
            pairs.append((i, j))
            taken |= {i, j}
    return pairs
