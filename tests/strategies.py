"""Hypothesis strategies: layered graphs full of ties and zero costs, topologies, assignments, whole cases."""

from __future__ import annotations

import dataclasses
import heapq
import math
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from doppler_tf.errors import DeadlockError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.fastsim.prepared import Prepared
from doppler_tf.graph.costs import CostModel, Noise, build_costs, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Host, Topology
from doppler_tf.heuristics.problem import Problem
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.dispatch import queue_keys
from doppler_tf.schedule.simulator import simulate
from doppler_tf.schedule.trace import memory_profiles, peak_bytes

SECONDS = st.one_of(st.integers(0, 3), st.sampled_from([0, 0.1, 0.3, 1 / 3, 2.5]))
BYTES = st.integers(0, 4)


def examples(share: float) -> settings:
    """Settings that draw this share of the profile's examples: for properties of which one example takes long."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


@dataclass(frozen=True)
class Case:
    """All that a simulation needs."""

    graph: DataflowGraph
    costs: CostModel
    assignment: Assignment
    rule: str
    noise: Noise | None

    @property
    def prepared(self) -> Prepared:
        """The argument of compiled loops."""
        keys = queue_keys(self.graph, self.costs, self.assignment, self.rule) if self.rule == "order" else None
        return FastSimulator(self.graph, self.costs, self.rule).prepared(keys)

    @property
    def problem(self) -> Problem:
        """Without noise."""
        return Problem(self.graph, self.costs, self.rule)

    @property
    def without_shares(self) -> Case:
        """The same case where transfers take no time from devices."""
        topology = dataclasses.replace(self.costs.topology, source_share=None, destination_share=None)
        return dataclasses.replace(self, costs=dataclasses.replace(self.costs, topology=topology))

    def with_memory(self, limits: list[int | None]) -> Case:
        """The same case on devices with these many bytes."""
        topology = self.costs.topology
        devices = tuple(dataclasses.replace(d, memory_bytes=limit) for d, limit in zip(topology.devices, limits, strict=True))
        return dataclasses.replace(self, costs=build_costs(self.graph, dataclasses.replace(topology, devices=devices)))


@st.composite
def topologies(draw, min_devices: int = 1, max_devices: int = 8) -> Topology:
    count = draw(st.integers(min_devices, max_devices))

    def matrix(values):
        return draw(st.one_of(values, st.lists(st.lists(values, min_size=count, max_size=count), min_size=count, max_size=count)))

    devices = [{"name": f"d{d}", "flops_per_s": draw(st.sampled_from([1, 2, 3])), "mem_bytes_per_s": draw(st.sampled_from([None, 1, 4])),
                "launch_s": draw(st.sampled_from([0, 0.5])), "slots": draw(st.integers(1, 2))} for d in range(count)]
    links = {"bandwidth_bytes_per_s": matrix(st.sampled_from([1, 2, 3, math.inf])), "latency_s": matrix(st.sampled_from([0, 0, 1, 0.1]))}
    if draw(st.booleans()):
        rows = st.lists(st.sampled_from([None, 0, 1, 7]), min_size=count, max_size=count)
        links["card"] = draw(st.lists(rows, min_size=count, max_size=count))
    if draw(st.booleans()):
        links |= {name: matrix(st.sampled_from([0, 0.1, 0.25, 1])) for name in ("source_share", "destination_share")}
    return Topology.from_json({"devices": devices, "links": links, "link_slots": draw(st.sampled_from([None, 1, 2]))})


@st.composite
def graphs(draw, topology: Topology, max_layers: int = 6, max_width: int = 5, constrained: bool = False) -> DataflowGraph:
    """Layers whose vertices take edges from any earlier layer, some of several outputs, some of them results; inputs in layer 0.

    Args: constrained: with pins and colocation groups.
    """
    count = topology.num_devices
    widths = [draw(st.integers(1, max_width)) for _ in range(draw(st.integers(1, max_layers)))]
    group_pin = {g: draw(st.sampled_from([None, draw(st.integers(0, count - 1))])) for g in "ab"} if constrained else {}
    nodes, edges, outputs_of = [], [], []
    for layer, width in enumerate(widths):
        earlier = len(nodes)
        for _ in range(width):
            v = len(nodes)
            node = {"id": draw(st.sampled_from([v, f"v{v}"]))}
            costs = draw(st.sampled_from(["exec_s", "exec_s", "by device", "flops"]))
            if layer == 0 and width > 1 and v < width - 1 and draw(st.booleans()):
                node["input"] = True
            elif costs == "flops":
                node["flops"] = draw(st.integers(0, 6))
            else:
                node["exec_s"] = draw(SECONDS) if costs == "exec_s" else draw(st.lists(SECONDS, min_size=count, max_size=count))
            outputs = 1 if node.get("input") else draw(st.sampled_from([1, 1, 1, 2, 3]))
            node["output_bytes"] = draw(BYTES if outputs == 1 else st.lists(BYTES, min_size=outputs, max_size=outputs))
            outputs_of.append(outputs)
            if constrained:
                group = draw(st.sampled_from([None, None, "a", "b"]))
                pin = draw(st.sampled_from([None, None, draw(st.integers(0, count - 1))])) if group is None else group_pin[group]
                pin = f"d{pin}" if pin is not None and draw(st.booleans()) else pin
                node.update({key: value for key, value in (("colocate", group), ("pin", pin)) if value is not None})
            nodes.append(node)
            fan_in = min(earlier, draw(st.sampled_from([2, 1, 3, 0])))
            for u in draw(st.lists(st.integers(0, earlier - 1), min_size=fan_in, max_size=fan_in, unique=True)) if fan_in else []:
                used = range(outputs_of[u])
                for output in used if outputs_of[u] == 1 else draw(st.lists(st.sampled_from(used), min_size=1, unique=True)):
                    edge = {"source": nodes[u]["id"], "target": node["id"], "output": output}
                    cost = draw(st.sampled_from(["transfer_s", "bytes", None]))
                    if cost is not None:
                        edge[cost] = draw(SECONDS if cost == "transfer_s" else BYTES)
                    edges.append(edge)
    made = [{"vertex": node["id"], "output": k} for node, count in zip(nodes, outputs_of, strict=True) for k in range(count)
            if not node.get("input")]
    results = draw(st.lists(st.sampled_from(made), unique_by=str, max_size=3)) if made and draw(st.booleans()) else []
    return graph_from_records(nodes, edges, {"name": "layered", "results": results})


@st.composite
def assignments(draw, graph: DataflowGraph, costs: CostModel) -> Assignment:
    """Any allowed devices, groups kept together, any topological order, and often a priority with ties."""
    device = np.full(graph.num_vertices, -1, np.int32)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))  # drawn one by one, most examples keep to device 0
    for v in graph.work_vertices.tolist():
        group = np.flatnonzero((graph.colocate == graph.colocate[v]) & ~graph.is_input) if graph.colocate[v] >= 0 else [v]
        device[v] = device[group[0]] if group[0] < v else rng.choice(np.flatnonzero(costs.allowed[v]))
    rank = draw(st.permutations(range(graph.num_vertices)))
    missing = np.bincount(graph.targets, minlength=graph.num_vertices)
    heap, order = [(rank[v], v) for v in range(graph.num_vertices) if missing[v] == 0], []
    heapq.heapify(heap)
    while heap:
        _, v = heapq.heappop(heap)
        order.append(v)
        for w in graph.successors.vertex[graph.successors.ptr[v]:graph.successors.ptr[v + 1]].tolist():
            missing[w] -= 1
            if missing[w] == 0:
                heapq.heappush(heap, (rank[w], w))
    priority = draw(st.none() | st.lists(st.integers(0, 3), min_size=graph.num_vertices, max_size=graph.num_vertices))
    return Assignment(device, np.array([v for v in order if not graph.is_input[v]], np.int32),
                      priority=None if priority is None else np.array(priority, np.float64))


@st.composite
def cases(draw, min_devices: int = 1, max_devices: int = 8, constrained: bool = False, noise: bool = True) -> Case:
    topology = draw(topologies(min_devices, max_devices))
    graph = draw(graphs(topology, constrained=constrained))
    costs = build_costs(graph, topology)
    factors = draw_noise(graph.num_vertices, topology.num_devices, 0.3, draw(st.integers(0, 99))) if noise and draw(st.booleans()) else None
    return Case(graph, costs, draw(assignments(graph, costs)), draw(st.sampled_from(DISPATCH_RULES)), factors)


@st.composite
def cases_short_of_memory(draw) -> Case:
    """A limit just below the peak of the run without limits, on one device or on some: it delays or it kills."""
    case = draw(cases(2, 4))
    trace = simulate(case.graph, case.costs, case.assignment, case.rule, case.noise)
    profiles = memory_profiles(case.graph, case.costs, case.assignment, trace)
    only = draw(st.sampled_from([None, *range(len(profiles))]))
    limits: list[int | None] = []
    for d, profile in enumerate(profiles):
        below = draw(st.sampled_from([1, 2, 0, 3])) if only in (None, d) else None
        limits.append(None if below is None else max(0, int(profile.used_bytes.max()) - below))
    return case.with_memory(limits)


@st.composite
def cases_that_need_a_host(draw, max_devices: int = 4) -> Case:
    """Limits from the floor, where one vertex with its inputs and outputs fits, up to the peak of the run without limits."""
    case = draw(cases(1, max_devices, noise=False))
    graph, costs, device = case.graph, case.costs, case.assignment.device
    peaks = peak_bytes(graph, costs, case.assignment, simulate(graph, costs, case.assignment, case.rule))
    needed = np.bincount(graph.targets, costs.tensor_bytes[graph.edge_tensor], graph.num_vertices) + costs.output_bytes
    limits = []
    for d, peak in enumerate(peaks.tolist()):
        floor = max([1, *needed[device == d].tolist()])
        limits.append(floor + int(draw(st.sampled_from([0, 0, 0.1, 0.3, 0.5, 0.9])) * max(0, peak - floor)))
    bandwidth = st.sampled_from([1.0, 3.0, 0.5])
    host = Host(draw(bandwidth | st.lists(bandwidth, min_size=len(limits), max_size=len(limits)).map(tuple)),
                draw(st.sampled_from([0.0, 0.25])), None, draw(st.booleans()))
    held = dataclasses.replace(case, costs=dataclasses.replace(costs, topology=dataclasses.replace(costs.topology, host=host)))
    return held.with_memory(limits)


def makespan_or_inf(case: Case) -> float:
    """What the simulator says, infinity for a deadlock."""
    try:
        return simulate(case.graph, case.costs, case.assignment, case.rule, case.noise).makespan_s
    except DeadlockError:
        return math.inf
