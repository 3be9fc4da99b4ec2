"""The rules that a graph keeps as a whole: single edges, no cycle, operands that are predecessors, inputs unfed, steps in order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from doppler_tf.errors import GraphError, field_error
from doppler_tf.graph.dataflow import DataflowGraph


def check_structure(graph: DataflowGraph, where: str) -> None:
    """Raises GraphError for a double edge, a cycle, an operand that is no predecessor, an input vertex with predecessors, a `fused`
    kernel whose steps cannot be taken in order, or a result that no vertex makes."""
    pairs = graph.edge_tensor.astype(np.int64) * graph.num_vertices + graph.targets
    unique, counts = np.unique(pairs, return_counts=True)
    if (counts > 1).any():
        tensor, target = divmod(int(unique[counts > 1][0]), graph.num_vertices)
        raise GraphError(f"{where}: edge {graph.ids[graph.tensor_producer[tensor]]!r} -> {graph.ids[target]!r}: source, target: expected "
                         f"one edge for a pair of vertices and an output, got {int(counts.max())}; merge them (an edge is one tensor)")
    if sum(level.size for level in graph.levels) < graph.num_vertices:
        path = " -> ".join(repr(graph.ids[v]) for v in _cycle(graph))
        raise GraphError(f"{where}: edges: expected no cycle, got {path}; remove one of these edges")
    joined, first = set(pairs.tolist()), graph.tensor_ptr.tolist()
    for v, kernel in enumerate(graph.kernel):
        for operand in () if kernel is None else kernel.operands:
            if (first[operand.vertex] + operand.output) * graph.num_vertices + v not in joined:
                which = f" (output {operand.output})" if operand.output else ""
                raise GraphError(f"{where}: vertex {graph.ids[v]!r}: kernel.operands: expected predecessors of the vertex, got "
                                 f"{graph.ids[operand.vertex]!r}{which}; add the edge or mend the operand")
        if kernel is not None and kernel.op == "fused":
            _check_steps(where, f"vertex {graph.ids[v]!r}", kernel.params, len(kernel.operands))
    fed = np.flatnonzero(graph.is_input[graph.targets])
    if fed.size:
        e = int(fed[0])
        raise GraphError(f"{where}: vertex {graph.ids[graph.targets[e]]!r}: input: expected an input vertex to have no "
                         f"predecessors, got an edge from {graph.ids[graph.sources[e]]!r}; drop 'input' or the edge")
    named = graph.attributes.get("results", [])
    for record in named if isinstance(named, list | tuple) else [named]:
        if graph.tensor_of(record) is None:
            raise field_error(GraphError, where, "", "graph.results", "a list of objects with a `vertex` that is no input and one of its "
                              "outputs, `output` (0)", record)


def is_box(part: object) -> bool:
    """Whether something is a list of [start, stop], integers with 0 <= start <= stop, one an axis."""
    return isinstance(part, list | tuple) and all(
        isinstance(axis, list | tuple) and len(axis) == 2 and type(axis[0]) is type(axis[1]) is int and 0 <= axis[0] <= axis[1]
        for axis in part)


def _check_steps(where: str, what: str, params: Mapping, operands: int) -> None:
    """Raises GraphError unless every step of a `fused` kernel is a kernel on the vertex's operands and the steps before it."""
    wrong = partial(field_error, GraphError, where, what)
    steps = params.get("steps")
    if not isinstance(steps, list | tuple) or not steps:
        raise wrong("kernel.params.steps", "a list of at least one step", steps)
    for known, step in enumerate(steps, start=operands):
        field = f"kernel.params.steps[{known - operands}]"
        if (not isinstance(step, Mapping) or not isinstance(step.get("op"), str) or not isinstance(step.get("params"), Mapping)
                or not isinstance(step.get("operands"), list | tuple)):
            raise wrong(field, "an object with 'op', 'operands' and 'params'", step)
        for operand in step["operands"]:
            place = operand.get("from") if isinstance(operand, Mapping) else None
            if type(place) is not int or not 0 <= place < known:
                raise wrong(f"{field}.operands", f"objects whose 'from' is < {known}, the tensors known by then", operand)
            if "slice" not in operand or not (operand["slice"] is None or is_box(operand["slice"])):
                raise wrong(f"{field}.operands", "objects whose 'slice' is null or a list of [start, stop], one an axis", operand)
        if step["op"] == "fused":
            _check_steps(where, what, step["params"], len(step["operands"]))


def _cycle(graph: DataflowGraph) -> list[int]:
    """The vertices of one cycle, first and last the same: every vertex in no level has such a predecessor, and back from there."""
    behind = np.ones(graph.num_vertices, bool)
    for level in graph.levels:
        behind[level] = False
    edges = behind[graph.sources] & behind[graph.targets]
    before = dict(zip(graph.targets[edges].tolist(), graph.sources[edges].tolist(), strict=True))
    v, walked = next(iter(before)), {}
    while v not in walked:
        walked[v] = len(walked)
        v = before[v]
    cycle = list(walked)[walked[v]:][::-1]
    first = cycle.index(min(cycle))
    return [*cycle[first:], *cycle[:first + 1]]
