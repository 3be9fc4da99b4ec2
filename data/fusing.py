"""Fuses vertices that gain nothing from separate devices into one vertex with one kernel call, which saves calls and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records, graph_to_records


def fuse(graph: DataflowGraph) -> DataflowGraph:
    """The same computation with groups of vertices fused into one vertex each. A graph without such groups is returned unchanged.

    Two rules form groups, in this order:

    - *Joining.* An elementwise vertex with one reader and, inputs aside, one producer joins its reader. The reader then takes the
      producer's tensor, which is as large, so that no transfer grows.
    - *Runs.* A run is a path. Each vertex after the first needs only inputs, earlier vertices of the path and tensors that the first vertex
      needs too. Only the last vertex has readers outside. No two vertices of a run could run at once, a run can start when its first
      vertex can, and every reader outside waits for all of it. Splitting a run over equal devices could gain little: other vertices
      could run between two of its vertices, or a transfer in the middle could be smaller than the transfers before.

    A fused vertex keeps the id of its last vertex, so that outputs keep their ids. Its kernel `fused` lists the steps of the call (see
    `_kernel`). A vertex with a pin, a colocation group or an explicit `exec_s` is never fused.
    """
    groups = _runs(graph, _joined(graph))
    if len(groups) == len(graph.work_vertices):
        return graph
    nodes, edges, attributes = graph_to_records(graph)
    group_of = {v: group for group in groups if len(group) > 1 for v in group}
    merged = [_node(graph, nodes, group_of[v]) if v in group_of else nodes[v]
              for v in range(graph.num_vertices) if v not in group_of or group_of[v][-1] == v]
    return graph_from_records(merged, _edges(graph, edges, group_of), attributes, graph.name)


Group = list[int]  # vertices in topological order; the output of the last is the group's output


def _joined(graph: DataflowGraph) -> list[Group]:
    """Groups of all work vertices in topological order: elementwise vertices are in their reader's group, others alone."""
    readers, producers = _neighbours(graph, graph.sources[graph.work_edges], graph.targets[graph.work_edges])
    outputs, order = _output_ids(graph), [v for v in graph.topological_order.tolist() if not graph.is_input[v]]
    end = {}
    for v in reversed(order):
        reader = next(iter(readers[v]), v)
        joins = (len(readers[v]) == 1 and len(producers[v]) == 1 and graph.ids[v] not in outputs and _may_join(graph, v)
                 and _may_join(graph, reader) and _is_elementwise(graph, v) and _takes_all(graph, reader, v))
        end[v] = end[reader] if joins else v
    groups: dict[int, Group] = {v: [] for v in order if end[v] == v}
    for v in order:
        groups[end[v]].append(v)
    return list(groups.values())


def _runs(graph: DataflowGraph, groups: Sequence[Group]) -> list[Group]:
    """Merges groups that form a run. A run begins as early as possible in the order of the groups, and is as long as possible."""
    number = np.full(graph.num_vertices, -1)
    for i, group in enumerate(groups):
        number[group] = i
    ends = number[graph.sources[graph.work_edges]], number[graph.targets[graph.work_edges]]
    readers, producers = _neighbours(graph, *(side[ends[0] != ends[1]] for side in ends))
    outputs = _output_ids(graph)
    alone = [graph.ids[group[-1]] in outputs or not _may_join(graph, group[-1]) for group in groups]
    done, runs = set[int](), []
    for first in range(len(groups)):
        if first in done:
            continue
        run, length, available, outside_readers = [first], 1, producers[first] | {first}, set[int]()
        while not alone[last := run[-1]]:
            successors = [i for i in readers[last] if producers[i] <= available]
            if len(successors) != 1 or not _may_join(graph, groups[successors[0]][-1]):
                break  # two successors could run in parallel
            outside_readers |= readers[last]
            outside_readers -= set(successors)
            run += successors
            available |= set(successors)
            if not outside_readers:
                length = len(run)
        done.update(run[:length])
        runs.append([v for i in run[:length] for v in groups[i]])
    return runs


