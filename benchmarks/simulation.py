"""The compiled simulator against plain SimPy, on random assignments: `make bench NAME=simulation`.

Links that never wait, then contended links, then contended links and a memory limit that binds (the yardstick has none, which favours
it). The two are checked against each other first, on costs without ties.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.simpy_simulator import SimPySimulator
from benchmarks.tables import best_seconds, finish, show
from data import build_workload
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.topology import Topology, p100x4

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
        for case, topology in cases(graph, devices).items():
            result[name][case] = measure(graph, build_costs(graph, topology), devices)
        result[name] = {**result[name].pop("links never wait"), "cases": result[name]}
    for name, row in result.items():
        free = {key: row[key] for key in ("yardstick_s", "ours_s", "ratio")}
        show(f"{name}: seconds a simulation, batch of {BATCH}", {"links never wait": free, **row["cases"]})
    finish(result)


def cases(graph: DataflowGraph, devices: np.ndarray) -> dict[str, Topology]:
    """4 x P100 with the three kinds of limits; memory is half of what the vertices of a device put out."""
    free = dataclasses.replace(p100x4(), link_slots=None)
    half = 0.5 * float(np.nansum(graph.output_bytes[graph.work_vertices])) / 4
    inputs = float(np.nansum(graph.output_bytes[graph.is_input]))
    tight = tuple(dataclasses.replace(d, memory_bytes=half + inputs) for d in p100x4().devices)
    return {"links never wait": free, "contended links": p100x4(), "contended, memory": dataclasses.replace(p100x4(), devices=tight)}


def check(graph: DataflowGraph, devices: np.ndarray) -> None:
    """Both simulators agree where there are no ties to break."""
    for link_slots in (None, 1):
        costs = build_costs(graph, dataclasses.replace(p100x4(), link_slots=link_slots))
        jitter = np.random.default_rng(1).uniform(0.5, 1.5, graph.num_vertices)[:, None]
        costs = dataclasses.replace(costs, exec_s=costs.exec_s * jitter)
        yardstick = SimPySimulator(graph, costs)
        np.testing.assert_allclose([yardstick.makespan_s(d) for d in devices], FastSimulator(graph, costs).makespans(devices), rtol=1e-12)


def measure(graph: DataflowGraph, costs: CostModel, devices: np.ndarray) -> dict[str, float]:
    """Seconds a simulation of both, side by side."""
    yardstick, ours = SimPySimulator(graph, costs), FastSimulator(graph, costs)
    ours.makespans(devices[:32])
    ours_s = best_seconds(lambda: ours.makespans(devices), 20) / BATCH
    yardstick_s = min(best_seconds(lambda d=d: yardstick.makespan_s(d), 3) for d in devices[:YARDSTICK_RUNS])
    return {"yardstick_s": yardstick_s, "ours_s": ours_s, "ratio": yardstick_s / ours_s}


if __name__ == "__main__":
    main()
