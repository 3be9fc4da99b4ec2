"""DOT of Graphviz.

What is assumed: a vertex with `weight` or `cost` takes as many seconds on every device, one with `size` has as many operations (`flops`, as
in DAGGEN and SimGrid). An edge with `weight` or `cost` takes as many seconds between two devices, one with `size` is a tensor of as many
bytes, and one with neither carries nothing. Each edge is a tensor of its own. Fields of `doppler-graph/1` mean the same here (`exec_s`,
`flops`, `output_bytes`, `pin`, `colocate`, `kind`, `bytes`, `transfer_s`, `output`). Their case does not matter. Other attributes (`label`,
`color`) are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.foreign.dot_parser import parse_dot
from doppler_tf.formats.foreign.fields import Foreign, checked_number, outputs_by_edge, texts_of_ids
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records, graph_to_records
from doppler_tf.schema import field_meant

_OF_VERTICES = {"weight": "exec_s", "cost": "exec_s", "exec_s": "exec_s", "size": "flops", "flops": "flops", "output_bytes": "output_bytes"}
_OF_EDGES = {"weight": "transfer_s", "cost": "transfer_s", "transfer_s": "transfer_s", "size": "bytes", "bytes": "bytes",
             "output": "output"}
_TEXTS = ("name", "kind", "meta_op", "role", "pin", "colocate")
# Attributes by which Graphviz draws, and that graphs here have other uses for.
_DRAWN = ("id", "key", "source", "target", "kernel")
# Of Graphviz, too, and no slip for `weight`.
_KEPT = ("height", *_TEXTS, "input")


def read_dot(text: str, where: str, name: str) -> Foreign:
    """The graph of a file. Args: where: the file, for messages; name: of a graph without one. Raises FormatError, GraphError."""
    found = parse_dot(text, where)
    if not found.directed:
        raise field_error(FormatError, where, "", "graph", "a digraph, whose edges go from producer to consumer", "graph")
    nodes = [{**_fields(attributes, _OF_VERTICES, where, f"vertex {key!r}"), "id": key} for key, attributes in found.vertices.items()]
    edges = [{**_fields(attributes, _OF_EDGES, where, f"edge {source!r} -> {target!r}"), "source": source, "target": target}
             for source, target, attributes in found.edges]
    sized = {node["id"] for node in nodes if "output_bytes" in node}
    for edge in edges:
        if "bytes" not in edge and edge["source"] not in sized:
            edge.setdefault("transfer_s", 0.0)
    if not any("output" in edge for edge in edges):
        outputs_by_edge([edge for edge in edges if edge["source"] not in sized])
    graph = graph_from_records(nodes, edges, {"name": found.name or name}, where)
    without = np.flatnonzero(np.isnan(graph.exec_s[:, 0]) & np.isnan(graph.flops) & ~graph.is_input)
    if without.size:
        raise field_error(FormatError, where, f"vertex {graph.ids[without[0]]!r}", "weight", "it (seconds) or size (operations)", None)
    return Foreign(graph)


def dot_text(graph: DataflowGraph) -> str:
    """The file of a graph: what `read_dot` gives back, with strings as ids and without kernels.

    Raises:
      FormatError: times by device, or outputs of several sizes of which nobody consumes one, which DOT has no words for; ids that would be
        the same text.
    """
    if graph.exec_s.shape[1] > 1:
        raise field_error(FormatError, graph.name, "", "exec_s", "one number a vertex", f"{graph.exec_s.shape[1]} numbers, one a device")
    texts_of_ids(graph)
    carried = np.bincount(graph.edge_tensor, minlength=graph.num_tensors) > 0
    lost = np.flatnonzero(~carried & (np.diff(graph.tensor_ptr)[graph.tensor_producer] > 1) & (graph.tensor_bytes > 0))
    if lost.size:
        v = int(graph.tensor_producer[lost[0]])
        raise field_error(FormatError, graph.name, f"vertex {graph.vertex_label(v)!r}", "output_bytes",
                          "an edge for each of several outputs", f"none for output {int(lost[0] - graph.tensor_ptr[v])}",
                          "DOT gives sizes to edges")
    nodes, edges, _ = graph_to_records(graph)
    lines = [f"digraph {_quoted(graph.name)} {{"]
    for node in nodes:
        fields = {key: value for key, value in node.items() if key not in ("id", "kernel") and not isinstance(value, list | dict)}
        lines.append(f"  {_quoted(node['id'])} [{_attributes(fields)}];")
    for edge, size in zip(edges, graph.tensor_bytes[graph.edge_tensor].tolist(), strict=True):
        fields = {"output": 0, **({} if math.isnan(size) else {"bytes": size}), **edge}
        lines.append(f"  {_quoted(fields.pop('source'))} -> {_quoted(fields.pop('target'))} [{_attributes(fields)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _attributes(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{_quoted(key)}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _fields(attributes: Mapping[str, str], numbers: Mapping[str, str], where: str, what: str) -> dict[str, Any]:
    """Attributes of a vertex or an edge as fields of `doppler-graph/1`."""
    fields: dict[str, Any] = {}
    last = {written.lower(): (written, text) for written, text in attributes.items()}
    for name, (written, text) in last.items():
        if name in numbers:
            field, value = numbers[name], _number(text, name, where, what)
            if fields.setdefault(field, value) != value:
                raise field_error(FormatError, where, what, written, f"one of {', '.join(n for n in numbers if numbers[n] == field)}", text,
                                  "they say the same")
        elif name == "pin" and text in ("true", "false"):
            continue  # Graphviz keeps such a vertex in its place
        elif name == "pin" and text.isascii() and text.isdigit():
            fields[name] = int(text[:9])
        elif name == "input":
            if text not in ("true", "false"):
                raise field_error(FormatError, where, what, written, "true or false", text)
            fields |= {"input": True} if text == "true" else {}
        elif name not in _KEPT and (meant := field_meant(name, numbers)):
            raise field_error(FormatError, where, what, written, f"the attribute {meant}", text, "rename it")
        elif name not in _DRAWN:
            fields[name if name in _TEXTS else written] = text
    return fields


def _number(text: str, name: str, where: str, what: str) -> int | float:
    try:
        value = float(text)
    except ValueError:
        raise field_error(FormatError, where, what, name, "a number", text, "give seconds, operations or bytes without a unit") from None
    value = checked_number(value, name, where, what)
    return int(value) if name == "output" and value.is_integer() else value
