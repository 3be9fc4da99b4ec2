"""Node and edge records (the fields of `doppler-graph/1`) checked and built into a DataflowGraph, and back."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from doppler_tf.errors import GraphError, field_error, shown
from doppler_tf.graph.dataflow import GRAPH_SCHEMA, DataflowGraph, Kernel, Operand
from doppler_tf.graph.fields import GRAPH_FIELDS, notes_of
from doppler_tf.graph.rules import check_structure, is_box
from doppler_tf.graph.topology import NotNegative
from doppler_tf.schema import check, is_of, refuse_slips

Role = Literal["shard", "reduce"]
Pin = Annotated[Annotated[int, Meta(ge=0)] | str | None, Meta(description="a device index >= 0 or a device name")]
IDS = (int, str, np.integer)
LISTS = (list, tuple)
# A list is made for every vertex with as many entries as its largest output index, so that index must be bounded.
MOST_OUTPUTS = 1 << 16
EXPECTED_OUTPUT = f"an integer from 0 to {MOST_OUTPUTS - 1}"


@contextlib.contextmanager
def collector_paused():
    """Switches the cyclic garbage collector off. Records are many and hold no cycles, but it would visit them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@collector_paused()
def graph_from_records(nodes: Iterable[Mapping], edges: Iterable[Mapping], attributes: Mapping | None = None,
                       where: str = "graph") -> DataflowGraph:
    """Checks records and builds the graph; the only way to make one.

    Args:
      nodes: mappings with `id` and the node fields of the format.
      edges: mappings with `source`, `target`, optional `bytes`, `transfer_s`, `output`.
      attributes: the graph's own fields; `name` is taken from here.
      where: the name of the source in messages, usually a file name.

    Raises:
      GraphError: the message names the source, the vertex or edge, the field, the expected value and the given one.
    """
    nodes, edges, attributes = list(nodes), list(edges), dict(attributes or {})
    refuse_slips(attributes, GRAPH_FIELDS, GraphError, where, "graph.")
    if not any(isinstance(node, Mapping) and node.get("input") is not True for node in nodes):
        raise GraphError(f"{where}: the graph is empty: expected at least one vertex that is not an input, got "
                         f"{len(nodes)} vertices; add a node to 'nodes'")
    index = _index_ids(nodes, where)
    flops = _numbers(nodes, _vertex_label, "flops", where)
    is_input = np.array(_column(nodes, "input", bool, where, False), bool)
    colocate = _texts(nodes, "colocate", where)
    groups = sorted(set(colocate) - {None})
    group_index = {group: g for g, group in enumerate(groups)}
    sources, targets = _endpoints(edges, index, where)
    edge_output = _edge_outputs(edges, where)
    kernels = _kernels(nodes, index, where)
    tensor_ptr, tensor_bytes = _tensors(nodes, sources, edge_output, kernels, where)
    name = attributes.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise field_error(GraphError, where, "", "graph.name", "a string", name)
    graph = DataflowGraph(
        name=name or "graph",
        ids=tuple(index),
        names=tuple(name or str(key) for name, key in zip(_texts(nodes, "name", where), index, strict=True)),
        kinds=tuple(kind or ("input" if fixed else "op")
                    for kind, fixed in zip(_texts(nodes, "kind", where), is_input.tolist(), strict=True)),
        meta_op=tuple(_texts(nodes, "meta_op", where)),
        role=tuple(_column(nodes, "role", Role | None, where)),
        flops=flops,
        tensor_ptr=tensor_ptr,
        tensor_bytes=tensor_bytes,
        exec_s=_exec_table(nodes, where),
        is_input=is_input,
        kernel=kernels,
        pin=tuple(_column(nodes, "pin", Pin, where)),
        colocate=np.array([group_index.get(group, -1) for group in colocate], np.int32),
        groups=tuple(groups),
        sources=sources,
        targets=targets,
        edge_output=edge_output,
        edge_bytes=_numbers(edges, _edge_label, "bytes", where),
        transfer_s=_numbers(edges, _edge_label, "transfer_s", where),
        attributes={key: value for key, value in attributes.items() if key != "schema"},
        vertex_notes=notes_of(nodes, True, where, _vertex_label),
        edge_notes=notes_of(edges, False, where, _edge_label),
    )
    check_structure(graph, where)
    return graph


