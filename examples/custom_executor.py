"""Trains on a custom executor: a machine with slower links than planned, whose runs are noisy and sometimes fail.

Run from the repository root: .venv/bin/python -m examples.custom_executor
(Any object with `execute(graph, costs, assignment) -> Trace` works. This one simulates; yours may start processes on real devices.)
"""

import os
import tempfile
from dataclasses import replace

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

from agents import TrainConfig, train
from data import build_workload
from doppler_tf import Assignment, DataflowGraph, Topology, build_costs, read_topology, validate_trace
from doppler_tf.errors import ExecutionError
from doppler_tf.graph.costs import CostModel, draw_noise
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace

# A short training with a small network: 160 simulated episodes without a teacher, then at most 48 runs.
CONFIG = TrainConfig(imitation=0, simulated=160, real=48, real_batch=8, real_updates=2, hidden=16, rounds=1)


class Machine:
    """An Executor that simulates with the topology `truth` and counts its runs."""

    def __init__(self, truth: Topology):
        self.truth, self.runs, self.invalid = truth, 0, 0

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """One run. Every tenth raises ExecutionError, as real machines may; training loses only that run."""
        self.runs += 1
        if self.runs % 10 == 0:
            raise ExecutionError(f"run {self.runs}: GPU:1: expected an answer, got none; is it still there?")
        noise = draw_noise(graph.num_vertices, costs.num_devices, 0.05, self.runs)
        trace = Simulator(noise=noise).execute(graph, build_costs(graph, self.truth), assignment)
        self.invalid += not validate_trace(graph, costs, assignment, trace).valid
        return trace


def main() -> None:
    planned = read_topology("p100x4")
    machine = Machine(replace(planned, name="slow links", bandwidth_bytes_per_s=planned.bandwidth_bytes_per_s / 20))
    with tempfile.TemporaryDirectory() as folder:
        graph = build_workload("chainmm", 2)
        outcome = train([graph], planned, folder, CONFIG, executor=machine, progress=False, pictures=False)[graph.name]
    measured = outcome["measured"]
    print(f"{machine.runs} runs, {measured['failed']} failed, {machine.invalid} with an invalid trace")
    print(f"planned: {1e3 * outcome['greedy_makespan_s']:.1f} ms, at best {1e3 * outcome['lower_bound_s']:.1f} ms")
    print(f"measured: {1e3 * measured['before_s']:.1f} ms before stage III, {1e3 * measured['best_s']:.1f} ms after it")


if __name__ == "__main__":
    main()
