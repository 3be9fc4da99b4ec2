"""The gain of placing on this machine over TensorFlow alone and other yardsticks: `make bench NAME=machine`.

Each small workload is cut for two devices, fused and calibrated here. Then everything runs in turns: TensorFlow alone on the whole program,
TensorFlow's executor on our assignments, and our engine on them, with barriers, and on one device. Figures are medians over the turns. A
turn has two runs, and the second counts: users run one graph many times, and at the first run the caches are full of another's tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.tables import finish, in_turns, show, timed
from data import build_workload, fuse
from doppler_tf.api.comparison.plain_tensorflow import PlainTensorFlow, modes
from doppler_tf.api.executors import Program
from doppler_tf.finalists import baselines, choose, finalists_of
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.dataflow import DataflowGraph, Kernel, Operand
from doppler_tf.graph.topology import cpu
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.placement import place
from doppler_tf.report.calibration import agreement
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.trace import Trace
from doppler_tf.schedule.validation import validate_trace
from runtime import MergedExecutor, prepare_devices, profile
from runtime.calls import KernelCall
from runtime.synchronous import LevelDispatcher, with_barriers
from runtime.tensorflow_graph import TensorFlowGraph

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
DEVICES = 2
RUNS = 15
SEARCH_S, MEASURED = 5.0, 120
FIDELITY, REPEATS = 30, 5


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.machine", description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names separated by commas (default: all four)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"number of turns (default: {RUNS})")
    args = parser.parse_args()
    devices = prepare_devices(DEVICES)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before: other work on this machine affects the figures")
    cases, fidelity = {}, {}
    for name in args.workloads.split(","):
        case = Case(name, devices)
        cases[name], fidelity[name] = case.measure(args.runs), case.fidelity()
        print(json.dumps({name: cases[name] | fidelity[name]}), flush=True)  # all four take a quarter of an hour
    show("best found on two devices, beside TensorFlow alone", cases,
         ("vertices", "calls", "plain_s", "xla_s", "tensorflow_s", "engine_s", "synchronous_s", "one_device_s", "engine_over_tensorflow",
          "engine_over_plain"))
    show("critical path; measured over predicted; two devices over one; less than with barriers", cases,
         ("critical_path_s", "critical_path_tensorflow_s", "critical_path_over_tensorflow", "critical_path_over_predicted",
          "engine_over_predicted", "simulated_two_over_one", "two_over_one", "barrier_gain_share", "simulated_barrier_gain_share"))
    show("overhead by vertex, of which between vertices and of a call", cases, ("overhead_s", "gap_s", "call_s"))
    show(f"{FIDELITY} assignments, simulated and measured", fidelity)
    finish({"cases": cases, "fidelity": fidelity})


class Case:
    """One workload, fused and calibrated, with its two assignments."""

    def __init__(self, name: str, devices: Sequence[str]):
        self._devices = devices
        graph = fuse(build_workload(name, DEVICES, scale="small"))
        program = Program(graph)
        self._inputs, self._fetch = program.inputs, program.fetch
        found = profile(graph, cpu(DEVICES), self._inputs)
        self._graph, self._costs = found.graph, found.costs
        self._critical = place(self._graph, self._costs, "critical_path").assignment
        self._one = place(self._graph, self._costs, "one_device").assignment
        self._best = self._chosen()

    def _chosen(self) -> Assignment:
        """The best assignment on two devices: the result of `place --budget-s --measure` without `one_device`."""
        problem = Problem(self._graph, self._costs, AUTO)
        placed = place(problem, budget_s=SEARCH_S)
        first = {name: a for name, a in baselines(problem).items() if name != "one_device"}
        finalists = finalists_of(placed, first)
        simulated_s = {name: simulate(self._graph, self._costs, a).makespan_s for name, a in finalists.items()}
        with self._engine() as engine:
            return finalists[choose(simulated_s, list(first), MEASURED, lambda name: self._trace(engine, finalists[name], [])).chosen]

    def measure(self, runs: int) -> dict[str, float | int]:
        """Medians of `runs` turns, after some warm-up turns. First it checks that engine and TensorFlow compute the same outputs."""
        graph, costs = self._graph, self._costs
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_graph(folder / "graph.json", graph)
            plain = stack.enter_context(PlainTensorFlow(folder / "graph.json"))
            engine = stack.enter_context(self._engine())
            barriers = stack.enter_context(MergedExecutor(self._inputs, self._fetch, self._devices, make=with_barriers))
            yardsticks = {name: TensorFlowGraph(graph, assignment.device, self._inputs, self._fetch, self._devices)
                          for name, assignment in (("tensorflow", self._best), ("critical_path_tensorflow", self._critical))}
            assignments = {"engine": self._best, "critical_path": self._critical, "one_device": self._one}
            traces: dict[str, list[Trace]] = {}
            turns = {**{name: lambda n=name: self._trace(engine, assignments[n], traces.setdefault(n, [])) for name in assignments},
                     "synchronous": lambda: self._trace(barriers, self._best, traces.setdefault("synchronous", [])),
                     **{name: lambda n=name: timed(yardsticks[n].run)[0] for name in yardsticks},
                     **{f"plain_{mode}": lambda m=mode: plain.run(m) for mode in modes(graph)}}
            self._check(yardsticks["tensorflow"], engine)
            seconds = in_turns(turns, runs)
        merged = merge_calls(graph, costs, self._best, self._fetch)
        for trace in traces["engine"][-2 * runs:]:
            assert validate_trace(merged.graph, merged.costs, merged.assignment, trace.log).work_conserving
        median = {name: float(np.median(values)) for name, values in seconds.items()}
        quartiles = {name: np.percentile(values, [25, 75]).tolist() for name, values in seconds.items()}
        predicted = {name: merge_calls(graph, costs, assignment, self._fetch).makespan_s for name, assignment in assignments.items()}
        with_barriers_s = Simulator().drive(LevelDispatcher(merged.graph, merged.costs, merged.assignment), merged.costs).makespan_s
        gap_s = float(np.median([gaps_s(merged.graph, trace) for trace in traces["engine"][-2 * runs:][1::2]]))
        call_s = call_seconds(self._devices[0])
        plain_s = min(median["plain_plain"], median["plain_xla"])
        return {"vertices": len(graph.work_vertices), "calls": len(merged.graph.work_vertices),
                "plain_s": plain_s, "default_s": median["plain_plain"],
                "xla_s": median["plain_xla"], "tensorflow_s": median["tensorflow"],
                "engine_s": median["engine"], "synchronous_s": median["synchronous"], "one_device_s": median["one_device"],
                "critical_path_s": median["critical_path"], "critical_path_tensorflow_s": median["critical_path_tensorflow"],
                "engine_over_tensorflow": median["engine"] / median["tensorflow"], "engine_over_plain": median["engine"] / plain_s,
                "critical_path_over_tensorflow": median["critical_path"] / median["critical_path_tensorflow"],
                "engine_over_predicted": median["engine"] / predicted["engine"],
                "critical_path_over_predicted": median["critical_path"] / predicted["critical_path"],
                "two_over_one": median["engine"] / median["one_device"],
                "simulated_two_over_one": predicted["engine"] / predicted["one_device"],
                "barrier_gain_share": 1 - median["engine"] / median["synchronous"],
                "simulated_barrier_gain_share": 1 - predicted["engine"] / with_barriers_s,
                "overhead_s": gap_s + call_s, "gap_s": gap_s, "call_s": call_s, "quartiles_s": quartiles}

    def fidelity(self) -> dict[str, float]:
        """The agreement of simulated and measured makespans, on assignments from one device to all."""
        assignments = spread_assignments(Problem(self._graph, self._costs), FIDELITY, np.random.default_rng(7))
        simulated_s = np.array([merge_calls(self._graph, self._costs, a, self._fetch).makespan_s for a in assignments])
        with self._engine() as engine:
            measured_s = np.median([[self._trace(engine, assignment, []) for assignment in assignments]
                                    for _ in range(REPEATS + 1)][1:], axis=0)
        found = agreement(simulated_s, measured_s)
        return {"median_error": found.median_error, "worst_error": found.worst_error, "bias": found.bias,
                "rank_correlation": found.rank_correlation}

    def _engine(self) -> MergedExecutor:
        return MergedExecutor(self._inputs, self._fetch, self._devices)

    def _trace(self, executor: MergedExecutor, assignment: Assignment, traces: list[Trace]) -> float:
        traces.append(executor.execute(self._graph, self._costs, assignment))
        return traces[-1].makespan_s

    def _check(self, yardstick: TensorFlowGraph, engine: MergedExecutor) -> None:
        expected = yardstick.run()
        engine.execute(self._graph, self._costs, self._best)
        for v, array in expected.items():
            np.testing.assert_allclose(engine.outputs[v], array, rtol=1e-3, atol=1e-4)


def gaps_s(graph: DataflowGraph, trace: Trace) -> float:
    """Mean seconds between the time when a vertex could have started and its start.

    A vertex could start when its device had ended the vertex or copy before and its last input had arrived. The gap is the time for the
    news of the end, the dispatcher, and the hand-over to the thread.
    """
    on = {d: np.sort(np.concatenate([trace.end_s[trace.device == d], trace.transfer_end_s[trace.destination == d]]))
          for d in np.unique(trace.device).tolist()}
    end = np.zeros(graph.num_vertices)
    end[trace.vertex] = trace.end_s
    home = np.full(graph.num_vertices, -1)
    home[trace.vertex] = trace.device
    copied = {(int(p), int(d)): float(t) for p, d, t in zip(trace.producer, trace.destination, trace.transfer_end_s, strict=True)}
    total = 0.0
    for v, d, start_s in zip(trace.vertex.tolist(), trace.device.tolist(), trace.start_s.tolist(), strict=True):
        inputs = graph.predecessors.vertex[graph.predecessors.ptr[v]:graph.predecessors.ptr[v + 1]].tolist()
        arrived_s = max((end[u] if home[u] == d else copied[u, d] for u in inputs if not graph.is_input[u]), default=0.0)
        before = on[d][on[d] <= start_s]
        total += start_s - max(arrived_s, before[-1] if len(before) else 0.0)
    return total / len(trace.vertex)


def call_seconds(device: str) -> float:
    """Median seconds of a call of a compiled kernel on one element."""
    kernel = Kernel("map", (Operand(0),), {"fn": "square", "subscripts": "a->a"})
    call = KernelCall("empty", kernel, [tf.TensorSpec(1)])
    call.warm(device)
    with tf.device(device):
        tensor = tf.ones(1)
    seconds = [timed(lambda: call([tensor], device))[0] for _ in range(500)]
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
