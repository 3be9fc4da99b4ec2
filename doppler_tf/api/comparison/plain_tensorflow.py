"""A graph's whole program, uncut, as one `tf.function` with TensorFlow's own settings: the baseline without placement.

`python -m doppler_tf.api.comparison.plain_tensorflow GRAPH` runs as a separate process, because TensorFlow's threads are set once per
process. It answers each line on stdin, such as `plain 1` or `xla 2` (with the number of threads that call), with the seconds of one run. A
mode is compiled when it is first asked for.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from doppler_tf.api.rooms import module_call
from doppler_tf.errors import ExecutionError
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.graph.dataflow import DataflowGraph

if TYPE_CHECKING:
    import tensorflow as tf

# Calls of a thread, where there are several.
_CALLS = 4


class PlainTensorFlow:
    """Runs the program in the separate process, which ends with the `with` block."""

    def __init__(self, graph: str | Path | DataflowGraph):
        """Args: graph: one with the record of its program, as `workload`, `capture` and `calibrate` make it; or its file."""
        self._folder = tempfile.TemporaryDirectory(prefix="doppler_")
        if isinstance(graph, DataflowGraph):
            source, graph = graph, Path(self._folder.name) / "graph.json"
            write_graph(graph, source)
        self._graph = graph
        command, environment = module_call("doppler_tf.api.comparison.plain_tensorflow")
        self._process = subprocess.Popen([*command, str(graph)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)

    def run(self, mode: str, threads: int = 1) -> float:
        """Seconds of one run. Raises ExecutionError if the process has failed, or cannot run it so.

        Args: mode: as `modes` gives them; threads: so many threads call the program at once, several times each.
        """
        try:
            self._process.stdin.write(f"{mode} {threads}\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (OSError, ValueError):
            raise ExecutionError(f"{self._graph}: TensorFlow alone could not run the whole program; "
                                 f"`python -m doppler_tf.api.comparison.plain_tensorflow {self._graph}` shows why") from None

    def can_run(self, mode: str) -> bool:
        """Whether TensorFlow alone can run the program so. Raises ExecutionError where it cannot as it is."""
        try:
            self.run(mode)
        except ExecutionError:
            if mode == "plain":
                raise
            return False
        return True

    def __enter__(self) -> PlainTensorFlow:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def main(path: str) -> None:
    """Answers lines until stdin ends."""
    graph, calls = read_graph(path), {}
    for line in sys.stdin:
        mode, threads = line.split()
        try:
            if mode not in calls:
                calls[mode] = _call(graph, mode)
                calls[mode]()
        except Exception:  # XLA does not compile every operation
            traceback.print_exc()
            print("failed", flush=True)
            continue
        runs = 1 if threads == "1" else _CALLS * int(threads)
        with ThreadPoolExecutor(int(threads)) as pool:
            started = time.perf_counter()
            if runs == 1:
                calls[mode]()
            else:
                list(pool.map(lambda _, call=calls[mode]: call(), range(runs)))
            print((time.perf_counter() - started) / runs, flush=True)


def modes(graph: DataflowGraph) -> tuple[str, ...]:
    """How TensorFlow alone can run a graph's program: `plain`, `xla`, and `frozen` where it has variables and updates none."""
    from runtime.models.alone import PLAIN, XLA
    from runtime.models.alone import modes as modes_of

    return modes_of(graph.attributes["captured"]["model"]) if "captured" in graph.attributes else (PLAIN, XLA)


def _call(graph: DataflowGraph, mode: str) -> Callable[[], list[np.ndarray]]:
    """The whole program, with arguments and weights placed beforehand."""
    from data import workload_program
    from runtime.models.alone import XLA, Alone
    from runtime.models.captured_program import CapturedProgram

    if "captured" not in graph.attributes:
        record = graph.attributes["workload"]
        program = workload_program(record)
        return compiled(program, program.draw_inputs(record["seed"]), mode == XLA)
    function, tensors = Alone(graph.attributes["captured"]["model"], mode, constants=True), CapturedProgram(graph).tensors
    follow = threading.Lock() if function.updates else contextlib.nullcontext()  # steps follow each other

    def call() -> list[np.ndarray]:
        with follow:
            return [tensor.numpy() for tensor in function(tensors).values()]
    return call


def compiled(program, tensors: Mapping[str, np.ndarray], jit: bool) -> Callable[[], list[np.ndarray]]:
    """A function that computes the outputs of an EinsumProgram from input tensors placed beforehand."""
    import tensorflow as tf

    inputs = {name: tf.constant(tensor) for name, tensor in tensors.items()}

    def outputs(given: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        known = computed(program, given)
        return [known[name] for name in program.outputs]

    function = tf.function(outputs, jit_compile=jit)
    return lambda: [tensor.numpy() for tensor in function(inputs)]


def computed(program, given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Every tensor of an EinsumProgram by name. Args: given: those of its inputs."""
    import tensorflow as tf

    from data.steps import View
    from runtime.kernels import KERNELS

    known = dict(given)
    for step in program.steps:
        if isinstance(step, View):
            known[step.name] = tf.slice(known[step.tensor], step.start, program.shapes[step.name])
        else:
            op, params = program.kernel(step)
            known[step.name] = KERNELS[op](params, [known[use.tensor] for use in step.operands])
    return known


if __name__ == "__main__":
    main(sys.argv[1])
