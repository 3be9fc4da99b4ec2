"""What there is to tell of a graph: counts, totals and, with costs, lower bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.bounds import lower_bounds


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
        "kinds": {kind: {"vertices": len(rows[kind]), "flops": _total(graph.flops[rows[kind]]),
                         "output_bytes": _total(graph.output_bytes[rows[kind]])} for kind in rows},
    }


def describe_costs(graph: DataflowGraph, costs: CostModel) -> dict[str, Any]:
    """`work_s` sums the exec of every vertex on its fastest device. The `bounds` hold for every assignment and dispatch rule."""
    bounds = lower_bounds(graph, costs)
    return {"topology": costs.topology.name, "devices": costs.num_devices,
            "work_s": float(costs.exec_s[graph.work_vertices].min(axis=1).sum()), "lower_bound_s": bounds.best_s, "bounds": asdict(bounds)}


def _total(values: np.ndarray) -> float | None:
    """The sum of the values that are not NaN; None if all are."""
    return None if np.isnan(values).all() else float(np.nansum(values))
