"""The native graph format `doppler-graph/1` (networkx node-link JSON), and networkx graphs in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import networkx as nx
import numpy as np

from doppler_tf.errors import FormatError, GraphError, field_error
from doppler_tf.formats.files import read_json, write_json
from doppler_tf.graph import GRAPH_SCHEMA, DataflowGraph
from doppler_tf.graph_records import collector_paused, graph_from_records, graph_to_records


@collector_paused()
def read_graph(source: str | Path | nx.DiGraph) -> DataflowGraph:
    """Reads a graph from a `doppler-graph/1` file or from a networkx graph whose attributes are the format's fields.

    Args:
      source: a MultiDiGraph if edges carry several outputs of one vertex to another.

    Raises:
      FormatError: the file is missing or malformed.
      GraphError: the graph breaks a rule; the message names file, vertex and field.
    """
    if isinstance(source, nx.Graph):
        return _from_networkx(source)
    path = Path(source)
    record = read_json(path)
    if not isinstance(record, Mapping):
        raise field_error(FormatError, str(path), "", "document", f"a JSON object ({GRAPH_SCHEMA})", record)
    edges = record.get("edges", record.get("links"))
    for key, value in (("nodes", record.get("nodes")), ("edges", edges)):
        if not isinstance(value, list):
            raise field_error(FormatError, str(path), "", key, "a list", value, f"write a {GRAPH_SCHEMA} file")
    attributes = record.get("graph") or {}
    if not isinstance(attributes, Mapping):
        raise field_error(FormatError, str(path), "", "graph", "an object", attributes)
    if record.get("directed") is False:
        raise field_error(FormatError, str(path), "", "directed", "true", False, "edges go from producer to consumer")
    schema = attributes.get("schema", GRAPH_SCHEMA)
    if schema != GRAPH_SCHEMA:
        raise field_error(FormatError, str(path), "", "graph.schema", GRAPH_SCHEMA, schema)
    attributes = _with_model(attributes, lambda model: os.path.normpath(path.parent.absolute() / model), str(path))
    return graph_from_records(record["nodes"], edges, {"name": path.name.split(".")[0], **attributes}, str(path))


@collector_paused()
def write_graph(path: str | Path, graph: DataflowGraph) -> None:
    """Writes a graph atomically; `read_graph` gives it back with the same hash."""
    nodes, edges, attributes = graph_to_records(graph)
    attributes = _with_model(attributes, lambda model: os.path.relpath(model, Path(path).parent.absolute()), str(path))
    pairs = np.unique(np.stack([graph.sources, graph.targets]), axis=1).shape[1]
    write_json(path, {"directed": True, "multigraph": pairs < graph.num_edges, "graph": attributes, "nodes": nodes, "edges": edges})


def _with_model(attributes: Mapping, changed: Callable[[str], str], where: str) -> Mapping:
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
    nodes = [{**data, "id": _plain(node)} for node, data in source.nodes(data=True)]
    edges = [{**data, "source": _plain(u), "target": _plain(v)} for u, v, data in source.edges(data=True)]
    return graph_from_records(nodes, edges, {**source.graph, "name": where}, where)


def _plain(node):
    """A NumPy integer as Python's own, anything else as it is."""
    return int(node) if isinstance(node, np.integer) else node