def _neighbours(graph: DataflowGraph, sources: np.ndarray, targets: np.ndarray) -> tuple[list[set[int]], list[set[int]]]:
    """The readers and the producers of each vertex."""
    readers, producers = ([set() for _ in range(graph.num_vertices)] for _ in range(2))
    for u, v in zip(sources.tolist(), targets.tolist(), strict=True):
        readers[u].add(v)
        producers[v].add(u)
    return readers, producers


def _may_join(graph: DataflowGraph, v: int) -> bool:
    return graph.kernel[v] is not None and graph.pin[v] is None and graph.colocate[v] < 0 and bool(np.isnan(graph.exec_s[v]).all())


def _is_elementwise(graph: DataflowGraph, v: int) -> bool:
    """Whether v reads one tensor, inputs aside, and its output has the same size."""
    kernel = graph.kernel[v]
    if kernel.op != "map":
        return False
    left, _, output = str(kernel.params.get("subscripts")).partition("->")
    terms = left.split(",")
    return len(terms) == len(kernel.operands) and all(
        graph.is_input[o.vertex] or (o.slice is None and sorted(term) == sorted(output))
        for o, term in zip(kernel.operands, terms, strict=True))


def _takes_all(graph: DataflowGraph, reader: int, v: int) -> bool:
    """Whether the reader takes v's whole tensor. If it took a part, joining would make the transfer larger."""
    return all(o.slice is None for o in graph.kernel[reader].operands if o.vertex == v)


def _output_ids(graph: DataflowGraph) -> set:
    """Ids of the vertices that hold the outputs of the graph's program."""
    return {tile["vertex"] for output in graph.attributes.get("outputs", {}).values() for tile in output["tiles"]}


def _node(graph: DataflowGraph, nodes: Sequence[Mapping], group: Group) -> dict:
    """The record of a fused vertex. It is named after its first and last vertex and has the kind of its largest."""
    largest = group[int(np.argmax(np.nan_to_num(graph.flops[group])))]
    node = {key: value for key, value in nodes[largest].items() if key in ("kind", "meta_op", "role")}
    node |= {key: value for key, value in nodes[group[-1]].items() if key in ("id", "output_bytes")}
    if not np.isnan(graph.flops[group]).any():
        node["flops"] = float(graph.flops[group].sum())
    return {**node, "name": f"{graph.names[group[0]]} .. {graph.names[group[-1]]}", "kernel": _kernel(graph, nodes, group)}


def _kernel(graph: DataflowGraph, nodes: Sequence[Mapping], group: Group) -> dict:
    """The record of a `fused` kernel.

    Its operands are the whole tensors from outside. `steps` are the kernels of the group in order, each with its vertex's `name`. An
    operand's `from` is an index into the kernel's operands followed by the outputs of earlier steps.
    """
    outside = list(dict.fromkeys(o.vertex for v in group for o in graph.kernel[v].operands if o.vertex not in group))
    place = {v: i for i, v in enumerate([*outside, *group])}
    steps = [{"name": graph.names[v], "op": graph.kernel[v].op, "params": dict(graph.kernel[v].params),
              "operands": [{"from": place[o.vertex], "slice": record["slice"]}
                           for o, record in zip(graph.kernel[v].operands, nodes[v]["kernel"]["operands"], strict=True)]} for v in group]
    return {"op": "fused", "params": {"steps": steps}, "operands": [{"vertex": graph.ids[u], "slice": None} for u in outside]}


def _edges(graph: DataflowGraph, edges: Sequence[Mapping], group_of: Mapping[int, Group]) -> list[dict]:
    """Edges between groups. If one vertex has several edges to a group, the costliest is kept."""
    def cost(edge: Mapping) -> tuple[float, float]:
        return edge.get("transfer_s", 0.0), edge.get("bytes", np.inf)  # without bytes, all of the source's output crosses

    kept: dict[tuple, dict] = {}
    for u, v, edge in zip(graph.sources.tolist(), graph.targets.tolist(), edges, strict=True):
        if u in group_of and group_of[u] is group_of.get(v):
            continue
        target = graph.ids[group_of[v][-1]] if v in group_of else edge["target"]
        known = kept.get((edge["source"], target))
        if known is None or cost(known) < cost(edge):
            kept[edge["source"], target] = {**edge, "target": target}
    return list(kept.values())
