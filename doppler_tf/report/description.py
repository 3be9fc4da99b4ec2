"""What there is to tell of a graph: counts, totals and, with costs, lower bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from doppler_tf.graph.costs import CostModel, tensor_sizes
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.offload.planning import crossing_bound_s
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.memory import never_fits


def describe(graph: DataflowGraph) -> dict[str, Any]:
    """Counts and totals of the graph. `depth` counts the vertices of its longest path, without inputs."""
    work = graph.work_vertices
    members: dict[str, list[int]] = {}
    for v in work.tolist():
        members.setdefault(graph.kinds[v], []).append(v)
    rows = {kind: np.array(members[kind]) for kind in sorted(members, key=lambda kind: (-len(members[kind]), kind))}
    return {
        "name": graph.name, "vertices": graph.num_vertices, "edges": graph.num_edges, "input_vertices": int(graph.is_input.sum()),
        "work_vertices": len(work), "work_edges": len(graph.work_edges), "depth": graph.depth,
        "meta_ops": len(set(graph.meta_op) - {None}), "has_kernels": all(graph.kernel[v] is not None for v in work.tolist()),
        "flops": _total(graph.flops[work]), "output_bytes": _total(graph.output_bytes[work]), "edge_bytes": _total(graph.edge_bytes),
        "memory_bytes": describe_memory(graph),
        "kinds": {kind: {"vertices": len(rows[kind]), "flops": _total(graph.flops[rows[kind]]),
                         "output_bytes": _total(graph.output_bytes[rows[kind]])} for kind in rows},
    }


def describe_memory(graph: DataflowGraph) -> dict[str, Any]:
    """Bytes that the graph needs. A tensor whose bytes are not given counts as its largest edge, or as nothing."""
    edge_bytes = np.where(np.isnan(graph.edge_bytes), graph.tensor_bytes[graph.edge_tensor], graph.edge_bytes)
    size = tensor_sizes(graph, np.nan_to_num(edge_bytes))
    needed = np.bincount(graph.targets, size[graph.edge_tensor], graph.num_vertices) + np.bincount(
        graph.tensor_producer, size, graph.num_vertices)
    work = graph.work_vertices
    largest = int(work[np.argmax(needed[work])])
    return {"input_bytes": float(size[graph.is_input[graph.tensor_producer]].sum()), "tensor_bytes": float(size.sum()),
            "largest_vertex": graph.vertex_label(largest), "largest_vertex_bytes": float(needed[largest]),
            "one_device_peak_bytes": _peak_in_order(graph, size)}


def _peak_in_order(graph: DataflowGraph, size: np.ndarray) -> float:
    """The most bytes held by one device that runs all vertices in topological order: inputs from the start, all until their last use."""
    turn = np.argsort(graph.topological_order)
    begun = np.where(graph.is_input, -1, turn)[graph.tensor_producer]
    over = np.full(graph.num_tensors, -1)
    np.maximum.at(over, graph.edge_tensor, turn[graph.targets])
    over[graph.results] = -1
    used = graph.is_input[graph.tensor_producer] <= (over >= 0)  # inputs that nobody takes are nowhere
    change = np.bincount(begun[used] + 1, size[used], graph.num_vertices + 2)
    freed = used & (over >= 0)
    change -= np.bincount(over[freed] + 2, size[freed], graph.num_vertices + 2)
    return float(np.cumsum(change).max())


def _holds(graph: DataflowGraph, costs: CostModel) -> dict[str, Any]:
    """Why a topology cannot hold a graph, with and without a host; None if nothing proves it, or there is no limit."""
    proof = never_fits(graph, costs)
    host = costs.topology.host is not None
    return {"memory": {"limited": costs.limited_memory, "never_fits": proof, "host": host,
                       "never_fits_with_host": never_fits(graph, costs, host=True) if host else proof}}


def describe_costs(graph: DataflowGraph, costs: CostModel) -> dict[str, Any]:
    """`work_s` sums the exec of every vertex on its fastest device. The `bounds` hold for every assignment and dispatch rule; `crossing_s`
    is that of a placement with a host."""
    bounds = lower_bounds(graph, costs)
    return {**_holds(graph, costs), "crossing_s": None if costs.topology.host is None else crossing_bound_s(graph, costs),
            "topology": costs.topology.name, "devices": costs.num_devices,
            "work_s": float(costs.exec_s[graph.work_vertices].min(axis=1).sum()), "lower_bound_s": bounds.best_s, "bounds": asdict(bounds)}


def _total(values: np.ndarray) -> float | None:
    """The sum of the values that are not NaN; None if all are."""
    return None if np.isnan(values).all() else float(np.nansum(values))
