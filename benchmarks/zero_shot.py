"""One policy on graphs that it has never seen: `make bench NAME=zero_shot`.

The policy is trained on workloads cut for 3 and for 6 devices, on 6 devices. It is judged on graphs for 4 devices by the best of 64
assignments over the best of a long annealing, and by the seconds to draw them. Costs are those of the graphs that the paper's authors
released: a vertex takes one unit for each multiplication or element, a transfer takes four times its producer's cost, and links never wait.
`--graphs FILES --topology NAME` judges other graphs.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()  # before TF-GNN is imported, which runs TensorFlow's first operation

# ruff: noqa: E402
# isort: split
import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np

from agents.config import TrainConfig
from agents.serving.placing import load_policy
from agents.training.run import train
from benchmarks.tables import finish, show, timed
from data import build_workload
from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import ideal, preset
from doppler_tf.heuristics import Budget, Pool, Problem, anneal
from doppler_tf.heuristics.search.budget import default_budget

WORKLOADS, TRAINED_DEVICES, DEVICES = ("chainmm", "ffnn", "llama_block"), (3, 6), 4
TRANSFER_OVER_EXEC, SAMPLES, ANNEALED = 4.0, 64, 10


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="*", default=[], help="graph files to judge on (default: the workloads, cut for 4 devices)")
    parser.add_argument("--topology", default=f"ideal:{DEVICES}", help="preset to judge on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=6400, help="simulated episodes of all training graphs together")
    args = parser.parse_args()
    topology = preset(args.topology)
    judged = [read_graph(path) for path in args.graphs] or [counted(name, DEVICES) for name in (*WORKLOADS, "llama_layer")]
    cases = [(graph, costs, best_known_s(graph, costs)) for graph in judged for costs in [build_costs(graph, topology)]]
    rows: dict[str, list[dict[str, float]]] = {graph.name: [] for graph, *_ in cases}
    training_s = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as folder:
            config = TrainConfig(identity=False, polish=0, batch=48, simulated=args.episodes, seed=seed)
            graphs = [counted(name, devices) for devices in TRAINED_DEVICES for name in WORKLOADS]
            took_s, _ = timed(partial(train, graphs, ideal(max(TRAINED_DEVICES)), folder, config, progress=False))
            training_s.append(took_s)
            print(f"seed {seed}: trained in {training_s[-1]:.0f} s", flush=True)
            for graph, costs, best_s in cases:
                rows[graph.name].append(judge(Path(folder), graph, costs, best_s))
    table = {name: {column: (max if column == "worst_best_ratio" else mean)(row[column] for row in each) for column in each[0]}
             for name, each in rows.items()}
    show(f"over the best known, mean of {args.seeds} seeds; best of {SAMPLES} assignments drawn, never trained on these", table)
    finish({"topology": topology.name, "seeds": args.seeds, "episodes": args.episodes, "training_s": training_s,
            "best_known_s": {graph.name: best_s for graph, _, best_s in cases}, "graphs": rows})


def counted(name: str, devices: int) -> DataflowGraph:
    """A workload whose costs count the multiplications of a matrix product, or else the elements of the output."""
    graph = build_workload(name, devices)
    products = np.where([kind == "matmul" for kind in graph.kinds], graph.flops / 2, 0.0)
    units = np.fmax(np.fmax(products, graph.output_bytes / 4), 1.0)
    return replace(graph, name=f"{name} for {devices}", exec_s=np.where(graph.is_input, 0.0, units)[:, None],
                   transfer_s=TRANSFER_OVER_EXEC * units[graph.sources])


def best_known_s(graph: DataflowGraph, costs: CostModel) -> float:
    """The best makespan of annealing with ten times its default simulations, or until it meets the lower bound."""
    problem = Problem(graph, costs)
    budget, pool = Budget(ANNEALED * default_budget(graph).most), Pool(problem, problem.bounds.best_s)
    return anneal(problem, np.random.default_rng(0), budget, pool=pool).makespan_s


def judge(run: Path, graph: DataflowGraph, costs: CostModel, best_s: float) -> dict[str, float]:
    """Greedy and best makespan over the best known, and the seconds of all samples with their simulation, without compiling."""
    policy, simulator = load_policy(run), FastSimulator(graph, costs)

    def drawn() -> np.ndarray:
        found = list(policy(graph, costs, SAMPLES, 0))
        return simulator.makespans(np.stack([each.device for each in found]), np.stack([each.order for each in found]))

    drawn()
    took_s, makespan_s = timed(drawn)
    best = float(makespan_s.min()) / best_s
    return {"greedy_ratio": float(makespan_s[0]) / best_s, "best_ratio": best, "worst_best_ratio": best, "sampling_s": took_s}


if __name__ == "__main__":
    main()
