"""What devices hold at most in any order of execution: the most that any set of vertices leaves behind if just these have ended."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.memory import held_bytes, may_run_short

# So many vertices, spread over the topological order, may be the first behind all that take a tensor. More make the bound closer.
_LANDMARKS = 1024
# Below it sums of whole numbers are exact.
_EXACT = 2.0**53


def fits_in_any_order(graph: DataflowGraph, costs: CostModel, device: np.ndarray) -> bool:
    """Whether no order of execution can run out of memory; False where nothing proves it. Args: device: int [N]."""
    short = may_run_short(graph, costs, device)
    return not short.any() or bool((most_bytes(graph, costs, device) <= costs.memory_bytes)[short].all())


def always_fits(graph: DataflowGraph, costs: CostModel) -> bool:
    """Whether no assignment can run out of memory, in any order of execution; False where nothing proves it.

    A device that runs everything holds each tensor at least as long as any device does otherwise.
    """
    room = costs.memory_bytes.min()
    if costs.tensor_bytes.sum() <= room:
        return True
    busiest = int(np.argmax(costs.slots))
    return bool(most_bytes(graph, costs, np.full(graph.num_vertices, busiest))[busiest] <= room)


def most_bytes(graph: DataflowGraph, costs: CostModel, device: np.ndarray, call: np.ndarray | None = None) -> np.ndarray:
    """float64 [D]: no order of execution makes a device hold more.

    Whenever vertices have ended, all that lie before them have. Such a set leaves on a device what its vertices made or sent there, without
    what all its takers have read. The set that leaves the most is a closure of greatest weight, which a minimum cut finds (Picard,
    Management Science 22(11), 1976). A tensor with several takers counts until a vertex has ended that lies behind all of them. The largest
    outputs of as many vertices as a device runs at once come on top.

    Args:
      device: int [N].
      call: int [N], the call of which each vertex is a part. In a call all that can run may run at once. Inputs, and what goes from one
        call to another, are taken to stay to the end. None: each vertex runs for itself.
    """
    making = graph.tensor_producer
    # Where tensors are: where they are made, then inputs and copies where they are taken.
    made, there = np.flatnonzero(~graph.is_input[making]), device[graph.targets]
    away = np.flatnonzero(graph.is_input[graph.sources] | (device[graph.sources] != there))
    at_home = np.flatnonzero(~graph.is_input[graph.sources])
    pairs, of_edge = np.unique(graph.edge_tensor[away].astype(np.int64) * costs.num_devices + there[away], return_inverse=True)
    tensor = np.concatenate([made, pairs // costs.num_devices])
    on, size = np.concatenate([device[making[made]], pairs % costs.num_devices]), costs.tensor_bytes[tensor]
    taken = np.concatenate([np.searchsorted(made, graph.edge_tensor[at_home]), len(made) + of_edge])
    last = _behind_all(graph, graph.targets[np.concatenate([at_home, away])], taken, len(tensor))
    last[:len(made)][np.isin(made, graph.results)] = -1
    maker = np.where(graph.is_input[making[tensor]], -1, making[tensor])
    sources, targets, count = graph.sources[graph.work_edges], graph.targets[graph.work_edges], graph.num_vertices
    if call is None:
        ended, then, before = 0, targets, sources
    else:  # a vertex has begun before it has ended, and what lies before it has ended before it has begun
        ended, work = count, graph.work_vertices
        then, before = np.concatenate([work + ended, targets]), np.concatenate([work, sources + ended])
        crossed = graph.edge_tensor[call[graph.sources] != call[graph.targets]]
        last[np.isin(tensor, crossed) | (maker < 0)] = -1
    most = np.zeros(costs.num_devices)
    for d in range(costs.num_devices):
        mine, gain = on == d, np.zeros(count + ended)
        comes, goes = mine & (maker >= 0), mine & (last >= 0)
        np.add.at(gain, maker[comes], np.ceil(size[comes]))
        np.subtract.at(gain, last[goes] + ended, np.floor(size[goes]))
        most[d] = np.ceil(size[mine & (maker < 0)]).sum() + _heaviest_closure(then, before, gain)
        if call is None:
            outputs = costs.output_bytes[graph.work_vertices[device[graph.work_vertices] == d]]
            most[d] += np.sort(outputs)[::-1][:costs.slots[d]].sum()
    return np.minimum(most, held_bytes(graph, costs, device))


def _behind_all(graph: DataflowGraph, taker: np.ndarray, taken: np.ndarray, count: int) -> np.ndarray:
    """int [count]: a vertex that has ended only after all takers have, if possible one of them; -1: none is known.

    Args: taker: vertices, taken: int, what each of them takes, below `count`.
    """
    order = graph.topological_order
    work = order[~graph.is_input[order]]
    marks = work[np.unique(np.linspace(0, len(work) - 1, _LANDMARKS).astype(int))].tolist()
    behind = [0] * graph.num_vertices
    for bit, v in enumerate(marks):
        behind[v] = 1 << bit
    ptr, after = graph.successors.ptr.tolist(), graph.successors.vertex.tolist()
    for v in order[::-1].tolist():
        for w in after[ptr[v]:ptr[v + 1]]:
            behind[v] |= behind[w]
    common, takers = [-1] * count, [0] * count  # of the landmarks that lie behind all takers; all ones at first
    last = [-1] * count
    for v, i in zip(taker.tolist(), taken.tolist(), strict=True):
        common[i] &= behind[v]
        takers[i] += 1
        last[i] = v
    for i in (i for i in range(count) if takers[i] > 1):
        nearest = common[i] & -common[i]
        last[i] = marks[nearest.bit_length() - 1] if nearest else -1
    return np.array(last)


def _heaviest_closure(then: np.ndarray, before: np.ndarray, gain: np.ndarray) -> float:
    """The greatest sum of gains of events that include all that lie before them.

    Args: then, before: int, pairs of events; gain: float64 by event, whole numbers.
    """
    from ortools.graph.python import max_flow

    flow, source, sink = max_flow.SimpleMaxFlow(), len(gain), len(gain) + 1
    more, less = np.flatnonzero(gain > 0), np.flatnonzero(gain < 0)
    whole = gain[more].sum()
    if whole >= _EXACT:
        return np.inf
    tail = np.concatenate([np.full(len(more), source), less, then]).astype(np.int32)
    head = np.concatenate([more, np.full(len(less), sink), before]).astype(np.int32)
    capacity = np.concatenate([gain[more], np.minimum(-gain[less], whole), np.full(len(then), whole + 1)]).astype(np.int64)
    flow.add_arcs_with_capacity(tail, head, capacity)
    if flow.solve(source, sink) != flow.OPTIMAL:
        return float(whole)
    return float(whole - flow.optimal_flow())
