"""The JSON of SAGA (`anrg-saga`), a library of scheduling algorithms: a task graph and, in most files, a network.

What is assumed, as SAGA's own simulation does: a task takes `cost` / `speed` of its node, a dependency `size` / `speed` of the link, or
nothing on one node; each dependency is a message of its own; no link waits. Units are as in the file: a cost becomes `flops`, a node's
speed `flops_per_s`, a size `output_bytes`, a link's speed `bandwidth_bytes_per_s`. Links work in both directions. Nodes that share no link,
or one of speed 0, cannot exchange anything. An infinite speed may stand as null.

Versions 2 write `tasks` and `dependencies`, `nodes` and `edges`, with `name`, `cost`, `size` and `speed`; versions 0 networkx's node-link
data with `id` and `weight`. Both are read. A file may hold an instance (`task_graph` and `network`) or a task graph alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.foreign.fields import Foreign, checked_number, member, outputs_by_edge, texts_of_ids
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology

# The speed within a node that SAGA's own files have.
_WITHIN = 1e9
_NAMES, _EDGES = ("name", "id"), ("dependencies", "edges", "links")


def is_saga(record: Any) -> bool:
    """Whether a JSON document looks like one of SAGA's."""
    if not isinstance(record, Mapping):
        return False
    nodes = record.get("nodes")
    weighted = isinstance(nodes, list) and bool(nodes) and all(isinstance(node, Mapping) and "weight" in node for node in nodes)
    return "task_graph" in record or {"tasks", "dependencies"} <= set(record) or weighted


def read_saga(record: Any, where: str, name: str) -> Foreign:
    """The graph and, if it has a network, the topology of a document.

    Args:
      where: the file, for messages; name: of the graph if it has none.

    Raises:
      FormatError, GraphError, TopologyError: the document is damaged.
    """
    named = member(record, ("name",), str, where, "", name) or name
    alone = "task_graph" not in record
    tasks = record if alone else member(record, ("task_graph",), Mapping, where, "")
    graph = _graph(tasks, where, "task_graph" * (not alone), named)
    network = None if alone else member(record, ("network",), Mapping, where, "", None)
    return Foreign(graph, None if network is None else _topology(network, where, named))


def saga_record(graph: DataflowGraph, costs: CostModel | None) -> dict:
    """The document of a graph and, with costs, of a network: what a round trip gives back. Raises FormatError: SAGA cannot say it."""
    work = graph.work_vertices
    if graph.is_input.any() or (graph.colocate >= 0).any() or any(pin is not None for pin in graph.pin):
        raise FormatError(f"{graph.name}: expected a graph without inputs, pins and groups, got one with; SAGA has none of them")
    sizes = [graph.edge_bytes[e] if graph.edge_bytes[e] == graph.edge_bytes[e] else graph.tensor_bytes[graph.edge_tensor[e]]
             for e in range(graph.num_edges)]
    for values, field in ((graph.flops[work], "flops"), (sizes, "output_bytes")):
        if any(value != value for value in values):
            raise field_error(FormatError, graph.name, "", field, "a number for every vertex and edge", None, "SAGA divides it by a speed")
    for given, field, instead in ((graph.exec_s[work], "exec_s", "flops"), (graph.transfer_s, "transfer_s", "output_bytes")):
        if not np.isnan(given).all():
            raise field_error(FormatError, graph.name, "", field, f"none, as SAGA computes times from {instead} and speeds",
                              float(given[~np.isnan(given)][0]), "leave it out")
    ids = texts_of_ids(graph)
    tasks = {"tasks": [{"name": key, "cost": cost} for key, cost in zip(ids, graph.flops.tolist(), strict=True)],
             "dependencies": [{"source": ids[u], "target": ids[v], "size": float(size)}
                              for u, v, size in zip(graph.sources.tolist(), graph.targets.tolist(), sizes, strict=True)]}
    if costs is None:
        return {"name": graph.name, "task_graph": tasks}
    names, speeds = costs.topology.device_names, costs.topology.bandwidth_bytes_per_s.tolist()
    if any(device.flops_per_s is None for device in costs.topology.devices):
        raise field_error(FormatError, costs.topology.name, "", "flops_per_s", "a number for every device", None, "SAGA calls it speed")
    differ = np.argwhere(costs.topology.bandwidth_bytes_per_s != costs.topology.bandwidth_bytes_per_s.T)
    if differ.size:
        one, other = differ[0].tolist()
        raise field_error(FormatError, costs.topology.name, f"link {names[one]!r} to {names[other]!r}", "bandwidth_bytes_per_s",
                          f"that of the other direction ({speeds[other][one]:g})", speeds[one][other], "SAGA's links have one speed")
    return {"name": graph.name, "task_graph": tasks, "network": {
        "nodes": [{"name": device.name, "speed": device.flops_per_s} for device in costs.topology.devices],
        "edges": [{"source": names[s], "target": names[t],
                   "speed": _WITHIN if s == t else speeds[s][t] if math.isfinite(speeds[s][t]) else None}
                  for s in range(len(names)) for t in range(s, len(names))]}}


