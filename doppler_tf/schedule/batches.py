"""Several calls of one graph, some of them at once, as one graph: what runs, simulates and places a graph does so with batches in flight.

A call of the graph is a batch. Batch b + K may begin when batch b is done, so that at most K batches are in flight. First vertices of
later batches wait for the last ones of a batch. Where there are several of both, a vertex without work (`token`) waits for all of these,
and says that the batch is done. Variables that a batch updates reach the next batch
as tensors. Where its tiles of them are others, it assembles them from those of the batch before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import TOKEN, DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike, as_graph, as_topology
from doppler_tf.graph.records import graph_from_records, graph_to_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batch_state import BatchState, Box, Piece
from doppler_tf.schedule.dispatch import queue_keys
from doppler_tf.schedule.trace import Trace
from doppler_tf.schema import check_integer

TOKEN_BYTES = 4


@dataclass(frozen=True, eq=False)
class Batches:
    """Consecutive calls of one graph.

    Attributes:
      single: the graph of one call; graph: that of all.
      single_costs, costs: of both.
      repeats, in_flight: calls, and how many are worked on at once.
      vertex: int32 [repeats, N], the vertex of `graph` that stands for each vertex of `single` in each batch. A variable that the batch
        before has updated has no vertex of its own: -1.
      tokens, joins: int32 rows (batch, vertex of `graph`, the vertex of `graph` on whose device it runs). Joins assemble what a
        batch takes from the one before.
      carried: by input vertex of `single`, the tensor of `single` whose value the next batch takes in its place.
    """

    single: DataflowGraph
    single_costs: CostModel
    graph: DataflowGraph
    costs: CostModel
    repeats: int
    in_flight: int
    vertex: np.ndarray
    tokens: np.ndarray
    joins: np.ndarray
    carried: Mapping[int, int]

    def tensor(self, batch: int, tensor: int) -> int:
        """The tensor of `graph` that stands for one of `single` in a batch."""
        v = int(self.single.tensor_producer[tensor])
        while batch and v in self.carried:
            batch, tensor = batch - 1, self.carried[v]
            v = int(self.single.tensor_producer[tensor])
        return int(self.graph.tensor_ptr[self.vertex[batch, v]]) + tensor - int(self.single.tensor_ptr[v])

    def assignment(self, pattern: Sequence[Assignment], method: str | None = None) -> Assignment:
        """Assigns batch b as `pattern[b % len(pattern)]` says, the oldest batch first on each device.

        Within a batch the order is that of the assignment's rule. The order of `fifo` depends on time, so that of b-levels replaces it.
        A single batch keeps its rule.

        Args:
          pattern: assignments of `single`; method: of the result (default: the first one's).

        Raises:
          AssignmentError: one for the rule `order` has neither a priority nor an order.
        """
        method = pattern[0].method if method is None else method
        if self.repeats == 1:  # its vertices are those of `single`, in the same order
            return replace(pattern[0], method=method, proven_bound_s=0.0)
        device = np.full(self.graph.num_vertices, -1, np.int32)
        order, work = [], self.single.work_vertices
        for b in range(self.repeats):
            mine = pattern[b % len(pattern)]
            device[self.vertex[b, work]] = mine.device[work]
            (_, joins, reader), (_, tokens, beside) = (rows[rows[:, 0] == b].T for rows in (self.joins, self.tokens))
            device[joins], device[tokens] = device[reader], device[beside]
            order += [joins, self.vertex[b, self._sequence(mine)], tokens]
        priority = np.zeros(self.graph.num_vertices)
        priority[np.concatenate(order)] = np.arange(self.graph.work_vertices.size)
        return Assignment(device, None, method, "order", priority)

    def pattern(self, assignment: Assignment) -> list[Assignment]:
        """The assignments of `single`, by batch, that make up an assignment of `graph`."""
        work, pattern = self.single.work_vertices, []
        keys = queue_keys(self.graph, self.costs, assignment, "order") if assignment.dispatch == "order" else None
        for b in range(self.repeats):
            device = np.full(self.single.num_vertices, -1, np.int32)
            device[work] = assignment.device[self.vertex[b, work]]
            priority = None if keys is None else keys[self.vertex[b]]
            pattern.append(replace(assignment, device=device, order=None, priority=priority, proven_bound_s=0.0))
        return pattern

    def figures(self, trace: Trace) -> dict[str, float]:
        """`throughput_per_s`: batches by second of the makespan; `latency_s`: the median of a batch."""
        return {"throughput_per_s": self.repeats / trace.makespan_s if trace.makespan_s else np.inf,
                "latency_s": float(np.median(self.latencies_s(trace)))}

    def latencies_s(self, trace: Trace) -> np.ndarray:
        """float64 [repeats]: seconds from a batch's first start to its last end. Args: trace: of these batches, also with a host."""
        start_s, end_s = np.zeros((2, max(self.graph.num_vertices, trace.vertex.max(initial=0) + 1)))
        start_s[trace.vertex], end_s[trace.vertex] = trace.start_s, trace.end_s
        mine = self.vertex[:, self.single.work_vertices]
        return end_s[mine].max(axis=1) - start_s[mine].min(axis=1)

    def _sequence(self, assignment: Assignment) -> np.ndarray:
        """The vertices of a batch, the most urgent first."""
        keys = queue_keys(self.single, self.single_costs, assignment, "b_level" if assignment.dispatch == "fifo" else assignment.dispatch)
        work, position = self.single.work_vertices, np.empty(self.single.num_vertices, np.int64)
        position[self.single.topological_order] = np.arange(self.single.num_vertices)
        return work[np.lexsort((position[work], keys[work]))]


def repeat_graph(graph: GraphLike, topology: TopologyLike, repeats: int, in_flight: int, state: BatchState | None = None) -> Batches:
    """The graph of `repeats` calls, of which `in_flight` are worked on at once.

    Args:
      graph, topology: as in `build_costs`.
      state: None: as the graph records it.

    Raises:
      ConfigError: a number below 1. CostError: as `build_costs`. GraphError: as `BatchState.of`.
    """
    check_integer(repeats, 1, "batches", "repeat")
    check_integer(in_flight, 1, "batches", "in_flight")
    graph, topology = as_graph(graph), as_topology(topology)
    builder = _Builder(graph, topology, BatchState.of(graph) if state is None else state, repeats)
    first = []
    for b in range(repeats):
        first.append(len(builder.nodes))
        builder.add(b, gated=b >= in_flight, done=b + in_flight < repeats, in_flight=in_flight)
    attributes = {**graph.attributes, "name": graph.name, "batches": {"repeat": repeats, "in_flight": in_flight, "first": first},
                  "results": [row for b in range(repeats) for row in builder.results(b)]}
    joined = graph_from_records(builder.nodes, builder.edges, attributes, graph.name)
    index = joined.vertex_of
    vertex = np.array([[-1 if key is None else index[key] for key in row] for row in builder.keys], np.int32)
    tokens, joins = (np.array([(b, index[key], index[beside]) for b, key, beside in rows], np.int32).reshape(-1, 3)
                     for rows in (builder.tokens, builder.joins))
    return Batches(graph, build_costs(graph, topology), joined, build_costs(joined, topology), repeats, in_flight, vertex, tokens,
                   joins, {v: pieces[0].tensor for v, pieces in builder.carried.items() if v in builder.whole})


class _Builder:
    """Records of the joined graph. A vertex of batch b has the id "b/id", a shared input "shared/id", a join for an input "b/join/id"."""

    def __init__(self, graph: DataflowGraph, topology: Topology, state: BatchState, repeats: int):
        self.graph, self.repeats = graph, repeats
        self.own, self.in_order = frozenset(state.own), tuple(state.in_order)
        self.carried = {v: (Piece(made, None, ()),) if isinstance(made, int | np.integer) else made for v, made in state.carried.items()}
        self.whole = {v for v, made in state.carried.items() if isinstance(made, int | np.integer)}
        self.launch_s = [device.launch_s for device in topology.devices]
        self.single_nodes, self.single_edges, _ = graph_to_records(graph)
        self.ends = list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
        has_successor, has_predecessor = np.zeros((2, graph.num_vertices), bool)
        has_successor[graph.sources] = True
        has_predecessor[graph.targets[graph.work_edges]] = True
        together = {self.single_nodes[v].get("colocate") for v in self.in_order} - {None}
        self.one_device = {v for v, node in enumerate(self.single_nodes)
                           if (v in self.in_order and node.get("pin") is None) or node.get("colocate") in together}
        self.first = graph.work_vertices[~has_predecessor[graph.work_vertices]].tolist()
        self.last = graph.work_vertices[~has_successor[graph.work_vertices]].tolist()
        self.nodes: list[dict] = []
        self.edges: list[dict] = []
        self.keys: list[list[str | None]] = []
        self.tokens: list[tuple[int, str, str]] = []
        self.joins: list[tuple[int, str, str]] = []
        self._joined = set[str]()
        self._done: dict[int, list[str]] = {}

    def add(self, b: int, gated: bool, done: bool, in_flight: int) -> None:
        """Adds batch b. Args: gated: it waits for batch b - in_flight; done: a later batch waits for it."""
        graph = self.graph
        self.keys.append([self._key(b, v) for v in range(graph.num_vertices)])
        for v, node in enumerate(self.single_nodes):
            key = self.keys[b][v]
            if key is None or (b and graph.is_input[v] and v not in self.own):
                continue
            new = {**node, "id": key}
            if self.repeats > 1 and (not graph.is_input[v] or v in self.own):
                new["name"] = f"batch {b}: {node['name']}"
            if v in self.one_device:
                new["colocate"] = "in order"
            elif "colocate" in node:
                new["colocate"] = f"{b}/{node['colocate']}"
            if node.get("kernel") is not None:
                new["kernel"] = {**node["kernel"], "operands": [self._operand(b, operand) for operand in node["kernel"]["operands"]]}
            self.nodes.append(new)
        edges: dict[tuple, dict] = {}
        for edge, (u, w) in zip(self.single_edges, self.ends, strict=True):
            source, output, cut = self._source(b, u, edge.get("output", 0))
            new = {**edge, "source": source, "target": self.keys[b][w], "output": output}
            if b and u in self.whole:  # what came from an input now comes from the batch before
                new = {key: new[key] for key in ("source", "target", "output")}
            if (known := edges.setdefault((source, new["target"], output), new)) is not new and "bytes" in known and cut is not None:
                known["bytes"] += new["bytes"]  # two tiles of one
            if b and len(self.carried.get(u, ())) > 1 and source not in self._joined:
                self._join(b, u, source, new["target"])
        if b:
            for before, after in zip(self.in_order[-1:], self.in_order[:1], strict=True):
                edge = {"source": self.keys[b - 1][before], "target": self.keys[b][after], "bytes": 0}
                edges.setdefault((edge["source"], edge["target"], 0), edge)
        if gated:
            for v in self.first:
                for source in self._done[b - in_flight]:
                    edges.setdefault((source, self.keys[b][v], 0), {"source": source, "target": self.keys[b][v], "bytes": 0})
        self.edges += edges.values()
        if done:
            last = [self.keys[b][v] for v in self.last]
            self._done[b] = last if 1 in (len(self.first), len(last)) else [self._token_behind(b, last)]

    def results(self, b: int) -> list[dict]:
        """What stays of batch b: outputs, and after the last batch what each updates, too."""
        return [{**self.graph.record_of(t), "vertex": self.keys[b][self.graph.tensor_producer[t]]}
                for t in self.graph.result_tensors(updates=b + 1 == self.repeats)]

    def _token_behind(self, b: int, last: Sequence[str]) -> str:
        """A token beside each last vertex, and one that waits for these."""
        return self._token(b, f"{b}/done", last[0], [self._token(b, f"{b}/done/{v}", key, [key]) for v, key in zip(self.last, last,
                                                                                                                strict=True)])

    def _token(self, b: int, key: str, beside: str, after: Sequence[str]) -> str:
        self.nodes.append({"id": key, "name": f"batch {b}: done", "kind": TOKEN, "meta_op": "done", "output_bytes": TOKEN_BYTES,
                           "exec_s": self.launch_s,
                           "kernel": {"op": TOKEN, "operands": [{"vertex": source} for source in after], "params": {}}})
        self.edges += [{"source": source, "target": key} for source in after]
        self.tokens.append((b, key, beside))
        return key

    def _key(self, b: int, v: int) -> str | None:
        """The id of a vertex in batch b; None: another vertex stands for it."""
        if b and v in self.carried:
            return None
        shared = self.graph.is_input[v] and v not in self.own
        return f"shared/{self.graph.ids[v]}" if shared else f"{b}/{self.graph.ids[v]}"

    def _source(self, b: int, v: int, output: int) -> tuple[str, int, Box | None]:
        """Id and output of the tensor that stands for an output of v in batch b, and what of it does; None: all."""
        cut = None
        while b and v in self.carried:
            pieces = self.carried[v]
            if len(pieces) > 1:
                return f"{b}/join/{self.graph.ids[v]}", 0, None
            tensor, cut, _ = pieces[0]
            v = int(self.graph.tensor_producer[tensor])
            b, output = b - 1, tensor - int(self.graph.tensor_ptr[v])
        return self.keys[b][v], output, cut

    def _operand(self, b: int, operand: Mapping) -> dict:
        source, output, cut = self._source(b, self.graph.vertex_of[operand["vertex"]], operand.get("output", 0))
        box = operand.get("slice")
        if cut is not None:
            box = cut if box is None else [[start + a, start + b] for (start, _), (a, b) in zip(cut, box, strict=True)]
        return {**operand, "vertex": source, "output": output, "slice": box}

    def _join(self, b: int, v: int, key: str, reader: str) -> None:
        """A vertex that assembles input v of batch b from tensors of the batch before, beside a reader."""
        self._joined.add(key)
        pieces, node, kernel = self.carried[v], self.single_nodes[v], self.graph.kernel[v]
        makers = [int(self.graph.tensor_producer[piece.tensor]) for piece in pieces]
        shape = [stop - start for start, stop in kernel.params["box"]]
        self.nodes.append({"id": key, "name": f"batch {b}: {node['name']}", "kind": "retile", "flops": 0, "meta_op": "retile",
                           "role": "shard", "output_bytes": node["output_bytes"], "kernel": {
                               "op": "assemble", "params": {"shape": shape, "boxes": [piece.box for piece in pieces]},
                               "operands": [{"vertex": self.keys[b - 1][maker], "slice": piece.cut}
                                            for piece, maker in zip(pieces, makers, strict=True)]}})
        for piece, maker in zip(pieces, makers, strict=True):
            share = math.prod(stop - start for start, stop in piece.box) / math.prod(shape)
            self.edges.append({"source": self.keys[b - 1][maker], "target": key, "bytes": node["output_bytes"] * share})
        self.joins.append((b, key, reader))
