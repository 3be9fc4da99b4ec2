"""Two machines of one core each beside TensorFlow alone on one: `make bench NAME=cluster`, as root.

The machines are network namespaces of this computer. Their link is shaped to each rate. Kernels and links are measured, 30 good and bad
assignments judge the cost model, and the placement that 48 runs choose runs in turns with TensorFlow alone on one core. A turn has two
runs, and the second counts. A captured model's large operations are cut into two tiles. With `--devices N` each machine has N, which
share its core and its network card, and the cost model is judged once more as if they did not share the card.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.tables import finish, in_turns, show
from doppler_tf.api.comparison.plain_tensorflow import PlainTensorFlow
from doppler_tf.api.measuring import measure
from doppler_tf.formats.cluster_json import ClusterSpec
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import cpu
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.placement import place
from doppler_tf.report.calibration import agreement
from doppler_tf.schedule.simulator import simulate
from tests.machines import PORT, Machines

RATES, SIDES, WIDTHS = ("10gbit", "1gbit"), (512, 1024, 2048), (1024, 2048)
TURNS, ASSIGNMENTS, REPEATS, SEARCH_S, RUNS, TOLERANCE = 11, 30, 3, 5.0, 48, 1e-5


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="*", default=RATES, help=f"of the link, as `tc` writes them (default: {' '.join(RATES)})")
    parser.add_argument("--only", nargs="*", help="cases, such as chainmm_2048 (default: all)")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"number of turns (default: {TURNS})")
    parser.add_argument("--devices", type=int, default=1, help="of each machine (default: 1)")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} before: other work on this machine affects the figures")
    found: dict[str, dict] = {}
    # With several devices a machine, both are workers, as the chief has as many devices as cores.
    served = (1,) if args.devices == 1 else (1, 2)
    with Machines(1 + len(served)) as machines, tempfile.TemporaryDirectory() as folder:
        machines.enter(0)
        for machine in served:
            machines.worker(machine, args.devices)
        from runtime.clusters.cluster import Cluster

        chief = (machines.address(0), PORT) if args.devices == 1 else None
        cluster = Cluster(ClusterSpec("two machines", tuple((machines.address(machine), PORT) for machine in served), chief))
        for name, graph in cases(Path(folder), 2 * args.devices, args.only):
            for rate in args.rates:
                for machine in range(machines.count):
                    machines.shape(machine, rate)
                found[f"{name}, {rate}"] = measured(graph, cluster, Path(folder), args.turns)
                print(json.dumps({f"{name}, {rate}": found[f"{name}, {rate}"]}), flush=True)
    for title, columns in (("the best placement beside TensorFlow alone on one core", ("alone_s", "placed_s", "predicted_s", "gain_ratio",
                                                                                      "low_ratio", "high_ratio", "output_error")),
                           (f"{ASSIGNMENTS} assignments, predicted and measured",
                            ("vertices", "median_error", "rank_correlation", "cardless_median_error", "cardless_rank_correlation"))):
        show(title, found, [key for key in columns if key in next(iter(found.values()))])
    finish(found)


def cases(folder: Path, devices: int, only: list[str] | None) -> Iterator[tuple[str, DataflowGraph]]:
    """Workloads and captured models of growing size, cut for so many devices."""
    import tensorflow as tf

    from data import build_workload, fuse
    from data.capture import capture

    for n in SIDES:
        if only is None or f"chainmm_{n}" in only:
            yield f"chainmm_{n}", fuse(build_workload("chainmm", devices, n=n))
    for width in WIDTHS:
        if only is not None and f"model_{width}" not in only:
            continue
        yield f"model_{width}", capture(layers(width), [tf.TensorSpec([width, width])], model_folder=folder / f"model_{width}",
                                        name=f"model_{width}", pieces=devices)


def layers(width: int):
    """Four dense layers on as many rows as they have units."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=(width, width)).astype(np.float32) * width**-0.5) for _ in range(4)]

    @tf.function
    def model(x):
        for weight in weights:
            x = tf.nn.relu(x @ weight)
        return x

    return model


def measured(graph: DataflowGraph, cluster, folder: Path, turns: int) -> dict[str, float | int]:
    """Figures of one graph at the present rate."""
    from doppler_tf.api.executors import load_program
    from runtime import TensorFlowExecutor, profile

    program, topology = load_program(graph), cluster.named(cpu(len(cluster.devices)))
    found = profile(graph, topology, program.inputs, cluster=cluster)
    graph, costs = found.graph, found.costs
    write_graph(folder / "graph.json", graph)
    placed = place(graph, costs, budget_s=SEARCH_S)
    chosen = measure(placed, RUNS, cluster=cluster)
    with (TensorFlowExecutor(program.inputs, program.fetch, keep_inputs=True, cluster=cluster) as executor,
          PlainTensorFlow(folder / "graph.json") as plain):
        plain.run("default")  # its process takes seconds of a core to start
        judged = fidelity(graph, costs, executor)
        seconds = in_turns({"alone": lambda: plain.run("default"),
                            "placed": lambda: executor.execute(graph, costs, chosen.assignment).makespan_s}, turns)
        error = program.relative_error(executor.outputs)
    alone_s, placed_s = seconds["alone"], seconds["placed"]
    low, high = np.percentile(alone_s / placed_s, [25, 75]).tolist()
    assert error <= TOLERANCE
    return {"vertices": len(graph.work_vertices), "alone_s": float(np.median(alone_s)), "placed_s": float(np.median(placed_s)),
            "predicted_s": chosen.makespan_s, "gain_ratio": float(np.median(alone_s / placed_s)), "low_ratio": low, "high_ratio": high,
            "output_error": error, **judged}


def fidelity(graph: DataflowGraph, costs: CostModel, executor) -> dict[str, float]:
    """How far predicted and measured makespans of good and bad assignments agree; and those predicted as if nothing shared a card."""
    assignments = spread_assignments(Problem(graph, costs), ASSIGNMENTS, np.random.default_rng(0))
    runs_s = np.array([[executor.execute(graph, costs, assignment).makespan_s for assignment in assignments] for _ in range(REPEATS)])
    found = {}
    for name, model in {"": costs, "cardless_": replace(costs, topology=replace(costs.topology, card=None))}.items():
        predicted_s = np.array([simulate(graph, model, assignment).makespan_s for assignment in assignments])
        one = agreement(predicted_s, np.median(runs_s, axis=0))
        found |= {f"{name}median_error": one.median_error, f"{name}rank_correlation": one.rank_correlation}
        if not costs.topology.shares_cards:
            break
    return found


if __name__ == "__main__":
    main()
