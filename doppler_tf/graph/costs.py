"""Costs of every vertex and transfer on a topology, and the devices that each vertex may use, as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from doppler_tf.errors import CostError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.device_scopes import devices_in_scope, is_scope
from doppler_tf.graph.given import GraphLike, TopologyLike, as_graph, as_topology
from doppler_tf.graph.links import narrow, neighbours
from doppler_tf.graph.topology import Topology


@dataclass(frozen=True, eq=False)
class CostModel:
    """Costs of one graph on one topology.

    Attributes:
      topology: where the graph runs.
      exec_s: float64 [N, D]; 0 for input vertices. Where a device cannot run a vertex, the mean over those that can: all figures are
        finite, and means over all devices are means over these.
      edge_bytes: float64 [E], bytes that cross a link (0 where the cost is explicit).
      explicit_transfer_s: float64 [E], NaN where the cost comes from the link.
      tensor_bytes: float64 [T], what a tensor occupies, in whole bytes (so that sums are exact).
      output_bytes: float64 [N], what all outputs of a vertex occupy.
      eligible: bool [N, D], False where the device cannot run the vertex.
      allowed: bool [N, D], False where a device is not eligible or a pin forbids it, for the vertex or one of its colocation group, or
        where no link leads there from any device of a neighbour.
      colocate: int32 [N], group index or -1.
    """

    topology: Topology
    exec_s: np.ndarray
    edge_bytes: np.ndarray
    explicit_transfer_s: np.ndarray
    tensor_bytes: np.ndarray
    output_bytes: np.ndarray
    eligible: np.ndarray
    allowed: np.ndarray
    colocate: np.ndarray

    @property
    def num_devices(self) -> int:
        """D."""
        return self.topology.num_devices

    @cached_property
    def memory_bytes(self) -> np.ndarray:
        """float64 [D]: capacity in whole bytes, infinite where there is no limit."""
        return np.floor([math.inf if d.memory_bytes is None else float(d.memory_bytes) for d in self.topology.devices])

    @cached_property
    def slots(self) -> np.ndarray:
        """int32 [D]: vertices that a device runs at once."""
        return np.array([device.slots for device in self.topology.devices], np.int32)

    @property
    def limited_memory(self) -> bool:
        """Whether any device has a memory limit."""
        return bool(np.isfinite(self.memory_bytes).any())

    def transfer_s(self, edge: int | np.ndarray, source: int | np.ndarray, target: int | np.ndarray):
        """Seconds that edge(s) take from device(s) `source` to `target`: the explicit cost, else latency + bytes / bandwidth; infinity
        where there is no link."""
        explicit, linked = self.explicit_transfer_s[edge], self.topology.linked[source, target]
        link = (self.topology.latency_s[source, target]
                + self.edge_bytes[edge] / np.where(linked, self.topology.bandwidth_bytes_per_s[source, target], 1.0))
        return np.where(np.equal(source, target), 0.0, np.where(linked, np.where(np.isnan(explicit), link, explicit), np.inf))

    @cached_property
    def mean_exec_s(self) -> np.ndarray:
        """float64 [N]: exec averaged over the devices."""
        return self.exec_s.mean(axis=1)

    @cached_property
    def mean_transfer_s(self) -> np.ndarray:
        """float64 [E]: transfer averaged over the links (0 without any)."""
        return self._over_links(np.mean, np.mean)

    @cached_property
    def slowest_transfer_s(self) -> np.ndarray:
        """float64 [E]: no transfer takes longer (0 without links)."""
        return self._over_links(np.max, np.max)

    def _over_links(self, of_latencies: Callable, of_inverses: Callable) -> np.ndarray:
        links = self.topology.links
        if not links.any():
            return np.zeros(len(self.edge_bytes))
        s_per_byte = 1.0 / self.topology.bandwidth_bytes_per_s[links]
        link = of_latencies(self.topology.latency_s[links]) + self.edge_bytes * of_inverses(s_per_byte)
        return np.where(np.isnan(self.explicit_transfer_s), link, self.explicit_transfer_s)

    @cached_property
    def planned_latency_s(self) -> np.ndarray:
        """float64 [D, D]: latencies to plan with; where there is no link, more than any schedule takes, so that it is taken last."""
        return np.where(self.topology.linked, self.topology.latency_s, 1.0 + 4.0 * self.longest_s)

    @cached_property
    def longest_s(self) -> float:
        """An upper bound on schedules without needless waiting: all vertices on their slowest device and all transfers over the slowest
        link, one after another."""
        return float(self.exec_s.max(axis=1).sum() + self.num_devices * self.slowest_transfer_s.sum())


@dataclass(frozen=True, eq=False)
class Noise:
    """Factors on the modelled times. They are drawn beforehand, so that every simulator uses the same.

    Attributes:
      vertex: float64 [N], factor on exec.
      transfer: float64 [N, D], factor on the transfer of a producer's output to a destination.
    """

    vertex: np.ndarray
    transfer: np.ndarray


def draw_noise(num_vertices: int, num_devices: int, sigma: float, seed: int) -> Noise:
    """Log-normal factors of mean 1 and shape `sigma`, from one `numpy.random.Generator`; vertices first, then transfers."""
    rng = np.random.default_rng(seed)
    mean = -0.5 * sigma**2
    return Noise(rng.lognormal(mean, sigma, num_vertices), rng.lognormal(mean, sigma, (num_vertices, num_devices)))


def graph_with_costs(graph: GraphLike, topology: TopologyLike | CostModel) -> tuple[DataflowGraph, CostModel]:
    """What a caller gives as graph and topology, or as ready-made costs.

    Raises:
      GraphError, FormatError, TopologyError: it is none. CostError: as `build_costs`, or the costs are of another graph.
    """
    graph = as_graph(graph)
    if not isinstance(topology, CostModel):
        return graph, build_costs(graph, topology)
    if (len(topology.exec_s), len(topology.edge_bytes)) != (graph.num_vertices, graph.num_edges):
        raise field_error(CostError, graph.name, "", "costs", f"those of this graph, of {graph.num_vertices:,} vertices and "
                          f"{graph.num_edges:,} edges", [len(topology.exec_s), len(topology.edge_bytes)], "build them with `build_costs`")
    return graph, topology


def estimated(graph: GraphLike, topology: TopologyLike, where: str | None = None) -> DataflowGraph:
    """The graph without times that were measured or given, so that flops, bytes and the topology decide its costs.

    An `exec_s` of 0 is left. So is `transfer_s` where an edge has no `bytes` and its source no `output_bytes`.

    Args:
      where: what messages call the graph (default: its name).

    Raises:
      CostError: a vertex has no flops; devices that cannot run a vertex are others than the topology's; as `build_costs`.
    """
    graph, topology = as_graph(graph), as_topology(topology)
    where, free = where or graph.name, np.isnan(graph.flops) & (graph.exec_s == 0).all(axis=1)
    unknown = np.flatnonzero(np.isnan(graph.flops) & ~graph.is_input & ~free)
    if unknown.size:
        more = f", as {unknown.size - 1:,} more vertices" if unknown.size > 1 else ""
        raise CostError(f"{where}: vertex {graph.ids[unknown[0]]!r}: flops: expected a number, from which its time can be estimated, got "
                        f"none{more}; give 'flops', or place by the times given")
    sized = ~np.isnan(graph.edge_bytes) | ~np.isnan(graph.tensor_bytes[graph.edge_tensor])
    bare = replace(graph, exec_s=np.where(free, 0.0, math.nan)[:, None], transfer_s=np.where(sized, math.nan, graph.transfer_s))
    unable = np.isinf(graph.exec_s)
    if not unable.any():
        return bare
    if unable.shape[1] != topology.num_devices:
        v = int(np.argmax(unable.any(axis=1)))
        raise CostError(f"{where}: vertex {graph.ids[v]!r}: exec_s: expected a list of {topology.num_devices}, as null says "
                        f"which devices cannot run it, got one of {unable.shape[1]}; write it for {topology.name}, or pin the vertex")
    return replace(bare, exec_s=np.where(unable, math.inf, build_costs(bare, topology, where).exec_s))


def build_costs(graph: GraphLike, topology: TopologyLike, where: str | None = None) -> CostModel:
    """Resolves every cost of `graph` on `topology`.

    An explicit `exec_s` or `transfer_s` wins. Otherwise exec = launch_s + max(flops / flops_per_s, bytes moved / mem_bytes_per_s)
    with bytes moved = inputs + output, and transfer = latency + bytes / bandwidth; an edge without `bytes` carries its
    `output_bytes` of the output that it carries.

    Args:
      graph: one, a networkx graph whose attributes are the fields of `doppler-graph/1`, or a file's path.
      topology: one, the name of a preset, or a file's path.
      where: what messages call the graph (default: its name).

    Raises:
      CostError: a vertex or edge with neither an explicit cost nor what is needed to compute it; lists of another length than
        the number of devices; pins to unknown devices, or pins that contradict a colocation group; a vertex or a colocation group that no
        device may run; too few links for any assignment; costs beyond float64.
    """
    graph, topology = as_graph(graph), as_topology(topology)
    where = where or graph.name
    edge_bytes = np.where(np.isnan(graph.edge_bytes), graph.tensor_bytes[graph.edge_tensor], graph.edge_bytes)
    from_input = graph.is_input[graph.sources]
    missing = np.flatnonzero(np.isnan(graph.transfer_s) & np.isnan(edge_bytes) & ~from_input)
    if missing.size and topology.num_devices > 1:
        e = int(missing[0])
        raise CostError(f"{where}: edge {graph.ids[graph.sources[e]]!r} -> {graph.ids[graph.targets[e]]!r}: bytes: expected 'bytes' "
                        f"or 'transfer_s' (or 'output_bytes' of the source), got none; give one of them")
    edge_bytes = np.nan_to_num(edge_bytes, nan=0.0)
    explicit = np.where(from_input, 0.0, graph.transfer_s)
    with np.errstate(all="ignore"):
        tensor_bytes = tensor_sizes(graph, edge_bytes)
        exec_s = _exec_costs(graph, topology, edge_bytes, where)
        eligible = ~np.isinf(graph.exec_s) | graph.is_input[:, None] | np.zeros(exec_s.shape, bool)
        costs = CostModel(topology, _finite(exec_s, eligible),
                          np.where(np.isnan(explicit), edge_bytes, 0.0), explicit, tensor_bytes,
                          tensor_bytes if graph.single_outputs else np.add.reduceat(tensor_bytes, graph.tensor_ptr[:-1]),
                          eligible, _allowed(graph, topology, eligible, where), graph.colocate)
        _check_finite(graph, costs, where)
    return costs


def _check_finite(graph: DataflowGraph, costs: CostModel, where: str) -> None:
    """Raises CostError unless the sums of all costs and of all bytes are finite: then every time and every memory level is finite."""
    by_vertex = costs.exec_s.sum(axis=1) + np.bincount(graph.sources, costs.slowest_transfer_s, graph.num_vertices)
    for values, name in ((by_vertex, "exec_s, transfer_s"), (costs.output_bytes * costs.num_devices, "output_bytes")):
        if not math.isfinite(values.sum()):
            v = int(np.argmax(values))
            raise CostError(f"{where}: vertex {graph.ids[v]!r}: {name}: expected figures whose sum over the graph is finite in float64, "
                            f"got {values[v]:.6g} for this one; mend the figures or their unit")


def tensor_sizes(graph: DataflowGraph, edge_bytes: np.ndarray) -> np.ndarray:
    """float64 [T]: the bytes of a tensor as given, else of its largest edge, else 0. Args: edge_bytes: float64 [E]."""
    largest = np.zeros(graph.num_tensors)
    np.maximum.at(largest, graph.edge_tensor, edge_bytes)
    return np.ceil(np.where(np.isnan(graph.tensor_bytes), largest, graph.tensor_bytes))


def _exec_costs(graph: DataflowGraph, topology: Topology, edge_bytes: np.ndarray, where: str) -> np.ndarray:
    count, width = topology.num_devices, graph.exec_s.shape[1]
    if width not in (1, count):
        v = int(np.flatnonzero(~np.isnan(graph.exec_s[:, 0]))[0])
        raise CostError(f"{where}: vertex {graph.ids[v]!r}: exec_s: expected {count} numbers (one a device of {topology.name}) or "
                        f"one number, got a list of {width}; times belong to their devices: choose a topology of {width} devices, or place "
                        f"by flops and bytes (--costs estimated; in Python `estimated(graph, topology)`)")
    costs = np.broadcast_to(graph.exec_s, (graph.num_vertices, count)).copy()
    moved = np.nan_to_num(graph.output_bytes, nan=0.0) + np.bincount(graph.targets, edge_bytes, graph.num_vertices)
    for d, device in enumerate(topology.devices):
        computed = np.full(graph.num_vertices, math.nan)
        if device.flops_per_s is not None:
            seconds = graph.flops / device.flops_per_s
            if device.mem_bytes_per_s is not None:
                seconds = np.maximum(seconds, moved / device.mem_bytes_per_s)
            computed = device.launch_s + seconds
        costs[:, d] = np.where(np.isnan(costs[:, d]), computed, costs[:, d])
    costs[graph.is_input] = 0.0
    missing = np.argwhere(np.isnan(costs))
    if missing.size:
        v, d = (int(x) for x in missing[0])
        device = topology.devices[d]
        if device.flops_per_s is None and not np.isnan(graph.flops[v]):
            raise CostError(f"{where}: vertex {graph.ids[v]!r}: exec_s: expected an explicit cost, as device {device.name!r} of "
                            f"{topology.name} has no flops_per_s, got only flops; give 'exec_s' or choose another topology")
        raise CostError(f"{where}: vertex {graph.ids[v]!r}: exec_s: expected 'exec_s' or 'flops', got neither; give one of them")
    return costs


def _finite(exec_s: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """Means of each vertex's eligible devices instead of what the others have."""
    if eligible.all():
        return exec_s
    return np.where(eligible, exec_s, np.mean(exec_s, axis=1, keepdims=True, where=eligible))