@collector_paused()
def graph_to_records(graph: DataflowGraph) -> tuple[list[dict], list[dict], dict]:
    """Nodes, edges and attributes in the form that `graph_from_records` takes, without fields that were not given."""
    ids, groups = graph.ids, (*graph.groups, None)  # index -1 means no group
    nodes = [{"id": key, "name": name, "kind": kind} for key, name, kind in zip(ids, graph.names, graph.kinds, strict=True)]
    _fill(nodes, "flops", _plain(graph.flops))
    _fill(nodes, "output_bytes", _output_bytes(graph))
    exec_s, given = [_plain(column) for column in graph.exec_s.T], ~np.isnan(graph.exec_s[:, 0])
    _fill(nodes, "exec_s", exec_s[0] if len(exec_s) == 1 else [list(row) if row_given else None for row, row_given in zip(
        zip(*exec_s, strict=True), given.tolist(), strict=True)])
    _fill(nodes, "input", [fixed or None for fixed in graph.is_input.tolist()])
    for key, column in (("meta_op", graph.meta_op), ("role", graph.role), ("pin", graph.pin),
                        ("colocate", [groups[g] for g in graph.colocate.tolist()])):
        _fill(nodes, key, column)
    for v, notes in graph.vertex_notes.items():
        nodes[v].update(notes)
    _fill(nodes, "kernel", [None if kernel is None else _kernel_record(kernel, ids) for kernel in graph.kernel])
    edges = [{"source": ids[source], "target": ids[target]}
             for source, target in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)]
    _fill(edges, "output", [output or None for output in graph.edge_output.tolist()])
    _fill(edges, "bytes", _plain(graph.edge_bytes))
    _fill(edges, "transfer_s", _plain(graph.transfer_s))
    for e, notes in graph.edge_notes.items():
        edges[e].update(notes)
    return nodes, edges, {"schema": GRAPH_SCHEMA, **graph.attributes, "name": graph.name}


def _fill(records: list[dict], key: str, column: Iterable) -> None:
    """Sets the field where it is given."""
    for record, value in zip(records, column, strict=True):
        if value is not None:
            record[key] = value


def _plain(numbers: np.ndarray) -> list[int | float | None]:
    """JSON numbers, None for NaN and infinity. A whole number becomes an integer if float64 holds it exactly."""
    return [None if not math.isfinite(x) else int(x) if x.is_integer() and abs(x) < 2**53 else x for x in numbers.tolist()]


def _output_bytes(graph: DataflowGraph) -> list:
    """By vertex the bytes of its outputs: a number where there is one, None where not given."""
    sizes = _plain(graph.tensor_bytes)
    if graph.single_outputs:
        return sizes
    by_vertex = [sizes[begin:end] for begin, end in zip(graph.tensor_ptr[:-1].tolist(), graph.tensor_ptr[1:].tolist(), strict=True)]
    return [row[0] if len(row) == 1 else None if row[0] is None else row for row in by_vertex]


def _kernel_record(kernel: Kernel, ids: tuple) -> dict:
    operands = [{"vertex": ids[o.vertex], "slice": None if o.slice is None else [list(s) for s in o.slice],
                 **({"output": o.output} if o.output else {})} for o in kernel.operands]
    return {"op": kernel.op, "operands": operands, "params": dict(kernel.params)}


def _vertex_label(node: Mapping) -> str:
    return f"vertex {node['id']!r}"


def _edge_label(edge: Mapping) -> str:
    return f"edge {shown(edge.get('source'))} -> {shown(edge.get('target'))}"


def _index_ids(nodes: list[Mapping], where: str) -> dict:
    index: dict = {}
    for position, node in enumerate(nodes):
        if not isinstance(node, Mapping) or "id" not in node:
            raise field_error(GraphError, where, f"node at position {position}", "id", "an object with an 'id'", node)
        key = node["id"]
        if not is_id(key):
            raise field_error(GraphError, where, f"node at position {position}", "id", "an integer or a string", key)
        if key in index:
            raise GraphError(f"{where}: vertex {key!r}: id: expected unique ids, got it twice (positions {index[key]} and "
                             f"{position}); rename one")
        index[int(key) if isinstance(key, np.integer) else key] = position
    return index


def _number(value, what: str, name: str, where: str) -> float:
    value = value.item() if isinstance(value, np.generic) else value
    check(value, NotNegative, GraphError, where, what, name)
    return float(value) + 0.0  # -0.0 becomes 0.0: equal graphs have equal hashes


def _values(records: list[Mapping], name: str, default: Any = None) -> list:
    """A field of all records; what is NumPy's, or another library's arrays, as numbers and lists."""
    values = [record.get(name, default) for record in records]
    if any(hasattr(kind, "__array__") for kind in set(map(type, values))):
        return [plain_values(value) for value in values]
    return values


