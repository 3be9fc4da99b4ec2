"""Placing on many machines, simulated: `make bench NAME=many_devices`.

Each machine has eight devices with fast links among them, and one network card. A random layered graph of 20,000 vertices and six Llama
layers are placed with and without a budget. Figures are makespans over the lower bound, and wall-clock seconds once all is compiled.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks.tables import finish, show, timed
from data import build_workload
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Device, Topology
from doppler_tf.heuristics import HEURISTICS, Problem
from doppler_tf.heuristics.judging import judge
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import AUTO
from doppler_tf.schedule.bounds import lower_bounds

MACHINES, PER_MACHINE, BUDGET_S = 32, 8, 50.0
YARDSTICKS = ("heft", "partition", "critical_path", "round_robin")
VERTICES, LAYERS, PIECES = 20_000, 6, 32


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.many_devices", description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=MACHINES, help=f"of {PER_MACHINE} devices each (default: {MACHINES})")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=f"of the second placement (default: {BUDGET_S:g})")
    args = parser.parse_args()
    topology, rows = cluster(args.machines), {}
    for budget in (None, 1.0):  # compiles
        place(build_workload("chainmm", PER_MACHINE), topology, budget_s=budget)
    for name, graph in graphs(topology.num_devices):
        rows |= {f"{name}, {method}": row for method, row in placed(graph, topology, args.budget_s).items()}
        print({key: row for key, row in rows.items() if key.startswith(name)}, flush=True)
    show(f"{topology.num_devices} devices on {args.machines} machines", rows)
    finish({"many_devices": rows})


def cluster(machines: int) -> Topology:
    """V100 as in the preset `v100x8`, 50 GB/s and 8 us between those of a machine, 12.5 GB/s (100 Gbit/s) and 30 us through its card."""
    machine = np.repeat(np.arange(machines), PER_MACHINE)
    devices = tuple(Device(f"{m}:{d % PER_MACHINE}", 125e12, 900e9, 8e-6, 32e9) for d, m in enumerate(machine.tolist()))
    same, other = machine[:, None] == machine, ~np.eye(len(machine), dtype=bool)
    bandwidth = np.where(other, np.where(same, 50e9, 12.5e9), np.inf)
    return Topology(f"{machines} x {PER_MACHINE}", devices, bandwidth, np.where(other, np.where(same, 8e-6, 30e-6), 0.0),
                    card=np.where(same, -1, machine[:, None]))


def graphs(devices: int) -> Iterator[tuple[str, DataflowGraph]]:
    """A random graph, and Llama layers whose operations are cut into 32 pieces each."""
    yield "layered", build_workload("layered", devices, vertices=VERTICES)
    yield "llama_stack", build_workload("llama_stack", devices, pieces=PIECES, tiling="eindecomp", layers=LAYERS)


def placed(graph: DataflowGraph, topology: Topology, budget_s: float) -> dict[str, dict[str, float | int]]:
    """Rows by method: makespans over the bound by the faster rule, and seconds."""
    costs = build_costs(graph, topology)
    bound_s, rows = lower_bounds(graph, costs).best_s, {}
    for name in YARDSTICKS:
        took_s, assignment = timed(lambda name=name: HEURISTICS[name](Problem(graph, costs), np.random.default_rng(0)))
        rows[name] = {"took_s": took_s, "makespan_over_bound": judge(Problem(graph, costs, AUTO), [assignment])[0][0] / bound_s}
    for budget in (None, budget_s):
        took_s, found = timed(lambda budget=budget: place(graph, topology, budget_s=budget))
        rows["place" if budget is None else f"place, {budget:g} s"] = {"took_s": took_s, "makespan_over_bound": found.makespan_s / bound_s}
    return {name: {"vertices": graph.num_vertices, **row} for name, row in rows.items()}


if __name__ == "__main__":
    main()
