"""The compiled simulator against plain SimPy, on random assignments: `make bench NAME=simulation`.

The cases are: links that never wait; contended links; contended links and a memory limit that binds (the yardstick has none, which favours
it). First both simulators are checked against each other on costs without ties.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.simpy_simulator import SimPySimulator
from benchmarks.tables import best_seconds, finish, show
from data import build_workload
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology, p100x4
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import memory_profiles

BATCH, YARDSTICK_RUNS = 1024, 40


def main() -> None:
    """Prints the tables and the JSON line."""
    result = {}
    for name in ("chainmm", "llama_layer"):
        graph = build_workload(name, 4)
        devices = np.random.default_rng(0).integers(0, 4, (BATCH, graph.num_vertices)).astype(np.int32)
        devices[:, graph.is_input] = -1
        check(graph, devices[:4])
        result[name] = {}
        limits = {case: build_costs(graph, topology) for case, topology in cases(graph, devices).items()}
        for case, costs in limits.items():
            result[name][case] = measure(graph, costs, devices)
        without, limited = (FastSimulator(graph, limits[case]).makespans(devices) for case in ("contended links", "contended, memory"))
        print(f"{name}: the memory limit changes {np.mean(without != limited):.0%} of the makespans")
        result[name] = {**result[name].pop("links never wait"), "cases": result[name]}
    for name, row in result.items():
        free = {key: row[key] for key in ("yardstick_s", "ours_s", "ratio")}
        show(f"{name}: seconds per simulation, batch of {BATCH}", {"links never wait": free, **row["cases"]})
    finish(result)


def cases(graph: DataflowGraph, devices: np.ndarray) -> dict[str, Topology]:
    """4 x P100 with the three kinds of limits. The memory limit binds, because it is the median of the devices' peaks without a limit."""
    free = dataclasses.replace(p100x4(), link_slots=None)
    costs, peaks = build_costs(graph, p100x4()), []
    for device in devices[:8]:
        assignment = Assignment(device)
        profiles = memory_profiles(graph, costs, assignment, Simulator().execute(graph, costs, assignment))
        peaks += [float(profile.used_bytes.max()) for profile in profiles]
    return {"links never wait": free, "contended links": p100x4(), "contended, memory": p100x4().with_memory(float(np.median(peaks)))}


def check(graph: DataflowGraph, devices: np.ndarray) -> None:
    """Raises AssertionError unless both simulators agree on costs without ties."""
    for link_slots in (None, 1):
        costs = build_costs(graph, dataclasses.replace(p100x4(), link_slots=link_slots))
        jitter = np.random.default_rng(1).uniform(0.5, 1.5, graph.num_vertices)[:, None]
        costs = dataclasses.replace(costs, exec_s=costs.exec_s * jitter)
        yardstick = SimPySimulator(graph, costs)
        np.testing.assert_allclose([yardstick.makespan_s(d) for d in devices], FastSimulator(graph, costs).makespans(devices), rtol=1e-12)


def measure(graph: DataflowGraph, costs: CostModel, devices: np.ndarray) -> dict[str, float]:
    """Seconds per simulation of both simulators."""
    yardstick, ours = SimPySimulator(graph, costs), FastSimulator(graph, costs)
    ours.makespans(devices[:32])
    ours_s = best_seconds(lambda: ours.makespans(devices), 20) / BATCH
    yardstick_s = min(best_seconds(lambda d=d: yardstick.makespan_s(d), 3) for d in devices[:YARDSTICK_RUNS])
    return {"yardstick_s": yardstick_s, "ours_s": ours_s, "ratio": yardstick_s / ours_s}


if __name__ == "__main__":
    main()
