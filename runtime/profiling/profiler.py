"""The profiler: runs a graph on the devices at hand and makes measured costs of what its vertices and transfers took.

Kernels are measured where they will run: in the graph itself, beside other kernels, with what the run before left in the caches. A vertex
takes from the instruction to the news of its end, so that a kernel of 50 us that costs 30 us to hand over and to tell of counts as 80 us.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from doppler_tf.errors import DeadlockError, ExecutionError, GraphError
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology
from doppler_tf.heuristics import Problem
from doppler_tf.heuristics.constructive.simple import all_on
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.schedule.assignment import Assignment
from runtime.calls import KernelCall
from runtime.devices import is_core, prepare_devices
from runtime.graph_calls import kernel_calls
from runtime.merged import MergedExecutor
from runtime.models.captured import captured_model
from runtime.process_memory import give_memory_back
from runtime.profiling.host_link import measured_host
from runtime.profiling.measurements import Measurements, device_kinds
from runtime.tensors import TensorFlowExecutor

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster

# Runs of an assignment in larger calls.
_RUNS = 5


@dataclass(frozen=True)
class Effort:
    """How much is run, after one run on each device that counts for nothing.

    Attributes:
      rounds: everything is run so many times over, so that a burst of other work on the machine spoils few figures.
      spread: assignments of a round on several devices, from good to bad, beside one on each device alone.
      budget_s: no further round is begun after so many seconds.
    """

    rounds: int = 6
    spread: int = 6
    budget_s: float = 60.0


@dataclass(frozen=True, eq=False)
class Profile:
    """What was measured, as what the other parts take.

    Attributes:
      graph: the graph with measured exec_s [N, D], and the bytes that its tensors really have.
      costs: its costs on the given topology with measured links.
      kernel: int32 [N], which of the distinct kernels a vertex runs, -1 for inputs.
      num_kernels: how many distinct ones there are.
      new_kernels: how many of them were measured now; the others were known.
    """

    graph: DataflowGraph
    costs: CostModel
    kernel: np.ndarray
    num_kernels: int
    new_kernels: int


class Profiler:
    """Measures on TensorFlow devices; device d of a topology is `devices[d]`.

    Vertices whose kernels compute the same on tensors of the same shapes and types share one figure on all devices of one kind and machine.
    So do the links from the logical devices of one CPU to those of one CPU.
    """

    def __init__(self, devices: Sequence[str], effort: Effort | None = None, progress: Callable[[int, int], None] | None = None,
                 cluster: Cluster | None = None):
        """Args: devices: TensorFlow names, as `prepare_devices` gives them; progress: called with (done, total) as runs are done;
          cluster: takes the place of `devices`."""
        self._devices, self._effort, self._cluster = devices if cluster is None else cluster.devices, effort or Effort(), cluster
        self._progress = progress or (lambda done, total: None)

    def profile(self, graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray],
                known: MutableMapping[str, float] | None = None) -> Profile:
        """Measures all that `graph` needs on `topology`, which has as many devices as this profiler.

        Args:
          inputs: the tensor of each input vertex, by vertex index.
          known: seconds by kernel and kind of device, and by link, from earlier graphs on the same machine. What is there is believed,
            and what is measured now is added. Where it holds all that the graph needs nothing is run.

        Raises:
          GraphError: a vertex without kernel, or an input without tensor. ExecutionError: no assignment could be run.
        """
        known = {} if known is None else known
        calls, number, distinct = self._kernels(graph, inputs)
        kinds = device_kinds(self._devices)
        tensor_bytes = np.array([size for v in range(graph.num_vertices) for size in (
            calls[v].output_bytes if v in calls else [inputs[v].nbytes] if v in inputs else
            np.nan_to_num(graph.tensor_bytes[graph.tensor_ptr[v]:graph.tensor_ptr[v + 1]]).tolist())], np.float64)
        names = [[f"{kind}: {call.name}" for kind in kinds] for call in distinct]
        new = [k for k, row in enumerate(names) if not known.keys() >= set(row)]
        # An edge of no bytes keeps an order and carries nothing.
        edge_bytes = np.where(graph.edge_bytes == 0, 0.0, tensor_bytes[graph.edge_tensor])
        sized = replace(graph, tensor_bytes=tensor_bytes, edge_bytes=edge_bytes, transfer_s=np.full(graph.num_edges, np.nan))
        measured = Measurements(self._devices, number, [call.name for call in distinct], known)
        if new or not measured.knows_links:
            self._run_rounds(sized, topology, inputs, measured)
            _forget_pieces(graph)
        if self._cluster is None and not measured.knows_launches:
            self._run_merged(measured.graph(sized), _timed(topology, measured), inputs, measured)
            _forget_pieces(graph)
        known.update({name: float(seconds) for row, times in zip(names, measured.kernel_s, strict=True)
                      for name, seconds in zip(row, times, strict=True)})
        known.update(measured.link_figures())
        known.update(measured.launch_figures())
        devices = tuple(device if launch_s is None else replace(device, launch_s=launch_s)
                        for device, launch_s in zip(topology.devices, measured.launch_s(), strict=True))
        timed = replace(_timed(topology, measured), name=f"{topology.name}-measured", devices=devices,
                        shared_cores=all(map(is_core, self._devices)))
        timed = replace(timed, host=measured_host(timed, self._devices, known))
        known_graph = measured.graph(sized)
        known_graph = replace(known_graph, exec_s=np.where(np.isinf(graph.exec_s), np.inf, known_graph.exec_s))
        return Profile(known_graph, build_costs(known_graph, timed), number, len(distinct), len(new))

    def _kernels(self, graph: DataflowGraph,
                 inputs: Mapping[int, np.ndarray]) -> tuple[dict[int, KernelCall], np.ndarray, list[KernelCall]]:
        """The call of each vertex, which of the distinct ones it is (int32 [N], -1 for inputs), and those."""
        for v in graph.topological_order.tolist():
            if v in graph.taken_inputs:
                _present(inputs.get(v), graph, v, "inputs", "a tensor")
            elif not graph.is_input[v]:
                _present(graph.kernel[v], graph, v, "kernel", "one")
        calls = kernel_calls(graph, {v: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)) for v, x in inputs.items()})
        distinct = list({call.name: call for call in calls.values()}.values())
        place, number = {call.name: k for k, call in enumerate(distinct)}, np.full(graph.num_vertices, -1, np.int32)
        for v, call in calls.items():
            number[v] = place[call.name]
        return calls, number, distinct

    def _run_rounds(self, graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], measured: Measurements) -> None:
        """Runs rounds of assignments, each round's planned with what the rounds before have shown."""
        unknown = build_costs(replace(graph, exec_s=np.zeros((graph.num_vertices, 1))), topology)
        rng, begun_s = np.random.default_rng(0), time.perf_counter()
        effort = self._effort
        runs = len(self._devices) + effort.spread
        failure = None
        with TensorFlowExecutor(inputs, devices=self._devices, keep_inputs=True, warmup=False, cluster=self._cluster) as executor:
            for r in range(effort.rounds + 1):
                if r > 1 and time.perf_counter() - begun_s > effort.budget_s:
                    break
                costs = build_costs(measured.graph(graph), _timed(topology, measured)) if measured.runs else unknown
                for i, assignment in enumerate(self._assignments(graph, costs, rng, 0 if not r else effort.spread), start=1):
                    try:
                        trace = executor.execute(graph, costs, assignment)
                    except (DeadlockError, ExecutionError) as error:  # memory: others may fit
                        failure = error
                        continue
                    measured.add(graph, trace, r > 0)
                    if r:
                        self._progress((r - 1) * runs + i, effort.rounds * runs)
        if not measured.runs:
            raise failure
        measured.add_copies()

    def _run_merged(self, graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], measured: Measurements) -> None:
        """Runs a good assignment, and all on one device, in larger calls. The first run of each counts for nothing."""
        costs = build_costs(graph, replace(topology, shared_cores=all(map(is_core, self._devices))))
        problem = Problem(graph, costs)
        # Where memory runs out, what is known stays as it is.
        with contextlib.suppress(DeadlockError, ExecutionError), MergedExecutor(inputs, devices=self._devices) as executor:
            for assignment in (problem.teacher.sample(np.random.default_rng(0)), all_on(problem, 0)):
                executor.execute(graph, costs, assignment)
                for _ in range(_RUNS):
                    measured.add_merged(executor.merged(), executor.execute(graph, costs, assignment))

    def _assignments(self, graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, spread: int) -> Iterator[Assignment]:
        """All on each device, then `spread` on several: half of them good, half of all qualities."""
        for d in range(costs.num_devices):
            device = np.full(graph.num_vertices, d, np.int32)
            device[graph.is_input] = -1
            yield Assignment(device)
        if costs.num_devices == 1 or not spread:
            return
        problem = Problem(graph, costs)
        yield from (problem.teacher.sample(rng) for _ in range(spread - spread // 2))
        yield from spread_assignments(problem, spread // 2 + 1, rng)[1:]


def profile(graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], effort: Effort | None = None,
            progress: Callable[[int, int], None] | None = None, known: MutableMapping[str, float] | None = None,
            cluster: Cluster | None = None) -> Profile:
    """`Profiler.profile` on as many TensorFlow devices as the topology has, or on those of a cluster."""
    devices = prepare_devices(topology.num_devices) if cluster is None else cluster.devices
    return Profiler(devices, effort, progress, cluster).profile(graph, topology, inputs, known)


def _forget_pieces(graph: DataflowGraph) -> None:
    """Pieces of a captured model hold their weights, as kernels have ordered them, on each device that ran them."""
    if "captured" in graph.attributes:
        captured_model(graph.attributes["captured"]["model"]).forget_calls()
        give_memory_back(graph.input_bytes)


def _timed(topology: Topology, measured: Measurements) -> Topology:
    """The topology with measured links; where it has none, there is none."""
    links = measured.links()
    return replace(topology, **{**links, "bandwidth_bytes_per_s": np.where(topology.linked, links["bandwidth_bytes_per_s"], 0.0)})


def _present(value, graph: DataflowGraph, v: int, field: str, expected: str):
    if value is None:
        raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: {field}: expected {expected}, got none; only graphs whose "
                         f"vertices all have kernels, and whose inputs have tensors, can be profiled")
    return value
