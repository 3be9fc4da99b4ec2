"""The real executors that commands name, and the check of their outputs against the program that the graph was made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data import assemble_outputs, evaluate_program, input_tiles, output_vertices, relative_error, workload_program
from data.python_files import user_code
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, GraphError, field_error
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.graph.given import TopologyLike
from doppler_tf.graph.topology import Topology
from doppler_tf.notes import note
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.executor import Executor
from doppler_tf.schedule.offloaded import kept_on_host
from doppler_tf.schedule.trace import Trace

if TYPE_CHECKING:
    from runtime import Engine, MergedExecutor
    from runtime.clusters.cluster import Cluster
    from runtime.models.captured_program import CapturedBatches, CapturedProgram

EXECUTORS = ("tf", "emulated", "synchronous")
MATCH_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-10
# A shorter emulated run mostly measures the engine's overhead. A longer one keeps the user waiting.
EMULATED_BETWEEN_S = (0.2, 20.0)
EMULATED_TARGET_S = 2.0


def load_program(graph: DataflowGraph, seed: int = 0, values: Path | Mapping[str, Any] | None = None) -> Program | CapturedProgram:
    """The program that a graph was made from, with its input values.

    Args:
      seed, values: of a captured graph, as CapturedProgram's; a workload draws its inputs from the seed in its graph.

    Raises:
      GraphError: a graph without kernels. ConfigError: values for a graph that was not captured. FormatError: as CapturedProgram.
    """
    if not has_kernels(graph):
        raise GraphError(f"{graph.name}: kernel: expected kernels and the record of `workload` or `capture`, got none; make the graph "
                         f"with `workload` (any but layered) or `capture`, or choose --executor emulated")
    if "captured" in graph.attributes:
        return import_quietly("runtime.models.captured_program").CapturedProgram(graph, seed, values)
    if values is not None:
        raise ConfigError(f"--inputs: expected a captured graph, got {graph.name}, a workload that draws its own; leave out --inputs")
    return Program(graph)


class Program:
    """The program of a workload, with its input values."""

    def __init__(self, graph: DataflowGraph):
        """Draws the inputs. Raises GraphError for a record that `workload` did not write."""
        record = graph.attributes["workload"]
        try:
            self._graph, self._program = graph, workload_program(record)
            self._trains = "training" in record
            seed = record["seed"]
            with user_code(record.get("file", graph.name), "inputs"):
                self._tensors = self._program.draw_inputs(seed)
            self.inputs, self.fetch = input_tiles(graph, self._tensors), output_vertices(graph)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise GraphError(f"{graph.name}: workload: expected the record and kernels that `workload` writes, got others ({error!r}); "
                             f"make the graph again") from None

    def repeated(self, batches: Batches, seed: int) -> RepeatedProgram:
        """The program several times over, on the same inputs whatever the seed."""
        return RepeatedProgram(self, batches)

    def relative_error(self, outputs: Mapping[int, np.ndarray]) -> float:
        """||a - b|| / ||b|| of a run's outputs (by vertex) against the unsharded program, evaluated in NumPy."""
        return self.largest_error([outputs])

    def gradient_error(self) -> float | None:
        """How far loss and gradients of the unsharded program are from GradientTape's, both in float64; None: it trains nothing."""
        if not self._trains:
            return None
        return import_quietly("doppler_tf.api.comparison.gradient_tape").gradient_error(self._graph.attributes["workload"])

    @property
    def passing(self) -> frozenset[str]:
        """The outputs that the next batch does not take, as it takes a training step's new weights and slots."""
        return frozenset(name for name in self._program.outputs if self._next_value(name) is None)

    def largest_error(self, batches: Sequence[Mapping[int, np.ndarray]]) -> float:
        """The largest of batches that follow each other.

        The losses of all steps are compared as one array. A loss that has fallen to almost 0 is a difference of larger numbers, and has few
        digits of its own.

        Args: batches: outputs by vertex: `passing`, and all of the last batch.
        """
        tensors, errors = self._tensors, []
        series = {name: ([], []) for name in (self.passing if self._trains else ())}
        for b, outputs in enumerate(batches, 1):
            expected, names = evaluate_program(self._program, tensors), self._program.outputs if b == len(batches) else self.passing
            found = assemble_outputs(self._graph, outputs, names)
            for name, (got, wanted) in series.items():
                got.append(found.pop(name))
                wanted.append(expected[name])
            errors += [relative_error({name: value}, {name: expected[name]}) for name, value in found.items()]
            tensors = tensors | {self._next_value(name): value for name, value in expected.items() if name not in self.passing}
        errors += [relative_error({name: np.stack(got)}, {name: np.stack(wanted)}) for name, (got, wanted) in series.items()]
        return float(np.max(errors))

    def _next_value(self, output: str) -> str | None:
        """The input whose next value an output is."""
        name = output.removeprefix("new_")
        return name if self._trains and name != output and name in self._tensors else None


