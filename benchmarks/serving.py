"""Whether a served model places graphs like the Python policy, and how fast: `make bench NAME=serving`.

A policy is trained briefly and exported. Random layered graphs of 10 to 500 vertices on 2 to 8 devices are placed twice: as by
`place --policy`, which XLA compiles for each size of graph, and by the model in a process that imports TensorFlow and none of our code.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()  # before TF-GNN is imported, which runs TensorFlow's first operation

# ruff: noqa: E402
# isort: split
import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from agents.config import TrainConfig
from agents.serving.export import export_policy
from agents.serving.placing import load_policy
from agents.serving.tensor_features import problem_of
from agents.training.run import train
from benchmarks.portfolio import unequal
from benchmarks.tables import finish, show
from data import build_workload
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import preset

SAMPLES = 16
SERVED = """
import json, sys, time
import numpy as np, tensorflow as tf
folder, model, count, samples = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
place, answers = tf.saved_model.load(model).signatures["place"], []
specs = place.structured_input_signature[1]
for number in range(count):
    problem = np.load(f"{folder}/{number}.npz")
    tensors = {name: tf.constant(problem[name], specs[name].dtype) for name in problem}
    started = time.perf_counter()
    placed = place(**tensors, samples=tf.constant(samples), seed=tf.constant(number))
    answers.append((placed["device"].numpy().tolist(), float(placed["makespan_s"]), time.perf_counter() - started))
ours = [name for name in sys.modules if name.split(".")[0] in ("agents", "data", "doppler_tf", "runtime")]
print(json.dumps({"answers": answers, "ours": ours}))
"""


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = TrainConfig(imitation=64, simulated=640)
        train([build_workload("chainmm", 4)], preset("p100x4"), folder / "run", config, progress=False, pictures=False)
        model, policy = export_policy(folder / "run", folder / "models"), load_policy(folder / "run")
        expected = []
        for number in range(args.graphs):
            graph, costs = random_case(number)
            np.savez(folder / f"{number}.npz", **problem_of(graph, costs)._asdict())
            started = time.perf_counter()
            drawn = list(policy(graph, costs, SAMPLES, number))
            makespans_s = FastSimulator(graph, costs).makespans(np.stack([a.device for a in drawn]))
            best = int(np.argmin(makespans_s))
            expected.append((drawn[best].device[graph.work_vertices].tolist(), float(makespans_s[best]), time.perf_counter() - started))
        command = [sys.executable, "-c", SERVED, str(folder), str(model), str(args.graphs), str(SAMPLES)]
        served = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)
    answers = [tuple(answer) for answer in served["answers"]]
    rows = {who: {"placed": len(each), "median_s": median(s for *_, s in each), "most_s": max(s for *_, s in each)}
            for who, each in (("Python policy", expected), ("served model", answers))}
    same = sum(one[:2] == other[:2] for one, other in zip(expected, answers, strict=True))
    show(f"{SAMPLES} samples a graph: {same} alike", rows)
    finish({**rows, "graphs": args.graphs, "same": same, "our_modules_in_the_server": served["ours"]})


def random_case(number: int) -> tuple[DataflowGraph, CostModel]:
    """A layered graph on equal or unequal devices. Links never wait, as in the model's own simulator."""
    rng = np.random.default_rng(number)
    vertices = int(rng.integers(10, 501))
    topology = replace(unequal(rng, most=8) if number % 2 else preset(f"cpu:{rng.integers(2, 9)}"), link_slots=None)
    graph = build_workload("layered", topology.num_devices, "small", seed=number, vertices=vertices)
    return graph, build_costs(graph, topology)


if __name__ == "__main__":
    main()
