"""The dataflow graph: vertices are operations, edges are tensors passed on. All per-vertex and per-edge data are arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

GRAPH_SCHEMA = "doppler-graph/1"
# Operations of kernels: a vertex that stands for several; one without work, which takes any tensors and makes one number.
MERGED, TOKEN = "merged", "token"


@dataclass(frozen=True)
class Operand:
    """One input tensor of a kernel: the vertex that makes it, which of its outputs, and per axis the [start, stop) taken (None: all)."""

    vertex: int
    slice: tuple[tuple[int, int], ...] | None = None
    output: int = 0


@dataclass(frozen=True)
class Kernel:
    """What a vertex executes: an operation name, its operands in order and its parameters."""

    op: str
    operands: tuple[Operand, ...]
    params: Mapping[str, Any]


@dataclass(frozen=True)
class CSR:
    """Compressed adjacency: the edges of vertex v are `edge[ptr[v]:ptr[v+1]]`, their other ends `vertex[...]`."""

    ptr: np.ndarray
    vertex: np.ndarray
    edge: np.ndarray


@dataclass(frozen=True, eq=False)
class DataflowGraph:
    """An immutable dataflow graph of N vertices, E edges and T tensors.

    A tensor is one output of one vertex. Tensors are numbered by vertex, then by output. If every vertex has one output, tensor v is
    the output of vertex v.

    Made by `graph_records.graph_from_records`, which checks the RULES: vertex ids are unique; edges join known vertices, at
    most one for each source, target and output; there is no cycle; there is at least one vertex that is not an input; input vertices
    have no predecessors; a kernel's operands arrive by edges; the steps of a `fused` kernel (see `data.fuse`) take its operands and
    earlier steps; every number given is finite and >= 0, except that an `exec_s` may be
    infinite on some devices.

    Attributes:
      name: the workload's name.
      ids: N vertex ids as given (JSON integers or strings).
      names, kinds, meta_op, role: N strings (None where not given, for the last two).
      flops: float64 [N], NaN where not given.
      tensor_ptr: int32 [N + 1], the tensors of vertex v are those from `tensor_ptr[v]` to `tensor_ptr[v + 1]`; at least one.
      tensor_bytes: float64 [T], NaN where not given.
      exec_s: float64 [N, K], explicit cost in seconds, K = 1 (all devices alike) or the number of devices; infinite where the device
        cannot run the vertex; NaN where not given.
      is_input: bool [N], resident everywhere at time 0, costs nothing, never assigned.
      kernel: N kernels or None.
      pin: N device indices, device names, device texts of TensorFlow ("/GPU:1") or None.
      colocate: int32 [N], group index, -1 for none; `groups` holds their names.
      sources, targets: int32 [E]; edge_output: int32 [E], which output of its source an edge carries.
      edge_bytes, transfer_s: float64 [E], NaN where not given.
      attributes: what else the graph's file says of it (`workload`, ...).
      vertex_notes, edge_notes: what else it says of a vertex or an edge, by index; only kept.
    """

    name: str
    ids: tuple[Hashable, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    meta_op: tuple[str | None, ...]
    role: tuple[str | None, ...]
    flops: np.ndarray
    tensor_ptr: np.ndarray
    tensor_bytes: np.ndarray
    exec_s: np.ndarray
    is_input: np.ndarray
    kernel: tuple[Kernel | None, ...]
    pin: tuple[int | str | None, ...]
    colocate: np.ndarray
    groups: tuple[str, ...]
    sources: np.ndarray
    targets: np.ndarray
    edge_output: np.ndarray
    edge_bytes: np.ndarray
    transfer_s: np.ndarray
    attributes: Mapping[str, Any] = field(default_factory=dict)
    vertex_notes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    edge_notes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def num_vertices(self) -> int:
        """All vertices, inputs included."""
        return len(self.ids)

    @property
    def num_edges(self) -> int:
        """All edges, those from inputs included."""
        return len(self.sources)

    @property
    def num_tensors(self) -> int:
        """T."""
        return len(self.tensor_bytes)

    @cached_property
    def single_outputs(self) -> bool:
        """True if every vertex has one output."""
        return self.num_tensors == self.num_vertices

    @cached_property
    def taken_inputs(self) -> frozenset[int]:
        """The input vertices whose tensors kernels take. Others are a part of the kernels that use them, such as frozen weights."""
        return frozenset(operand.vertex for kernel in self.kernel if kernel is not None for operand in kernel.operands
                         if self.is_input[operand.vertex])

    @cached_property
    def tensor_producer(self) -> np.ndarray:
        """int32 [T]: the vertex that makes each tensor."""
        return np.repeat(np.arange(self.num_vertices, dtype=np.int32), np.diff(self.tensor_ptr))

    @property
    def input_bytes(self) -> float:
        """Bytes of all inputs, weights among them; those that are not known do not count."""
        return float(np.nansum(self.tensor_bytes[self.is_input[self.tensor_producer]]))

    @cached_property
    def results(self) -> np.ndarray:
        """int32: the tensors that stay to the end of a run even where vertices take them, see `result_tensors`."""
        return np.array(self.result_tensors(), np.int32)

    def result_tensors(self, updates: bool = True) -> list[int]:
        """The tensors that the attribute `results` names, or else the record of a capture or a workload; in order, none twice.

        Inputs are none. What such a record names wrongly is passed over: who runs the graph reads it and says so.

        Args: updates: also new values of variables and weights, which in a row of batches only the last one keeps.
        """
        lists: list[Any] = []
        match self.attributes:
            case {"results": named}:
                lists = [named]
            case {"captured": {"outputs": outputs, "updates": updated}}:
                lists = [outputs, updated if updates else ()]
            case {"workload": {**workload}, "outputs": {**outputs}}:
                without = "training" in workload and not updates
                lists = [output["tiles"] for name, output in outputs.items()
                         if isinstance(output, Mapping) and "tiles" in output and not (without and str(name).startswith("new_"))]
        found = {self.tensor_of(record) for named in lists if isinstance(named, Sequence) for record in named}
        return sorted(found - {None})

    def tensor_of(self, record: Any) -> int | None:
        """The tensor that {`vertex`, `output` (0)} names, by the id of a vertex that is no input; None: none."""
        match record:
            case {"vertex": key, **others} if type(key) in (int, str) and key in self.vertex_of:
                v, output = self.vertex_of[key], others.get("output", 0)
                if type(output) is int and not self.is_input[v] and 0 <= output < self.tensor_ptr[v + 1] - self.tensor_ptr[v]:
                    return int(self.tensor_ptr[v]) + output
        return None

    def record_of(self, tensor: int) -> dict[str, Hashable]:
        """The record by which `tensor_of` finds a tensor."""
        v = int(self.tensor_producer[tensor])
        return {"vertex": self.ids[v], "output": int(tensor - self.tensor_ptr[v])}

    @cached_property
    def vertex_of(self) -> dict[Hashable, int]:
        """Vertices by id."""
        return {key: v for v, key in enumerate(self.ids)}

    @cached_property
    def edge_tensor(self) -> np.ndarray:
        """int32 [E]: the tensor that each edge carries."""
        return (self.tensor_ptr[self.sources] + self.edge_output).astype(np.int32)

    @cached_property
    def output_bytes(self) -> np.ndarray:
        """float64 [N]: bytes of all outputs of each vertex, NaN where not given."""
        return self.tensor_bytes if self.single_outputs else np.add.reduceat(self.tensor_bytes, self.tensor_ptr[:-1])

    @cached_property
    def work_vertices(self) -> np.ndarray:
        """int32: the vertices that are assigned to devices (not inputs), in index order."""
        return np.flatnonzero(~self.is_input).astype(np.int32)

    @cached_property
    def work_edges(self) -> np.ndarray:
        """int32: the edges whose source is not an input."""
        return np.flatnonzero(~self.is_input[self.sources]).astype(np.int32)

    @cached_property
    def successors(self) -> CSR:
        """Outgoing edges by vertex, then by output, in edge order."""
        by_tensor = _csr(self.edge_tensor, self.targets, self.num_tensors)
        return CSR(by_tensor.ptr[self.tensor_ptr], by_tensor.vertex, by_tensor.edge)

    @cached_property
    def predecessors(self) -> CSR:
        """Incoming edges by vertex, in edge order."""
        return _csr(self.targets, self.sources, self.num_vertices)

    @cached_property
    def topological_order(self) -> np.ndarray:
        """int32 [N]: every vertex after its predecessors, level by level, index order within a level."""
        order = np.argsort(self.level, kind="stable").astype(np.int32)
        return order[self.level[order] >= 0]

    @cached_property
    def levels(self) -> tuple[np.ndarray, ...]:
        """Vertices by the length of the longest path (in edges) that leads to them."""
        ends = np.cumsum(np.bincount(self.level[self.topological_order])).tolist()
        return tuple(self.topological_order[begin:end] for begin, end in zip([0, *ends], ends, strict=False))

    @cached_property
    def depth(self) -> int:
        """Vertices on the longest path, inputs not counted."""
        edges, work = self.work_edges, self.work_vertices
        return int(longest_paths(self.sources[edges], self.targets[edges], self.num_vertices)[work].max(initial=-1)) + 1

    @cached_property
    def level(self) -> np.ndarray:
        """int32 [N]: the length of the longest path that leads to a vertex, -1 on or behind a cycle."""
        return longest_paths(self.sources, self.targets, self.num_vertices)

    @cached_property
    def graph_hash(self) -> str:
        """SHA-256 over all that decides costs and legality: ids, costs, edges, pins and groups; not names."""
        digest = hashlib.sha256(GRAPH_SCHEMA.encode())
        digest.update(repr((self.ids, self.pin)).encode())
        of_outputs = () if self.single_outputs else (self.tensor_ptr, self.edge_output)
        for array in (self.flops, self.tensor_bytes, self.exec_s, self.is_input, self.colocate,
                      self.sources, self.targets, self.edge_bytes, self.transfer_s, *of_outputs):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def vertex_label(self, v: int) -> str:
        """The label of vertex v in messages and pictures: its name, and its id if that differs."""
        return self.names[v] if self.names[v] == str(self.ids[v]) else f"{self.names[v]} (id {self.ids[v]})"


def _csr(keys: np.ndarray, others: np.ndarray, num_vertices: int) -> CSR:
    edge = np.argsort(keys, kind="stable").astype(np.int32)
    ptr = np.zeros(num_vertices + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=num_vertices), out=ptr[1:])
    return CSR(ptr, others[edge].astype(np.int32), edge)


def longest_paths(sources: np.ndarray, targets: np.ndarray, num_vertices: int) -> np.ndarray:
    """Kahn's algorithm: int32 [N], edges on the longest path that leads to each vertex, -1 on or behind a cycle.

    In plain Python, which for one graph is done sooner than Numba is imported.
    """
    out = _csr(sources, targets, num_vertices)
    ptr, consumer = out.ptr.tolist(), out.vertex.tolist()
    missing = np.bincount(targets, minlength=num_vertices).tolist()
    length, queue = [0] * num_vertices, [v for v in range(num_vertices) if not missing[v]]
    for v in queue:  # the loop appends to it
        beyond = length[v] + 1
        for w in consumer[ptr[v]:ptr[v + 1]]:
            length[w] = max(length[w], beyond)
            missing[w] -= 1
            if not missing[w]:
                queue.append(w)
    return np.array([-1 if waits else edges for edges, waits in zip(length, missing, strict=True)], np.int32)
