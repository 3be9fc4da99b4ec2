"""What the order of a placement is worth: `make bench NAME=order`.

Each graph is placed twice: under `fifo`, and under `auto`, where priorities are searched beside devices. Simulated makespans are compared
first, then runs: on emulated 4 x P100, and with real kernels on two devices of this machine, whose costs are measured before. Runs of both
placements take turns. A turn has two runs, and the second counts. `--graphs FILES --topology NAME` takes other graphs.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
from collections.abc import Mapping

import numpy as np

from benchmarks.tables import finish, in_turns, show
from data import build_workload, fuse
from doppler_tf.api.executors import Program
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import cpu, preset
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.steadiness import noisy_means
from doppler_tf.placement import Placement, place
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.executor import Executor
from doppler_tf.schedule.validation import validate_trace
from runtime import EmulatedExecutor, TensorFlowExecutor, prepare_devices, profile

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
TOPOLOGIES, MEASURED_ON, DEVICES = ("p100x4", "v100x8"), "p100x4", 2
PARTS = ("simulated", "emulated", "real")
SECONDS, SEEDS, RUNS = 4.0, 3, 15
# Wall-clock seconds of an emulated run, so that the engine's overhead stays small beside it.
EMULATED_S = 1.0
NOISE = 0.01
RULES = ("fifo", AUTO)


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.order", description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="*", default=[], help="graph files (default: the four workloads on 4 x P100 and 8 x V100)")
    parser.add_argument("--topology", default="ideal:4", help="preset for --graphs (default: ideal:4)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each placement (default: {SECONDS:g})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds of the simulated part (default: {SEEDS})")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"number of turns (default: {RUNS})")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    args = parser.parse_args()
    prepare_devices(DEVICES)
    parts = {name: {} for name in PARTS if args.only in (None, name)}
    if "simulated" in parts:
        parts["simulated"] = {name: simulated(graph, costs, args.seconds, args.seeds) for name, graph, costs in cases(args)}
        show(f"makespans under auto over those under fifo, {args.seconds:g} s each, and without a budget", parts["simulated"])
    if "emulated" in parts:
        for name in WORKLOADS:
            graph = build_workload(name, 4)
            costs = build_costs(graph, preset(MEASURED_ON))
            placed = placements(graph, costs, args.seconds)
            with EmulatedExecutor(EMULATED_S / placed[AUTO].makespan_s) as executor:
                parts["emulated"][name] = measured(executor, graph, costs, placed, args.runs)
        show(f"emulated {MEASURED_ON}: gain of auto over fifo", parts["emulated"])
    if "real" in parts:
        for name in WORKLOADS:
            graph = fuse(build_workload(name, DEVICES, scale="small"))
            program = Program(graph)
            found = profile(graph, cpu(DEVICES), program.inputs)
            placed = placements(found.graph, found.costs, args.seconds)
            with TensorFlowExecutor(program.inputs, program.fetch, keep_inputs=True) as executor:
                parts["real"][name] = measured(executor, found.graph, found.costs, placed, args.runs)
        show(f"real kernels on {DEVICES} devices of this machine: gain of auto over fifo", parts["real"])
    finish(parts)


def cases(args: argparse.Namespace) -> list[tuple[str, DataflowGraph, CostModel]]:
    """The graphs of the simulated part, with their costs."""
    if args.graphs:
        graphs = {f"{graph.name}, {args.topology}": (graph, args.topology) for graph in map(read_graph, args.graphs)}
    else:
        graphs = {f"{name}, {topology}": (build_workload(name, preset(topology).num_devices), topology)
                  for topology in TOPOLOGIES for name in WORKLOADS}
    return [(name, graph, build_costs(graph, preset(topology))) for name, (graph, topology) in graphs.items()]


def simulated(graph: DataflowGraph, costs: CostModel, seconds: float, seeds: int) -> dict[str, float | int]:
    """Ratios of makespans; the mean under noise of what `auto` found over its makespan without; the distance from the lower bound."""
    ratios, quick, noisy, over_bound = [], [], [], []
    for seed in range(seeds):
        found, without = placements(graph, costs, seconds, seed), placements(graph, costs, None, seed)
        quick.append(without[AUTO].makespan_s / without["fifo"].makespan_s)
        ratios.append(found[AUTO].makespan_s / found["fifo"].makespan_s)
        mean_s = noisy_means(Problem(graph, costs), [found[AUTO].assignment], NOISE, 1_000 * (seed + 1))[0]
        noisy.append(mean_s / found[AUTO].makespan_s)
        over_bound.append(found[AUTO].makespan_s / found[AUTO].lower_bound_s)
    return {"vertices": len(graph.work_vertices), "mean_ratio": float(np.mean(ratios)), "worst_ratio": max(ratios),
            "auto_over_bound": float(np.mean(over_bound)), "noise_ratio": float(np.mean(noisy)), "worst_noise_ratio": max(noisy),
            "no_budget_ratio": float(np.mean(quick))}


def placements(graph: DataflowGraph, costs: CostModel, seconds: float | None, seed: int = 0) -> dict[str, Placement]:
    """What `place` finds under each rule. Args: seconds: None: without a budget."""
    return {rule: place(graph, costs, seed=seed, dispatch=rule, budget_s=seconds) for rule in RULES}


def measured(executor: Executor, graph: DataflowGraph, costs: CostModel, placed: Mapping[str, Placement], runs: int) -> dict[str, float]:
    """Medians of both placements in turns, and the gains that were simulated and measured."""
    calls = {rule: lambda rule=rule: run(executor, graph, costs, placed[rule].assignment) for rule in RULES}
    seconds = in_turns(calls, runs)
    fifo_s, auto_s = (float(np.median(seconds[rule])) for rule in RULES)
    # The spread of the gain: half of all turns lie between these.
    low, high = np.percentile(1 - seconds[AUTO] / seconds["fifo"], [25, 75]).tolist()
    return {"fifo_s": fifo_s, "auto_s": auto_s, "simulated_gain_share": 1 - placed[AUTO].makespan_s / placed["fifo"].makespan_s,
            "gain_share": 1 - auto_s / fifo_s, "low_share": low, "high_share": high,
            "fifo_over_simulated": fifo_s / placed["fifo"].makespan_s, "auto_over_simulated": auto_s / placed[AUTO].makespan_s}


def run(executor: Executor, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> float:
    """Seconds of one run, which must be valid and work conserving."""
    trace = executor.execute(graph, costs, assignment)
    assert validate_trace(graph, costs, assignment, trace.log).work_conserving
    return trace.makespan_s


if __name__ == "__main__":
    main()