def _allowed(graph: DataflowGraph, topology: Topology, eligible: np.ndarray, where: str) -> np.ndarray:
    allowed = eligible.copy()
    names = {name: [d] for d, name in enumerate(topology.device_names)}
    meant = {pin: devices_in_scope(pin, topology.device_names) for pin in {*graph.pin} if is_scope(pin)} | names
    for v, pin in enumerate(graph.pin):
        if pin is None:
            continue
        devices = meant.get(pin, [pin])
        if not devices or devices[0] not in range(topology.num_devices):
            remedy = "; choose a topology that has it, or capture without --keep-devices" if is_scope(pin) else ""
            name = "" if graph.names[v] == str(graph.ids[v]) else f" ({graph.names[v]})"
            raise CostError(f"{where}: vertex {graph.ids[v]!r}{name}: pin: expected a device of {topology.name} (0 to "
                            f"{topology.num_devices - 1} or one of {', '.join(names)}), got {pin!r}{remedy}")
        if not eligible[v, devices].any() and not graph.is_input[v]:
            able = ", ".join(np.array(topology.device_names)[eligible[v]])
            raise CostError(f"{where}: vertex {graph.ids[v]!r}: pin: expected a device that can run it ({able}), got {pin!r}, where its "
                            f"exec_s is null; mend one of them")
        pinned = np.zeros(topology.num_devices, bool)
        pinned[devices] = True
        allowed[v] &= pinned
    members = np.flatnonzero((graph.colocate >= 0) & ~graph.is_input)
    common = np.ones((len(graph.groups), topology.num_devices), bool)
    np.logical_and.at(common, graph.colocate[members], allowed[members])
    nowhere = np.flatnonzero(~common.any(axis=1))
    if nowhere.size:
        g = int(nowhere[0])
        bound = [v for v in members[graph.colocate[members] == g].tolist() if not allowed[v].all()]
        if all(graph.pin[v] is not None for v in bound):
            pinned = ", ".join(f"{graph.ids[v]!r} ({graph.pin[v]})" for v in bound)
            raise CostError(f"{where}: colocate group {graph.groups[g]!r}: pin: expected pins of its vertices to agree, got different "
                            f"devices for {pinned}; mend the pins")
        raise CostError(f"{where}: colocate group {graph.groups[g]!r}: exec_s: expected a device that all its vertices may use, got "
                        f"{'; '.join(f'{graph.ids[v]!r}: {np.flatnonzero(allowed[v]).tolist()}' for v in bound[:4])}; mend the group, or "
                        f"what its vertices allow")
    allowed[members] = common[graph.colocate[members]]
    return allowed if topology.linked.all() else _reachable(graph, topology, allowed, where)


def _reachable(graph: DataflowGraph, topology: Topology, allowed: np.ndarray, where: str) -> np.ndarray:
    """Without the devices to which no link leads from any device of a neighbour, or back."""
    near, work = neighbours(graph, topology.linked), graph.work_vertices
    of_unit = np.empty((len(near.ptr) - 1, topology.num_devices), bool)
    of_unit[near.unit_of[work]] = allowed[work]
    lacking = narrow(near, of_unit)
    if lacking >= 0:
        v = int(np.argmax(near.unit_of == lacking))
        names = np.array(topology.device_names)
        raise CostError(f"{where}: vertex {graph.ids[v]!r}: links of {topology.name}: expected that one of its devices "
                        f"({', '.join(names[allowed[v]])}) is linked with devices that may run its neighbours, got none, which proves that "
                        f"no assignment is possible; add links, or let vertices run on more devices")
    allowed[work] = of_unit[near.unit_of[work]]
    return allowed
