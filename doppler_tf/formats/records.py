"""Node and edge records (the fields of `doppler-graph/1`) checked and built into a DataflowGraph, and back."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

import networkx as nx
import numpy as np

from doppler_tf.errors import GraphError, field_error, shown
from doppler_tf.graph import GRAPH_SCHEMA, DataflowGraph, Kernel, Operand

ROLES = ("shard", "reduce")


def graph_from_records(nodes: Iterable[Mapping], edges: Iterable[Mapping], attributes: Mapping | None = None,
                       where: str = "graph") -> DataflowGraph:
    """Checks records and builds the graph; the only way to make one.

    Args:
      nodes: mappings with `id` and the node fields of the format.
      edges: mappings with `source`, `target`, optional `bytes`, `transfer_s`.
      attributes: the graph's own fields; `name` is taken from here.
      where: what messages call the source, a file name as a rule.

    Raises:
      GraphError: naming `where`, vertex or edge, field, what was expected and what came.
    """
    nodes, edges, attributes = list(nodes), list(edges), dict(attributes or {})
    if not any(isinstance(node, Mapping) and node.get("input") is not True for node in nodes):
        raise GraphError(f"{where}: the graph is empty: expected at least one vertex that is not an input, got "
                         f"{len(nodes)} vertices; add a node to 'nodes'")
    index = _index_ids(nodes, where)
    labels = [f"vertex {node['id']!r}" for node in nodes]
    flops = _numbers(nodes, labels, "flops", where)
    output_bytes = _numbers(nodes, labels, "output_bytes", where)
    is_input = np.array([_boolean(node, label, where) for node, label in zip(nodes, labels, strict=True)], bool)
    groups = sorted({_text(node, "colocate", label, where) for node, label in zip(nodes, labels, strict=True)} - {None})
    group_index = {group: g for g, group in enumerate(groups)}
    sources, targets, edge_labels = _endpoints(edges, index, where)
    name = attributes.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise field_error(GraphError, where, "", "graph.name", "a string", name)
    graph = DataflowGraph(
        name=name or "graph",
        ids=tuple(node["id"] for node in nodes),
        names=tuple(_text(node, "name", label, where) or str(node["id"]) for node, label in zip(nodes, labels, strict=True)),
        kinds=tuple(_text(node, "kind", label, where) or ("input" if node.get("input") else "op")
                    for node, label in zip(nodes, labels, strict=True)),
        meta_op=tuple(_text(node, "meta_op", label, where) for node, label in zip(nodes, labels, strict=True)),
        role=tuple(_role(node, label, where) for node, label in zip(nodes, labels, strict=True)),
        flops=flops,
        output_bytes=output_bytes,
        exec_s=_exec_table(nodes, labels, where),
        is_input=is_input,
        kernel=tuple(_kernel(node, label, index, where) for node, label in zip(nodes, labels, strict=True)),
        pin=tuple(_pin(node, label, where) for node, label in zip(nodes, labels, strict=True)),
        colocate=np.array([group_index.get(node.get("colocate"), -1) for node in nodes], np.int32),
        groups=tuple(groups),
        sources=sources,
        targets=targets,
        edge_bytes=_numbers(edges, edge_labels, "bytes", where),
        transfer_s=_numbers(edges, edge_labels, "transfer_s", where),
        attributes={key: value for key, value in attributes.items() if key != "schema"},
    )
    _check_structure(graph, where)
    return graph


def graph_to_records(graph: DataflowGraph) -> tuple[list[dict], list[dict], dict]:
    """Nodes, edges and attributes as `graph_from_records` takes them; fields that were not given are left out."""
    nodes = []
    for v in range(graph.num_vertices):
        node = {"id": graph.ids[v], "name": graph.names[v], "kind": graph.kinds[v]}
        for key, array in (("flops", graph.flops), ("output_bytes", graph.output_bytes)):
            if not math.isnan(array[v]):
                node[key] = _plain(array[v])
        row = graph.exec_s[v]
        if not math.isnan(row[0]):
            node["exec_s"] = _plain(row[0]) if row.size == 1 else [_plain(x) for x in row]
        if graph.is_input[v]:
            node["input"] = True
        optional = (("meta_op", graph.meta_op[v]), ("role", graph.role[v]), ("pin", graph.pin[v]),
                    ("colocate", graph.groups[graph.colocate[v]] if graph.colocate[v] >= 0 else None))
        node.update({key: value for key, value in optional if value is not None})
        if graph.kernel[v] is not None:
            node["kernel"] = _kernel_record(graph.kernel[v], graph.ids)
        nodes.append(node)
    edges = []
    for e in range(graph.num_edges):
        edge = {"source": graph.ids[graph.sources[e]], "target": graph.ids[graph.targets[e]]}
        for key, array in (("bytes", graph.edge_bytes), ("transfer_s", graph.transfer_s)):
            if not math.isnan(array[e]):
                edge[key] = _plain(array[e])
        edges.append(edge)
    return nodes, edges, {"schema": GRAPH_SCHEMA, **graph.attributes, "name": graph.name}


def _plain(number: float) -> int | float:
    """A JSON number: integers stay integers while float64 holds them exactly."""
    return int(number) if number == int(number) and abs(number) < 2**53 else float(number)


def _kernel_record(kernel: Kernel, ids: tuple) -> dict:
    operands = [{"vertex": ids[o.vertex], "slice": None if o.slice is None else [list(s) for s in o.slice]}
                for o in kernel.operands]
    return {"op": kernel.op, "operands": operands, "params": dict(kernel.params)}


def _index_ids(nodes: list[Mapping], where: str) -> dict:
    index: dict = {}
    for position, node in enumerate(nodes):
        if not isinstance(node, Mapping) or "id" not in node:
            raise field_error(GraphError, where, f"node at position {position}", "id", "an object with an 'id'", node)
        key = node["id"]
        if not _is_id(key):
            raise field_error(GraphError, where, f"node at position {position}", "id", "an integer or a string", key)
        if key in index:
            raise GraphError(f"{where}: vertex {key!r}: id: expected unique ids, got it twice (positions {index[key]} and "
                             f"{position}); rename one")
        index[key] = position
    return index


def _number(value, what: str, name: str, where: str) -> float:
    good = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not good or not 0 <= value <= sys.float_info.max:
        raise field_error(GraphError, where, what, name, "a finite number >= 0", value)
    return float(value) + 0.0  # -0.0 becomes 0.0: equal graphs have equal hashes


def _numbers(records: list[Mapping], labels: list[str], name: str, where: str) -> np.ndarray:
    return np.array([math.nan if record.get(name) is None else _number(record[name], label, name, where)
                     for record, label in zip(records, labels, strict=True)], np.float64)


def _exec_table(nodes: list[Mapping], labels: list[str], where: str) -> np.ndarray:
    lists = {len(node["exec_s"]) for node in nodes if isinstance(node.get("exec_s"), list | tuple)}
    if len(lists) > 1 or 0 in lists:
        raise field_error(GraphError, where, "", "exec_s", "lists of one length, the number of devices", sorted(lists))
    width = lists.pop() if lists else 1
    table = np.full((len(nodes), width), math.nan)
    for v, (node, label) in enumerate(zip(nodes, labels, strict=True)):
        value = node.get("exec_s")
        if isinstance(value, list | tuple):
            table[v] = [_number(x, label, f"exec_s[{d}]", where) for d, x in enumerate(value)]
        elif value is not None:
            table[v] = _number(value, label, "exec_s", where)
    return table


def _boolean(node: Mapping, label: str, where: str) -> bool:
    value = node.get("input", False)
    if not isinstance(value, bool):
        raise field_error(GraphError, where, label, "input", "true or false", value)
    return value


def _text(node: Mapping, name: str, label: str, where: str) -> str | None:
    value = node.get(name)
    if value is not None and not isinstance(value, str):
        raise field_error(GraphError, where, label, name, "a string", value)
    # JSON may hold halves of surrogate pairs, which no terminal and no file takes.
    return value if value is None else value.encode("utf-8", "replace").decode()


def _role(node: Mapping, label: str, where: str) -> str | None:
    role = _text(node, "role", label, where)
    if role is not None and role not in ROLES:
        raise field_error(GraphError, where, label, "role", " or ".join(ROLES), role)
    return role


def _pin(node: Mapping, label: str, where: str) -> int | str | None:
    pin = node.get("pin")
    if pin is not None and (isinstance(pin, bool) or not isinstance(pin, int | str) or (isinstance(pin, int) and pin < 0)):
        raise field_error(GraphError, where, label, "pin", "a device index >= 0 or a device name", pin)
    return pin


def _kernel(node: Mapping, label: str, index: dict, where: str) -> Kernel | None:
    record = node.get("kernel")
    if record is None:
        return None
    if not isinstance(record, Mapping) or not isinstance(record.get("op"), str):
        raise field_error(GraphError, where, label, "kernel", "an object with 'op', 'operands' and 'params'", record)
    listed, params = record.get("operands", []), record.get("params") or {}
    if not isinstance(listed, list | tuple):
        raise field_error(GraphError, where, label, "kernel.operands", "a list", listed)
    if not isinstance(params, Mapping):
        raise field_error(GraphError, where, label, "kernel.params", "an object", params)
    operands = []
    for operand in listed:
        if not isinstance(operand, Mapping) or not _is_id(operand.get("vertex")) or operand["vertex"] not in index:
            raise field_error(GraphError, where, label, "kernel.operands", "objects whose 'vertex' is a vertex id", operand)
        operands.append(Operand(index[operand["vertex"]], _slice(operand.get("slice"), label, where)))
    return Kernel(record["op"], tuple(operands), dict(params))


def _slice(part, label: str, where: str) -> tuple[tuple[int, int], ...] | None:
    if part is None:
        return None
    axes = part if isinstance(part, list | tuple) else [None]
    for axis in axes:
        if not isinstance(axis, list | tuple) or len(axis) != 2 or not all(type(x) is int for x in axis) or not 0 <= axis[0] <= axis[1]:
            raise field_error(GraphError, where, label, "kernel.operands.slice", "null or a list of [start, stop], one an axis", part)
    return tuple((start, stop) for start, stop in axes)


def _is_id(value) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _endpoints(edges: list[Mapping], index: dict, where: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    ends: dict[str, list[int]] = {"source": [], "target": []}
    labels = []
    for position, edge in enumerate(edges):
        if not isinstance(edge, Mapping):
            raise field_error(GraphError, where, f"edge at position {position}", "edge", "an object", edge)
        labels.append(f"edge {shown(edge.get('source'))} -> {shown(edge.get('target'))}")
        for key, column in ends.items():
            end = edge.get(key)
            if not _is_id(end) or end not in index:
                raise field_error(GraphError, where, labels[-1], key, "the id of a vertex in 'nodes'", end,
                                  "add the vertex or mend the edge")
            column.append(index[end])
    return np.array(ends["source"], np.int32), np.array(ends["target"], np.int32), labels


def _check_structure(graph: DataflowGraph, where: str) -> None:
    pairs = graph.sources.astype(np.int64) * graph.num_vertices + graph.targets
    unique, counts = np.unique(pairs, return_counts=True)
    if (counts > 1).any():
        source, target = divmod(int(unique[counts > 1][0]), graph.num_vertices)
        raise GraphError(f"{where}: edge {graph.ids[source]!r} -> {graph.ids[target]!r}: source, target: expected one edge for a "
                         f"pair of vertices, got {int(counts.max())}; merge them (an edge is one tensor)")
    if sum(level.size for level in graph.levels) < graph.num_vertices:
        cycle = nx.find_cycle(nx.DiGraph(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)))
        path = " -> ".join(repr(graph.ids[u]) for u, _ in cycle) + f" -> {graph.ids[cycle[-1][1]]!r}"
        raise GraphError(f"{where}: edges: expected no cycle, got {path}; remove one of these edges")
    joined = set(pairs.tolist())
    for v, kernel in enumerate(graph.kernel):
        for operand in kernel.operands if kernel else ():
            if operand.vertex * graph.num_vertices + v not in joined:
                raise GraphError(f"{where}: vertex {graph.ids[v]!r}: kernel.operands: expected predecessors of the vertex, got "
                                 f"{graph.ids[operand.vertex]!r}; add the edge or mend the operand")
    fed = np.flatnonzero(graph.is_input[graph.targets])
    if fed.size:
        e = int(fed[0])
        raise GraphError(f"{where}: vertex {graph.ids[graph.targets[e]]!r}: input: expected an input vertex to have no "
                         f"predecessors, got an edge from {graph.ids[graph.sources[e]]!r}; drop 'input' or the edge")
