"""The graph with host: what an assignment with an `Offload` runs, a graph like any other on a topology with one more device.

The host is the last device. A load is a vertex there that takes no time: its input is a tensor of a device, which is sent to the host when
it has been made, or an input of the graph, which is there from the start. Its output, the same tensor, is sent to the device for the
consumers that take it from there. So the rules of time need nothing of all this but `Assignment.after`, which holds loads and copies back
until there is memory for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from doppler_tf.errors import AssignmentError
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph, Kernel, Operand
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.schedule.assignment import Assignment, Load
from doppler_tf.schedule.dispatch import queue_keys

# What a load is in pictures: it brings a tensor back, or keeps one that is a result.
RELOAD, KEPT = "reload", "kept on the host"


def offloaded(graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> tuple[DataflowGraph, CostModel, Assignment]:
    """What runs: the same three, or, with an `Offload`, the graph with host, its costs and its assignment.

    Vertices and tensors keep their numbers; loads come behind them. Kernels take frozen weights as operands: a constant would stay.

    Raises:
      AssignmentError: the topology has no host.
    """
    plan = assignment.offload
    if plan is None:
        return graph, costs, assignment
    if costs.topology.host is None:
        raise AssignmentError(f"{graph.name}: offload: expected a topology with a host, got {costs.topology.name} without; give it one, or "
                              f"place again")
    made = with_loads(with_weights_as_operands(graph), costs, plan.loads)
    wide = build_costs(made, costs.topology.with_host)
    device, rule, keys = host_devices(assignment, plan.loads, costs.num_devices), assignment.dispatch, assignment.priority
    if rule == "b_level" or (keys is None and assignment.order is not None):  # the host is in no mean of a b-level
        keys = queue_keys(graph, costs, assignment, "order" if rule == "fifo" else rule)
    if keys is not None:  # a load is as urgent as its most urgent consumer
        keys = np.append(keys, [min((keys[v] for v in load.consumers), default=keys.max()) for load in plan.loads])
    return made, wide, replace(assignment, device=device, order=None, dispatch="order" if rule == "b_level" else rule, priority=keys,
                               after=plan.after, offload=None)


def host_devices(assignment: Assignment, loads: tuple[Load, ...], host: int) -> np.ndarray:
    """int32 [N + loads]: devices in the graph with host."""
    return np.append(assignment.device, np.full(len(loads), host)).astype(np.int32)


def with_loads(graph: DataflowGraph, costs: CostModel, loads: tuple[Load, ...]) -> DataflowGraph:
    """The graph in which loads are vertices N, N + 1, ..., and their consumers take the tensor from them."""
    count, tensors = graph.num_vertices, graph.num_tensors
    load_of = {(load.tensor, v): count + i for i, load in enumerate(loads) for v in load.consumers}
    sources, outputs, sent_bytes, seconds = (x.copy() for x in (graph.sources, graph.edge_output, graph.edge_bytes, graph.transfer_s))
    for e, (t, v) in enumerate(zip(graph.edge_tensor.tolist(), graph.targets.tolist(), strict=True)):
        if (t, v) in load_of:
            sources[e], outputs[e], sent_bytes[e], seconds[e] = load_of[t, v], 0, costs.tensor_bytes[t], np.nan
    taken = np.array([load.tensor for load in loads], np.int64)
    maker = graph.tensor_producer[taken].astype(np.int32)
    output = (taken - graph.tensor_ptr[maker]).astype(np.int32)
    size, number = costs.tensor_bytes[taken], np.arange(len(loads), dtype=np.int32)
    exec_s = np.full((count + len(loads), costs.num_devices + 1), np.inf)
    exec_s[:count, :-1] = np.where(costs.eligible, costs.exec_s, np.inf)
    exec_s[count:, -1] = 0.0
    exec_s[:count][graph.is_input] = 0.0
    names = tuple(graph.names[v] for v in maker.tolist())
    kept = np.array([load.tensor for load in loads if not load.consumers], np.int64)
    results = list(map(graph.record_of, np.setdiff1d(graph.results, kept)))
    return replace(
        graph, ids=(*graph.ids, *_new_ids(graph, len(loads))), names=(*graph.names, *names),
        kinds=(*graph.kinds, *(RELOAD if load.consumers else KEPT for load in loads)),
        meta_op=graph.meta_op + (None,) * len(loads), role=graph.role + (None,) * len(loads),
        flops=np.append(graph.flops, np.zeros(len(loads))),
        tensor_ptr=np.append(graph.tensor_ptr, tensors + 1 + number).astype(np.int32),
        tensor_bytes=np.append(costs.tensor_bytes, size), exec_s=exec_s,
        is_input=np.append(graph.is_input, np.zeros(len(loads), bool)),
        kernel=(*(_rewired(kernel, v, graph, load_of) for v, kernel in enumerate(graph.kernel)),
                *(_handing_on(v, k) for v, k in zip(maker.tolist(), output.tolist(), strict=True))),
        pin=graph.pin + (None,) * len(loads), colocate=np.append(graph.colocate, np.full(len(loads), -1, np.int32)).astype(np.int32),
        sources=np.append(sources, maker).astype(np.int32), targets=np.append(graph.targets, count + number).astype(np.int32),
        attributes={**graph.attributes, "results": results},
        edge_output=np.append(outputs, output).astype(np.int32), edge_bytes=np.append(sent_bytes, size),
        transfer_s=np.append(seconds, np.full(len(loads), np.nan)))


def kept_on_host(graph: DataflowGraph, made: DataflowGraph) -> dict[int, int]:
    """Results that stay on the host: by tensor of `graph` the tensor of the graph with host `made` that it is there."""
    last = {int(v): e for e, v in enumerate(made.targets.tolist()) if v >= graph.num_vertices and made.kinds[v] == KEPT}
    return {int(made.edge_tensor[e]): int(made.tensor_ptr[v]) for v, e in last.items()}


def _new_ids(graph: DataflowGraph, count: int) -> list[str]:
    """Ids that no vertex has."""
    taken, found, number = set(map(str, graph.ids)), [], 0
    while len(found) < count:
        if (name := f"load {number}") not in taken:
            found.append(name)
        number += 1
    return found


def _handing_on(v: int, output: int) -> Kernel:
    """The kernel of a load: a sum of one operand is the operand itself."""
    return Kernel("aggregate", (Operand(v, None, output),), {"aggregate": "sum"})


def _rewired(kernel: Kernel | None, v: int, graph: DataflowGraph, load_of: Mapping[tuple[int, int], int]) -> Kernel | None:
    if kernel is None:
        return None
    loads = [load_of.get((int(graph.tensor_ptr[o.vertex]) + o.output, v)) for o in kernel.operands]
    if not any(loads):
        return kernel
    return replace(kernel, operands=tuple(o if load is None else Operand(load, o.slice) for o, load in
                                          zip(kernel.operands, loads, strict=True)))