def plain_values(value: Any) -> Any:
    """A value as JSON has it: arrays and NumPy's numbers, wherever in it they are, as lists and numbers."""
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, LISTS):
        return [plain_values(entry) for entry in value]
    return {key: plain_values(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value


def _numbers(records: list[Mapping], label: Callable[[Mapping], str], name: str, where: str) -> np.ndarray:
    values = _values(records, name)
    if is_of(values, list[NotNegative | None]):  # the usual case: one check for all
        return np.array(values, np.float64) + 0.0
    return np.array([math.nan if value is None else _number(value, label(record), name, where)
                     for value, record in zip(values, records, strict=True)], np.float64)


def _exec_table(nodes: list[Mapping], where: str) -> np.ndarray:
    values = _values(nodes, "exec_s")
    lengths = {len(value) for value in values if isinstance(value, LISTS)}
    if len(lengths) > 1 or 0 in lengths:
        most = max(lengths)
        node = next(node for node, value in zip(nodes, values, strict=True) if isinstance(value, LISTS) and len(value) < max(most, 1))
        expected = f"a list of {most} numbers, as other vertices have" if most else "a list of numbers, one for each device"
        raise field_error(GraphError, where, _vertex_label(node), "exec_s", expected, node["exec_s"])
    if not lengths:
        return _numbers(nodes, _vertex_label, "exec_s", where)[:, None]
    if not is_of(values, list[list[NotNegative] | NotNegative | None]):
        values = [_exec_row(value, node, where) if isinstance(value, LISTS)
                  else None if value is None else _number(value, _vertex_label(node), "exec_s", where)
                  for node, value in zip(nodes, values, strict=True)]
    table = np.full((len(nodes), lengths.pop()), math.nan)
    for v, value in enumerate(values):
        if value is not None:
            table[v] = value
    return table + 0.0


def _exec_row(row: Sequence, node: Mapping, where: str) -> list[float]:
    """Seconds by device; infinite for null or infinity, where the device cannot run the vertex."""
    label = _vertex_label(node)
    seconds = [math.inf if x is None or x == math.inf else _number(x, label, f"exec_s[{d}]", where) for d, x in enumerate(row)]
    if min(seconds) == math.inf and node.get("input") is not True:
        raise field_error(GraphError, where, label, "exec_s", "a number for at least one device, as null means that a device cannot run "
                          "the vertex", row)
    return seconds


def _column(nodes: list[Mapping], name: str, kind: Any, where: str, default: Any = None) -> list:
    """A field of all vertices. One call checks all values; only if it fails is the bad vertex searched."""
    values = _values(nodes, name, default)
    if not is_of(values, list[kind]):
        for node, value in zip(nodes, values, strict=True):
            check(value, kind, GraphError, where, _vertex_label(node), name)
    return values


def _texts(nodes: list[Mapping], name: str, where: str) -> list[str | None]:
    # JSON may hold halves of surrogate pairs, which terminals and files refuse.
    return [value if value is None or value.isascii() else value.encode("utf-8", "replace").decode()
            for value in _column(nodes, name, str | None, where)]


def _kernels(nodes: list[Mapping], index: Mapping, where: str) -> tuple[Kernel | None, ...]:
    shared: dict[tuple, Operand] = {}  # most tensors have several readers: equal operands share one object
    return tuple(None if (record := node.get("kernel")) is None else _kernel(record, node, index, shared, where) for node in nodes)


def _kernel(record, node: Mapping, index: Mapping, shared: dict[tuple, Operand], where: str) -> Kernel:
    if not isinstance(record, Mapping) or not isinstance(record.get("op"), str):
        raise field_error(GraphError, where, _vertex_label(node), "kernel", "an object with 'op', 'operands' and 'params'", record)
    listed, params = record.get("operands", []), record.get("params") or {}
    if not isinstance(listed, LISTS):
        raise field_error(GraphError, where, _vertex_label(node), "kernel.operands", "a list", listed)
    if not isinstance(params, Mapping):
        raise field_error(GraphError, where, _vertex_label(node), "kernel.params", "an object", params)
    operands = []
    for operand in listed:
        vertex = operand.get("vertex") if isinstance(operand, Mapping) else None
        if not is_id(vertex) or vertex not in index:
            raise field_error(GraphError, where, _vertex_label(node), "kernel.operands", "objects whose 'vertex' is a vertex id", operand)
        output = operand.get("output", 0)
        if not _is_output(output):
            raise field_error(GraphError, where, _vertex_label(node), "kernel.operands.output", EXPECTED_OUTPUT, output)
        key = (index[vertex], _slice(operand.get("slice"), node, where), output)
        operands.append(shared.get(key) or shared.setdefault(key, Operand(*key)))
    return Kernel(record["op"], tuple(operands), dict(params))


def _slice(part, node: Mapping, where: str) -> tuple[tuple[int, int], ...] | None:
    if part is None:
        return None
    if not is_box(part):
        raise field_error(GraphError, where, _vertex_label(node), "kernel.operands.slice",
                          "null or a list of [start, stop], one an axis", part)
    return tuple(map(tuple, part))


def is_id(value) -> bool:
    """Whether something may be a vertex's id."""
    return isinstance(value, IDS) and not isinstance(value, bool)


def _is_output(value) -> bool:
    return type(value) is int and 0 <= value < MOST_OUTPUTS


def _edge_outputs(edges: list[Mapping], where: str) -> np.ndarray:
    outputs = _values(edges, "output", 0)
    wrong = next((e for e, output in enumerate(outputs) if not _is_output(output)), None)
    if wrong is not None:
        raise field_error(GraphError, where, _edge_label(edges[wrong]), "output", EXPECTED_OUTPUT, outputs[wrong])
    return np.array(outputs, np.int32)


def _tensors(nodes: list[Mapping], sources: np.ndarray, edge_output: np.ndarray, kernels: tuple[Kernel | None, ...],
             where: str) -> tuple[np.ndarray, np.ndarray]:
    """`tensor_ptr` and `tensor_bytes`: as many outputs as `output_bytes` lists, or as edges and operands name."""
    values = _values(nodes, "output_bytes")
    listed = [v for v, value in enumerate(values) if isinstance(value, LISTS)]
    named = np.ones(len(nodes), np.int64)
    np.maximum.at(named, sources, edge_output + 1)
    for kernel in kernels:
        for operand in () if kernel is None else kernel.operands:
            if operand.output:
                named[operand.vertex] = max(named[operand.vertex], operand.output + 1)
    if not listed and (named == 1).all():
        return np.arange(len(nodes) + 1, dtype=np.int32), _numbers(nodes, _vertex_label, "output_bytes", where)
    _refuse_gaps(nodes, values, sources, edge_output, kernels, where)
    sizes: list[float] = []
    counts = named.tolist()
    for v, (node, value) in enumerate(zip(nodes, values, strict=True)):
        row = value if isinstance(value, LISTS) else [value] * counts[v]
        if not counts[v] <= len(row) <= MOST_OUTPUTS:
            raise field_error(GraphError, where, _vertex_label(node), "output_bytes",
                              f"a number, or a list of at least {counts[v]} (one an output)", value)
        counts[v] = len(row)
        for k, size in enumerate(row):
            name = f"output_bytes[{k}]" if isinstance(value, LISTS) else "output_bytes"
            sizes.append(math.nan if size is None and value is None else _number(size, _vertex_label(node), name, where))
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), np.array(sizes, np.float64)


def _refuse_gaps(nodes: list[Mapping], values: list, sources: np.ndarray, edge_output: np.ndarray, kernels: tuple[Kernel | None, ...],
                 where: str) -> None:
    """Raises GraphError where outputs are named that no list counts, but not all before them: probably a slip."""
    taken: dict[int, set[int]] = {}
    for v, output in {*zip(sources.tolist(), edge_output.tolist(), strict=True),
                      *((o.vertex, o.output) for kernel in kernels if kernel is not None for o in kernel.operands)}:
        taken.setdefault(v, set()).add(output)
    for v, outputs in taken.items():
        if not isinstance(values[v], LISTS) and max(outputs) >= len(outputs):
            least = next(k for k in range(len(outputs) + 1) if k not in outputs)
            raise field_error(GraphError, where, _vertex_label(nodes[v]), "output_bytes", f"a list of {max(outputs) + 1} numbers, one an "
                              f"output, as output {max(outputs)} is taken and output {least} is not", values[v],
                              "give the list, or mend 'output' in the edge")


def _endpoints(edges: list[Mapping], index: Mapping, where: str) -> tuple[np.ndarray, np.ndarray]:
    ends: dict[str, list[int]] = {"source": [], "target": []}
    for position, edge in enumerate(edges):
        if not isinstance(edge, Mapping):
            raise field_error(GraphError, where, f"edge at position {position}", "edge", "an object", edge)
        for key, column in ends.items():
            end = edge.get(key)
            if not is_id(end) or end not in index:
                raise field_error(GraphError, where, _edge_label(edge), key, "the id of a vertex in 'nodes'", end,
                                  "add the vertex or mend the edge")
            column.append(index[end])
    return np.array(ends["source"], np.int32), np.array(ends["target"], np.int32)
