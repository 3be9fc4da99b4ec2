"""The native graph format `doppler-graph/1` (networkx node-link JSON), and networkx graphs in memory."""

from __future__ import annotations

import os
from pathlib import Path

import networkx as nx
import numpy as np

from doppler_tf.formats.files import write_json
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import as_graph, with_model
from doppler_tf.graph.records import collector_paused, graph_to_records


@collector_paused()
def read_graph(source: str | Path | nx.DiGraph | DataflowGraph) -> DataflowGraph:
    """Reads a graph from a `doppler-graph/1` file or from a networkx graph whose attributes are the format's fields.

    NumPy's numbers and arrays are taken as numbers and lists. Other fields of vertices and edges are kept.

    Args:
      source: a MultiDiGraph if edges carry several outputs of one vertex to another.

    Raises:
      FormatError: the file is missing or malformed.
      GraphError: the graph breaks a rule; the message names file, vertex and field.
    """
    return as_graph(source)


@collector_paused()
def write_graph(path: str | Path, graph: DataflowGraph | nx.DiGraph) -> None:
    """Writes a graph atomically; `read_graph` gives it back with the same hash."""
    graph = as_graph(graph)
    nodes, edges, attributes = graph_to_records(graph)
    attributes = with_model(attributes, lambda model: os.path.relpath(model, Path(path).parent.absolute()), str(path))
    pairs = np.unique(np.stack([graph.sources, graph.targets]), axis=1).shape[1]
    write_json(path, {"directed": True, "multigraph": pairs < graph.num_edges, "graph": attributes, "nodes": nodes, "edges": edges})
