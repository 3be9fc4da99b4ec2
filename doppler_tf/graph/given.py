"""Graphs and topologies as callers give them: ready-made, as networkx graphs, by name or by file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import networkx as nx

from doppler_tf.errors import FormatError, GraphError, TopologyError, field_error, shown
from doppler_tf.graph.dataflow import GRAPH_SCHEMA, DataflowGraph
from doppler_tf.graph.fields import DOCUMENT_FIELDS
from doppler_tf.graph.records import graph_from_records, is_id, plain_values
from doppler_tf.graph.topology import Topology, preset
from doppler_tf.reading import read_json
from doppler_tf.schema import refuse_slips

# What `as_graph` and `as_topology` take.
GraphLike = DataflowGraph | nx.DiGraph | str | Path
TopologyLike = Topology | str | Path
# Suffixes of files in formats of others.
_FOREIGN = (".dot", ".gv", ".stg", ".xml", ".dax", ".graphml", ".gml")
_ELSEWHERE = "`convert` reads graphs of SAGA, WfCommons, STG and DOT"


def as_graph(source: GraphLike) -> DataflowGraph:
    """The graph that a caller means: the graph itself, a networkx graph whose attributes are the format's fields, or a file's path.

    Raises:
      FormatError: the file is missing or malformed.
      GraphError: the graph breaks a rule, or it is none; the message names file, vertex and field.
    """
    if isinstance(source, DataflowGraph):
        return source
    if isinstance(source, nx.Graph):
        return _from_networkx(source)
    if isinstance(source, str | os.PathLike):
        return _from_file(Path(source))
    raise field_error(GraphError, "graph", "", "type", "a DataflowGraph, a networkx.DiGraph or the path of a graph file",
                      source, f"{type(source).__name__} is none of these")


def as_topology(spec: TopologyLike) -> Topology:
    """The topology that a caller means: the topology itself, a preset (`p100x4`, `v100x8`, `h100x8`, `cpu:N`, `ideal:N`) or a file's path.

    Raises:
      TopologyError, FormatError: an unknown name, a file that is no topology, or something else.
    """
    if isinstance(spec, Topology):
        return spec
    if not isinstance(spec, str | os.PathLike):
        raise field_error(TopologyError, "topology", "", "type", "a Topology, a name such as 'cpu:4' or a topology file's path", spec,
                          f"{type(spec).__name__} is none of these")
    known = preset(str(spec))
    if known is not None:
        return known
    if not os.path.exists(spec):
        local = "; `local` is known to commands and to `distribute`" if spec == "local" else "; check the spelling"
        raise TopologyError(f"topology {str(spec)!r}: expected p100x4, v100x8, h100x8, cpu:N, ideal:N or a topology file, got neither "
                            f"a preset nor a file{local}")
    return Topology.from_json(read_json(spec), str(spec))


def _from_file(path: Path) -> DataflowGraph:
    if path.suffix.lower() in _FOREIGN:
        raise field_error(FormatError, str(path), "", "file", f"JSON ({GRAPH_SCHEMA})", path.suffix, _ELSEWHERE)
    record = read_json(path)
    if not isinstance(record, Mapping):
        raise field_error(FormatError, str(path), "", "document", f"a JSON object ({GRAPH_SCHEMA})", record)
    attributes = record.get("graph") or {}
    if not isinstance(attributes, Mapping):
        raise field_error(FormatError, str(path), "", "graph", "an object", attributes)
    schema = attributes.get("schema", record.get("schema", GRAPH_SCHEMA))
    if schema != GRAPH_SCHEMA:
        raise field_error(FormatError, str(path), "", "graph.schema", GRAPH_SCHEMA, schema)
    edges = record.get("edges", record.get("links"))
    for key, value in (("nodes", record.get("nodes")), ("edges", edges)):
        if not isinstance(value, list):
            raise field_error(FormatError, str(path), "", key, "a list", value, f"write a {GRAPH_SCHEMA} file; {_ELSEWHERE}")
    refuse_slips(record, DOCUMENT_FIELDS, GraphError, str(path))
    if record.get("directed") is False:
        raise field_error(FormatError, str(path), "", "directed", "true", False, "edges go from producer to consumer")
    attributes = with_model(attributes, lambda model: os.path.normpath(path.parent.absolute() / model), str(path))
    return graph_from_records(record["nodes"], edges, {"name": path.name.split(".")[0], **attributes}, str(path))


def with_model(attributes: Mapping, changed: Callable[[str], str], where: str) -> Mapping:
    """The attributes with another path to the folder of a captured model: absolute in memory, relative to the file in a file."""
    if "captured" not in attributes:
        return attributes
    record = attributes["captured"]
    if not isinstance(record, Mapping) or not isinstance(record.get("model"), str):
        raise field_error(GraphError, where, "", "graph.captured", "an object with 'model', the folder of the captured model", record)
    return {**attributes, "captured": {**record, "model": changed(record["model"])}}


def _from_networkx(source: nx.Graph) -> DataflowGraph:
    where = str(source.graph.get("name") or "networkx graph")
    if not source.is_directed():
        raise field_error(GraphError, where, "", "graph", "a networkx.DiGraph", type(source).__name__)
    for key in source:
        if not is_id(key):
            raise field_error(GraphError, where, f"vertex {shown(key)}", "id", "an integer or a string", key,
                              'use networkx.convert_node_labels_to_integers(graph, label_attribute="name")')
    named = ({**data, "name": str(data["name"])} if data.get("name") is not None else data for _, data in source.nodes(data=True))
    nodes = [{**plain_values(data), "id": key} for key, data in zip(source, named, strict=True)]
    edges = [{**plain_values(data), "source": u, "target": v} for u, v, data in source.edges(data=True)]
    return graph_from_records(nodes, edges, {**source.graph, "name": where}, where)