def _graph(record: Mapping, where: str, what: str, name: str) -> DataflowGraph:
    nodes, edges = [], []
    for k, task in enumerate(member(record, ("tasks", "nodes"), list, where, what)):
        label = f"task {k}"
        nodes.append({"id": _key(task, _NAMES, where, label), "flops": _figure(task, ("cost", "weight"), where, label)})
    for k, edge in enumerate(member(record, _EDGES, list, where, what)):
        label = f"dependency {k}"
        edges.append({"source": _key(edge, ("source",), where, label), "target": _key(edge, ("target",), where, label),
                      "bytes": _figure(edge, ("size", "weight"), where, label)})
    sent = outputs_by_edge(edges)
    for node in nodes:
        if node["id"] in sent:
            node["output_bytes"] = [edge["bytes"] for edge in sent[node["id"]]]
    return graph_from_records(nodes, edges, {"name": name}, where)


def _topology(record: Mapping, where: str, name: str) -> Topology:
    devices, place = [], {}
    for k, node in enumerate(member(record, ("nodes",), list, where, "network")):
        key = _key(node, _NAMES, where, f"network: node {k}")
        place[key] = k
        devices.append({"name": str(key), "flops_per_s": _figure(node, ("speed", "weight"), where, f"network: node {k}")})
    speeds = [[0.0] * len(devices) for _ in devices]
    listed = []
    for k, edge in enumerate(member(record, ("edges", "links"), list, where, "network")):
        ends = [_key(edge, (end,), where, f"network: edge {k}") for end in ("source", "target")]
        for end in ends:
            if end not in place:
                raise field_error(FormatError, where, f"network: edge {k}", "source, target", "names of nodes of the network", end)
        if ends[0] != ends[1]:
            infinite = edge.get("speed", edge.get("weight", 0)) in (None, math.inf)
            speed = math.inf if infinite else _figure(edge, ("speed", "weight"), where, f"network: edge {k}")
            listed.append((place[ends[0]], place[ends[1]], speed))
    for source, target, speed in listed:
        speeds[target][source] = speed
    for source, target, speed in listed:  # where both directions are listed, each has its own
        speeds[source][target] = speed
    return Topology.from_json({"name": name, "devices": devices, "link_slots": None,
                               "links": {"bandwidth_bytes_per_s": speeds}}, f"{where}: network")


def _key(record: Any, names: tuple[str, ...], where: str, what: str) -> int | str:
    if not isinstance(record, Mapping):
        raise field_error(FormatError, where, "", what, "an object", record)
    key = next((record[name] for name in names if name in record), None)
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise field_error(FormatError, where, what, names[0], "a name", key)
    return key


def _figure(record: Mapping, names: tuple[str, ...], where: str, what: str) -> float:
    """A number, in versions 0 also as an object with its type and value."""
    value = next((record[name] for name in names if name in record), None)
    if isinstance(value, Mapping) and value.get("type") == "float":
        value = value.get("value")
    return checked_number(value, names[0], where, what)
