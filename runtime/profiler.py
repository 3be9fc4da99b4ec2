"""The profiler: runs a graph on the devices at hand and makes measured costs of what its vertices and transfers took.

Kernels are measured where they will run: in the graph itself, beside other kernels, with what the run before left in the caches. A vertex
takes from the instruction to the news of its end, so that a kernel of 50 us that costs 30 us to hand over and to tell of counts as 80 us.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from doppler_tf.assignment import Assignment
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import DeadlockError, ExecutionError, GraphError
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import CriticalPath
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.topology import Topology
from doppler_tf.trace import Trace
from runtime.calls import KernelCall, kernel_calls
from runtime.devices import prepare_devices, server_of
from runtime.link_fit import copy_seconds, fit_link
from runtime.tensors import TensorFlowExecutor

if TYPE_CHECKING:
    from runtime.cluster import Cluster


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
            calls[v].output_bytes if v in calls else [inputs[v].nbytes if v in inputs else 0])], np.float64)
        names = [[f"{kind}: {call.name}" for kind in kinds] for call in distinct]
        new = [k for k, row in enumerate(names) if not known.keys() >= set(row)]
        # An edge of no bytes keeps an order and carries nothing.
        edge_bytes = np.where(graph.edge_bytes == 0, 0.0, tensor_bytes[graph.edge_tensor])
        sized = replace(graph, tensor_bytes=tensor_bytes, edge_bytes=edge_bytes, transfer_s=np.full(graph.num_edges, np.nan))
        measured = _Measured(self._devices, number, [[known.get(name) for name in row] for row in names], known)
        if new or not measured.knows_links:
            self._run_rounds(sized, topology, inputs, measured)
        known.update({name: float(seconds) for row, times in zip(names, measured.kernel_s, strict=True)
                      for name, seconds in zip(row, times, strict=True)})
        known.update(measured.link_figures())
        timed = replace(topology, name=f"{topology.name}-measured", **measured.links())
        return Profile(measured.graph(sized), build_costs(measured.graph(sized), timed), number, len(distinct), len(new))

    def _kernels(self, graph: DataflowGraph,
                 inputs: Mapping[int, np.ndarray]) -> tuple[dict[int, KernelCall], np.ndarray, list[KernelCall]]:
        """The call of each vertex, which of the distinct ones it is (int32 [N], -1 for inputs), and those."""
        for v in graph.topological_order.tolist():
            if graph.is_input[v] and graph.successors.ptr[v + 1] > graph.successors.ptr[v]:
                _present(inputs.get(v), graph, v, "inputs", "a tensor")
            elif not graph.is_input[v]:
                _present(graph.kernel[v], graph, v, "kernel", "one")
        calls = kernel_calls(graph, {v: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)) for v, x in inputs.items()})
        distinct = list(dict.fromkeys(calls.values()))
        place, number = {call: k for k, call in enumerate(distinct)}, np.full(graph.num_vertices, -1, np.int32)
        for v, call in calls.items():
            number[v] = place[call]
        return calls, number, distinct

    def _run_rounds(self, graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], measured: _Measured) -> None:
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
                costs = unknown if not r else build_costs(measured.graph(graph), replace(topology, **measured.links()))
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

    def _assignments(self, graph: DataflowGraph, costs: CostModel, rng: np.random.Generator, spread: int) -> Iterator[Assignment]:
        """All on each device, then `spread` on several: half of them good, half of all qualities."""
        for d in range(costs.num_devices):
            device = np.full(graph.num_vertices, d, np.int32)
            device[graph.is_input] = -1
            yield Assignment(device)
        if costs.num_devices == 1 or not spread:
            return
        teacher = CriticalPath(graph, costs)
        yield from (teacher.sample(rng) for _ in range(spread - spread // 2))
        yield from spread_assignments(graph, costs, spread // 2 + 1, rng)[1:]


class _Measured:
    """Durations by kernel and kind of device, and by kind of link and size."""

    def __init__(self, devices: Sequence[str], number: np.ndarray, known_s: Sequence[Sequence[float | None]], known: Mapping[str, float]):
        """Args: number: of each vertex's kernel; known_s: [K, D]; known: holds figures of links by name, too."""
        self.runs, self._devices = 0, devices
        self._number, self._known_s, self._known = number, known_s, known
        self._kinds, self._alike = device_kinds(devices), distinct_links(devices)
        self._names = [f"link {devices[pairs[0][0]]} {devices[pairs[0][1]]}" for pairs in self._alike]
        self._link = {pair: i for i, pairs in enumerate(self._alike) for pair in pairs}
        self._kernel: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._first: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._copy: dict[tuple[int, float], list[float]] = defaultdict(list)

    @property
    def knows_links(self) -> bool:
        """Whether the figures of all links were known."""
        return all(f"{name}: latency_s" in self._known for name in self._names)

    def add(self, graph: DataflowGraph, trace: Trace, counts: bool) -> None:
        """Takes in a run; one that does not count fills in where no other has shown anything."""
        self.runs += 1
        log = trace.log
        to = self._kernel if counts else self._first
        for v, d, seconds in zip(log.vertex.tolist(), log.device.tolist(), (log.end_s - log.start_s).tolist(), strict=True):
            to[int(self._number[v]), self._kinds[d]].append(seconds)
        if not counts:
            return
        for t, (tensor, s, d) in enumerate(zip(log.tensor(graph).tolist(), log.source.tolist(), log.destination.tolist(), strict=True)):
            on = trace.device == d
            # A destination that is busy takes its copies later, and could not have used them sooner.
            busy = (on & (trace.start_s < trace.transfer_start_s[t]) & (trace.end_s > log.transfer_start_s[t])).any()
            seconds = trace.transfer_end_s[t] - trace.transfer_start_s[t] if busy else log.transfer_end_s[t] - log.transfer_start_s[t]
            self._copy[self._link[s, d], float(graph.tensor_bytes[tensor])].append(float(seconds))

    def add_copies(self) -> None:
        """Measures copies of three sizes over each link between machines that the runs did not use for two sizes."""
        for link, pairs in enumerate(self._alike):
            names = [self._devices[d] for d in pairs[0]]
            if server_of(names[0]) != server_of(names[1]) and sum(link == used for used, _ in self._copy) < 2:
                for size, seconds in copy_seconds(*names).items():
                    self._copy[link, size] += seconds

    @property
    def kernel_s(self) -> np.ndarray:
        """float64 [K, D]: what is known, else the median of what was measured."""
        rows = [[self._seconds(k, d) for d in range(len(self._kinds))] for k in range(len(self._known_s))]
        return np.array(rows, np.float64).reshape(len(rows), len(self._kinds))

    def _seconds(self, k: int, d: int) -> float:
        key = k, self._kinds[d]
        return self._known_s[k][d] or float(np.median(self._kernel.get(key) or self._first[key]))

    def graph(self, graph: DataflowGraph) -> DataflowGraph:
        """`graph` with measured exec_s."""
        return replace(graph, exec_s=np.where(graph.is_input[:, None], np.nan, self.kernel_s[self._number]))

    def links(self) -> dict[str, np.ndarray]:
        """`latency_s` and `bandwidth_bytes_per_s` [D, D], as a topology has them; links that carried nothing cost nothing."""
        count = len(self._kinds)
        latency_s, bandwidth, figures = np.zeros((count, count)), np.full((count, count), np.inf), self.link_figures()
        for name, pairs in zip(self._names, self._alike, strict=True):
            if f"{name}: latency_s" in figures:
                at = tuple(np.transpose(pairs))
                latency_s[at] = figures[f"{name}: latency_s"]
                with np.errstate(divide="ignore"):
                    bandwidth[at] = np.divide(1, figures[f"{name}: s_per_byte"])
        return {"latency_s": latency_s, "bandwidth_bytes_per_s": bandwidth}

    def link_figures(self) -> dict[str, float]:
        """By name of link latency and seconds per byte; of links that carried something, or are known."""
        found = {}
        for i, name in enumerate(self._names):
            keys = f"{name}: latency_s", f"{name}: s_per_byte"
            points = {size: float(np.median(seconds)) for (link, size), seconds in self._copy.items() if link == i}
            if keys[0] in self._known:
                found |= {key: self._known[key] for key in keys}
            elif points:
                latency_s, bandwidth = fit_link(list(points), list(points.values()))
                found |= {keys[0]: latency_s, keys[1]: 1 / bandwidth}
        return found