class RepeatedProgram:
    """The program of a workload in each batch, always with the same input values, but for weights that the batch before has updated."""

    def __init__(self, program: Program, batches: Batches):
        self._program, self._batches = program, batches
        self.inputs = {int(batches.vertex[0, v]): tensor for v, tensor in program.inputs.items()}
        passing = output_vertices(batches.single, program.passing)
        self._taken = [*[passing] * (batches.repeats - 1), program.fetch]
        self.fetch = [batches.tensor(b, t) for b, taken in enumerate(self._taken) for t in taken]

    def gradient_error(self) -> float | None:
        """As Program's."""
        return self._program.gradient_error()

    def relative_error(self, outputs: Mapping[int, np.ndarray]) -> float:
        """The largest of all batches."""
        return self._program.largest_error([{t: outputs[self._batches.tensor(b, t)] for t in taken} for b, taken in enumerate(self._taken)])


class ByGraph:
    """An Executor that passes each graph to the executor that holds its tensors."""

    def __init__(self, executors: Sequence[tuple[DataflowGraph, Executor]]):
        self._executors = {graph.graph_hash: executor for graph, executor in executors}

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """As Executor's. Raises KeyError for a graph without an executor."""
        return self._executors[graph.graph_hash].execute(graph, costs, assignment)


def has_kernels(graph: DataflowGraph) -> bool:
    """Whether the graph can run on real devices."""
    from_program = "workload" in graph.attributes or "captured" in graph.attributes
    return from_program and all(graph.kernel[v] is not None for v in graph.work_vertices.tolist())


def check_executor(name: str, where: str = "", known: Sequence[str] = EXECUTORS) -> None:
    """Raises ConfigError for a name that is not in `known`."""
    if name not in known:
        raise field_error(ConfigError, where, "", "--executor", f"one of {', '.join(known)}", name)


def emulated_executor(name: str, time_scale: float, seed: int, timeout_s: float | None = None, truth: Topology | None = None) -> Engine:
    """An executor of emulated devices. Args: time_scale, seed, truth: as EmulatedBackend's; timeout_s: as Engine's."""
    runtime = import_quietly("runtime")
    if name == "synchronous":
        return runtime.SynchronousExecutor(runtime.EmulatedBackend(time_scale, seed=seed, truth=truth), timeout_s)
    return runtime.EmulatedExecutor(time_scale, seed=seed, timeout_s=timeout_s, truth=truth)


def kernel_executor(name: str, program: Program | RepeatedProgram | CapturedProgram | CapturedBatches, timeout_s: float | None = None,
                    cluster: Cluster | None = None, keep_inputs: bool = False, restart_on_loss: bool = False, merge: bool = False,
                    fetch: Sequence[int] | None = None) -> Engine | MergedExecutor:
    """An executor of real kernels.

    Args: timeout_s, restart_on_loss: as Engine's; cluster, keep_inputs: as TensorFlowBackend's; merge: they run in larger calls, and traces
      are of those; fetch: other tensors than the program's.
    """
    runtime, fetch = import_quietly("runtime"), program.fetch if fetch is None else fetch
    if name == "synchronous":
        return runtime.SynchronousExecutor(runtime.TensorFlowBackend(program.inputs, fetch, keep_inputs=keep_inputs, cluster=cluster),
                                           timeout_s)
    if merge:
        return runtime.MergedExecutor(program.inputs, fetch, None, cluster, timeout_s, restart_on_loss)
    return runtime.TensorFlowExecutor(program.inputs, fetch, keep_inputs=keep_inputs, timeout_s=timeout_s, cluster=cluster,
                                      restart_on_loss=restart_on_loss)


def plan_executor(graph: DataflowGraph, with_host: DataflowGraph, batches: Batches | None = None, cluster: Cluster | None = None) -> Engine:
    """An executor of real kernels for a graph with host, in calls of single vertices.

    Args: with_host: what `offloaded` makes of `graph`; batches: those in flight of which `graph` is.
    """
    program = load_program(with_weights_as_operands(graph if batches is None else batches.single))
    if batches is not None:
        program = program.repeated(batches, 0)
    kept = kept_on_host(graph, with_host)
    return kernel_executor("tf", program, cluster=cluster, fetch=[kept.get(t, t) for t in program.fetch])


def true_topology(spec: TopologyLike | None, planned: Sequence[tuple[DataflowGraph, CostModel]]) -> Topology | None:
    """The true topology of emulated devices; None without `spec`. Raises UserError if the graphs cannot run on it."""
    if not spec:
        return None
    truth, topology = read_topology(spec), planned[0][1].topology
    if truth.num_devices != topology.num_devices:
        raise field_error(ConfigError, "", "", "--emulate", f"a topology of {topology.num_devices} devices, as {topology.name} has",
                          f"{truth.name} with {truth.num_devices}")
    for graph, _ in planned:
        build_costs(graph, truth)
    return truth


def default_time_scale(makespan_s: float) -> float:
    """1 if a run of this simulated makespan is neither too short nor too long, else the scale at which it takes about 2 s."""
    low, high = EMULATED_BETWEEN_S
    if makespan_s == 0 or low <= makespan_s <= high:
        return 1.0
    scale = float(f"{EMULATED_TARGET_S / makespan_s:.1g}")
    note(f"emulated devices: time scale {scale:g}, so that a run takes about {scale * makespan_s:.2g} s; --time-scale changes it")
    return scale


def matches(error: float | None, tolerance: float = MATCH_TOLERANCE) -> bool | None:
    """Whether a relative error is small enough; None if nothing was computed."""
    return None if error is None else math.isfinite(error) and error <= tolerance
