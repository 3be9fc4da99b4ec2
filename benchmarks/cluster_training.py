"""Stage III on two machines whose link has unequal directions: `make bench NAME=cluster_training`, as root.

The machines are network namespaces of this computer, with a core each. ChainMM is placed three ways: by the costs of data sheets, by the
best heuristic on measured costs, and by training whose last stage runs on the machines. All placements run in turns, and a turn's second
run counts. The best heuristic is the one that is simulated to be fastest, as a user would choose; METIS is beside it.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.tables import finish, in_turns, show
from doppler_tf.formats.assignment_json import read_assignment
from doppler_tf.formats.cluster_json import ClusterSpec
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.heuristics import CONSTRUCTIVE
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import simulate
from tests.machines import PORT, Machines

SIDE, THERE, BACK, LATENCY_S, SEARCH_S, RUNS, SEEDS, TURNS = 2048, 10, 1, 1e-4, 5.0, 300, 3, 15
SHEET, HEURISTIC = "data sheet", "best heuristic"


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster_training", description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=SIDE, help=f"of ChainMM's matrices (default: {SIDE})")
    parser.add_argument("--there", type=int, default=THERE, help=f"Gbit/s from the first machine to the second (default: {THERE})")
    parser.add_argument("--back", type=int, default=BACK, help=f"Gbit/s back (default: {BACK})")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of stage III (default: {RUNS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of trainings (default: {SEEDS})")
    args = parser.parse_args()
    with Machines(2) as machines, tempfile.TemporaryDirectory() as folder:
        machines.enter(0)
        machines.worker(1)
        from runtime.clusters.cluster import Cluster

        cluster = Cluster(ClusterSpec("two machines", ((machines.address(1), PORT),), (machines.address(0), PORT)))
        for machine, rate in enumerate((args.there, args.back)):
            machines.shape(machine, f"{rate}gbit")
        rows = measured(args, cluster, Path(folder))
    show(f"ChainMM, n = {args.side}, {args.there} Gbit/s there and {args.back} back, {args.runs} runs", rows)
    finish(rows)


def measured(args: argparse.Namespace, cluster, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of each placement, and over those of the two that training should beat."""
    from agents.config import CONFIGS
    from agents.training.run import train
    from data import build_workload, fuse
    from doppler_tf.api.executors import load_program
    from runtime import TensorFlowExecutor, profile

    graph, topology = fuse(build_workload("chainmm", 2, n=args.side)), cluster.named(cpu(2))
    program = load_program(graph)
    rate = np.array([[np.inf, args.there], [args.back, np.inf]]) * 1e9 / 8
    sheet = replace(topology, bandwidth_bytes_per_s=rate, latency_s=np.where(np.isinf(rate), 0.0, LATENCY_S))
    by_sheet = place(graph, build_costs(graph, sheet), budget_s=SEARCH_S)
    found = profile(graph, topology, program.inputs, cluster=cluster)
    graph, costs = found.graph, found.costs
    known = place(graph, costs)
    placements = {SHEET: by_sheet.assignment, HEURISTIC: known.assignments[min(CONSTRUCTIVE, key=known.makespans_s.__getitem__)],
                  "METIS": known.assignments["partition"], "search": place(graph, costs, budget_s=SEARCH_S).assignment}
    with TensorFlowExecutor(program.inputs, program.fetch, keep_inputs=True, cluster=cluster) as executor:
        for seed in range(args.seeds):
            config = replace(CONFIGS["default"], seed=seed, real=args.runs)
            train([graph], costs.topology, folder / str(seed), config, executor=executor, progress=False, pictures=False)
            path = next((folder / str(seed) / "assignments").glob("*.json"))
            placements[f"stage III, seed {seed}"] = read_assignment(path, graph, costs)
        seconds = in_turns({name: lambda assignment=assignment: executor.execute(graph, costs, assignment).makespan_s
                            for name, assignment in placements.items()}, TURNS)
    return {name: row(graph, costs, assignment, seconds[name], seconds) for name, assignment in placements.items()}


def row(graph, costs, assignment: Assignment, took_s: np.ndarray, seconds: dict[str, np.ndarray]) -> dict[str, float]:
    """Figures of one placement; ratios are medians over turns."""
    over = took_s / seconds[HEURISTIC]
    low, high = np.percentile(over, [25, 75]).tolist()
    return {"simulated_s": simulate(graph, costs, assignment).makespan_s, "measured_s": float(np.median(took_s)),
            "over_sheet_ratio": float(np.median(took_s / seconds[SHEET])), "over_heuristic_ratio": float(np.median(over)),
            "low_ratio": low, "high_ratio": high}


if __name__ == "__main__":
    main()