def profile(graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], effort: Effort | None = None,
            progress: Callable[[int, int], None] | None = None, known: MutableMapping[str, float] | None = None,
            cluster: Cluster | None = None) -> Profile:
    """`Profiler.profile` on as many TensorFlow devices as the topology has, or on those of a cluster."""
    devices = prepare_devices(topology.num_devices) if cluster is None else cluster.devices
    return Profiler(devices, effort, progress, cluster).profile(graph, topology, inputs, known)


def device_kinds(devices: Sequence[str]) -> list[str]:
    """The kind of each TensorFlow device: logical CPUs of a machine are alike, and so are GPUs where all of this one are of one make."""
    makes = {str(tf.config.experimental.get_device_details(gpu).get("device_name")) for gpu in tf.config.list_physical_devices("GPU")}
    return [f"CPU of {server}" if "CPU" in name and (server := server_of(name)) else "CPU" if "CPU" in name
            else next(iter(makes)) if len(makes) == 1 and server_of(name) is None else name for name in devices]


def distinct_links(devices: Sequence[str]) -> list[list[tuple[int, int]]]:
    """All pairs (source, destination) of different devices; those that copy alike stand together."""
    pairs = [(s, t) for s in range(len(devices)) for t in range(len(devices)) if s != t]
    of_cpu: dict[tuple[str | None, ...], list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        if all("CPU" in devices[d] for d in pair):
            of_cpu[tuple(server_of(devices[d]) for d in pair)].append(pair)
    return [*of_cpu.values(), *([pair] for pair in pairs if not all("CPU" in devices[d] for d in pair))]


def _present(value, graph: DataflowGraph, v: int, field: str, expected: str):
    if value is None:
        raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: {field}: expected {expected}, got none; only graphs whose "
                         f"vertices all have kernels, and whose inputs have tensors, can be profiled")
    return value
