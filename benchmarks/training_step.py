"""A training step cut and placed on two logical CPUs beside TensorFlow's own: `make bench NAME=training_step`.

TensorFlow's step is GradientTape over the uncut forward program, with SGD, as one tf.function, plain or by XLA. It runs in a process of
its own, with TensorFlow's default threads. Ours is placed by estimated costs, and cut as published also by runs, as `place --measure` does.
All take turns. Seconds are those of a call, until its results are there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.tables import finish, show
from data import WORKLOADS, build_workload, workload_program
from data.training import LEARNING_RATES
from doppler_tf.api.executors import load_program
from doppler_tf.api.measuring import measure
from doppler_tf.api.rooms import module_call
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.placement import place

MODES, TILINGS = ("plain", "xla"), ("published", "data", "tensor", "eindecomp")
UNCUT, MEASURE = "uncut, one device", 40


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.training_step", description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="llama_layer")
    parser.add_argument("--turns", type=int, default=15, help="of which the medians are shown (default: 15)")
    parser.add_argument("--alone", action="store_true", help="answers each line on stdin, a mode, with seconds")
    args = parser.parse_args()
    if args.alone:
        alone(args.workload)
        return
    from runtime import MergedExecutor

    calls, engines, kernels_s = dict[str, Callable[[], float]](), {}, dict[str, list[float]]()
    command, environment = module_call("benchmarks.training_step")
    process = subprocess.Popen([*command, "--alone", "--workload", args.workload], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(mode: str) -> float:
        process.stdin.write(f"{mode}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    def ran(name: str) -> float:
        executor, *what = engines[name]
        started = time.perf_counter()
        recorded = executor.run(*what)
        taken_s = time.perf_counter() - started
        trace = recorded()
        kernels_s.setdefault(name, []).append(float((trace.end_s - trace.start_s).sum()))
        return taken_s

    for mode in MODES:
        calls[f"TensorFlow alone, {mode}"] = lambda mode=mode: ask(mode)
    for tiling in (UNCUT, *TILINGS):
        graph = build_workload(args.workload, 1 if tiling == UNCUT else 2, "small", optimizer="sgd",
                               tiling="published" if tiling == UNCUT else tiling)
        costs, program = build_costs(graph, cpu(2)), load_program(graph)
        placed = place(graph, costs, "one_device" if tiling == UNCUT else "auto")
        found = {tiling if tiling == UNCUT else f"{tiling}, two devices": placed.assignment}
        if tiling == TILINGS[0]:
            measured = measure(placed, MEASURE)
            found[f"{tiling}, chosen by runs: {measured.figures['chosen']}"] = measured.assignment
        for name, assignment in found.items():
            engines[name] = MergedExecutor(program.inputs, program.fetch), graph, costs, assignment
            calls[name] = lambda name=name: ran(name)
    rows: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(args.turns):
        for name, call in calls.items():
            rows[name].append(call())
    process.stdin.close()
    process.wait()
    seconds = {name: median(found) for name, found in rows.items()}
    best = min(seconds[f"TensorFlow alone, {mode}"] for mode in MODES)
    table = {name: {"median_s": seconds[name], "least_s": min(found), "most_s": max(found), "over_best_ratio": seconds[name] / best,
                    "vertices": len(engines[name][1].work_vertices) if name in engines else None,
                    "merged_calls": len(engines[name][0].merged().graph.work_vertices) if name in engines else None,
                    "kernels_s": median(kernels_s[name]) if name in engines else None} for name, found in rows.items()}
    show(f"a training step of {args.workload} (small, SGD) on two logical CPUs, medians of {args.turns} turns", table)
    finish({"rows": table, "best_over_tensorflow_ratio": min(seconds[name] for name in engines) / best})


def tape_step(name: str) -> tuple[Callable, dict]:
    """TensorFlow's step of a small workload, from a dictionary of tensors to the loss and the weights; and such a dictionary."""
    import tensorflow as tf

    from doppler_tf.api.comparison.gradient_tape import loss_and_gradients

    workload, rate = WORKLOADS[name], LEARNING_RATES["sgd"]
    forward = workload.forward(workload.small, training=True)
    step = workload_program(build_workload(name, 2, "small", optimizer="sgd").attributes["workload"])

    def trained(given):
        loss, gradients = loss_and_gradients(forward, workload.training, given)
        return [loss, *(given[weight] - rate * gradient for weight, gradient in gradients.items())]

    return trained, {each: tf.constant(x) for each, x in step.draw_inputs(0, np.float32).items()}


def alone(name: str) -> None:
    """The tape's step in this process."""
    import tensorflow as tf

    trained, given = tape_step(name)
    steps = {mode: tf.function(trained, jit_compile=mode == "xla") for mode in MODES}
    for line in sys.stdin:
        mode = line.strip()
        started = time.perf_counter()
        steps[mode](given)[0].numpy()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
