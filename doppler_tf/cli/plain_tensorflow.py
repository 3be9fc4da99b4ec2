"""A graph's whole program, uncut, as one `tf.function` with TensorFlow's own settings: the baseline without placement.

`python -m doppler_tf.cli.plain_tensorflow GRAPH` runs as a separate process, because TensorFlow's threads are set once per process. It
answers each line on stdin, `default` or `xla`, with the seconds of one run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from doppler_tf.cli.rooms import module_call
from doppler_tf.errors import ExecutionError
from doppler_tf.graph import DataflowGraph

MODES = ("default", "xla")


class PlainTensorFlow:
    """Runs the program in the separate process, which ends with the `with` block."""

    def __init__(self, graph: str | Path):
        """Args: graph: a file that `workload` or `calibrate` wrote, with the program's record."""
        self._graph = graph
        command, environment = module_call("doppler_tf.cli.plain_tensorflow")
        self._process = subprocess.Popen([*command, str(graph)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)

    def run(self, mode: str) -> float:
        """Seconds of one run. Args: mode: `default` or `xla`. Raises ExecutionError if the process has failed."""
        try:
            self._process.stdin.write(f"{mode}\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (OSError, ValueError):
            raise ExecutionError(f"{self._graph}: TensorFlow alone could not run the whole program; "
                                 f"`python -m doppler_tf.cli.plain_tensorflow {self._graph}` shows why") from None

    def __enter__(self) -> PlainTensorFlow:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait()


def main(path: str) -> None:
    """Answers lines until stdin ends."""
    from data import workload_program
    from doppler_tf.formats.graph_json import read_graph

    graph = read_graph(path)
    if "captured" in graph.attributes:
        calls = {"default": _captured(graph)}
    else:
        record = graph.attributes["workload"]
        program = workload_program(record)
        calls = {mode: compiled(program, program.draw_inputs(record["seed"]), mode == "xla") for mode in MODES}
    for line in sys.stdin:
        started = time.perf_counter()
        calls[line.strip()]()
        print(time.perf_counter() - started, flush=True)


def modes(graph: DataflowGraph) -> tuple[str, ...]:
    """How TensorFlow alone can run a graph's program. XLA does not take the variables of captured models."""
    return MODES[:1] if "captured" in graph.attributes else MODES


def _captured(graph: DataflowGraph) -> Callable[[], list[np.ndarray]]:
    """The original function, with arguments and weights placed beforehand."""
    from runtime.captured import original_call
    from runtime.captured_program import CapturedProgram

    call, tensors = original_call(graph.attributes["captured"]["model"], CapturedProgram(graph).arguments)
    return lambda: [tensor.numpy() for tensor in call(*tensors)]


def compiled(program, tensors: Mapping[str, np.ndarray], jit: bool) -> Callable[[], list[np.ndarray]]:
    """A function that computes the outputs of an EinsumProgram from input tensors placed beforehand."""
    import tensorflow as tf

    from data.einsum_program import View
    from runtime.kernels import KERNELS

    def compute(known: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        for step in program.steps:
            if isinstance(step, View):
                known[step.name] = tf.slice(known[step.tensor], step.start, program.shapes[step.name])
            else:
                op, params = step.kernel
                known[step.name] = KERNELS[op](params, [known[use.tensor] for use in step.operands])
        return [known[name] for name in program.outputs]

    inputs = {name: tf.constant(tensor) for name, tensor in tensors.items()}
    function = tf.function(lambda given: compute(dict(given)), jit_compile=jit)
    return lambda: [tensor.numpy() for tensor in function(inputs)]


if __name__ == "__main__":
    main(sys.argv[1])
