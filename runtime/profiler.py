"""The profiler: measures the kernels of a graph and the links between devices, and makes measured costs of them.

Everything is measured by the engine itself, on small graphs of equal vertices, as the time from an instruction to the news of its end:
so long is a device or link taken, and a kernel of 50 us that costs 100 us to hand to a thread and back counts as 150 us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tensorflow as tf

from doppler_tf.assignment import assignment_from_devices
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import GraphError
from doppler_tf.formats.records import graph_from_records
from doppler_tf.graph import DataflowGraph, Kernel, Operand
from doppler_tf.topology import Topology
from doppler_tf.trace import Trace
from runtime.devices import prepare_devices
from runtime.link_fit import fit_link, link_sizes
from runtime.tensors import TensorFlowExecutor

_COPY = Kernel("map", (Operand(0),), {"fn": "identity", "subscripts": "a->a"})


@dataclass(frozen=True)
class Effort:
    """How long each thing is measured, after one untimed call on each device.

    Attributes:
      rounds: everything is measured so many times over, so that a burst of other work on the machine spoils few figures.
      calls: timed calls of each thing in a round; the median of all its calls counts.
      budget_s, budget_bytes: fewer calls, but at least one, where those of a round would take longer or leave more output than this.
      sizes: sizes of tensor that a link is measured with.
    """

    rounds: int = 3
    calls: int = 5
    budget_s: float = 1.0
    budget_bytes: float = 2**30
    sizes: int = 6

    def affordable(self, seconds: float, output_bytes: float) -> int:
        """Calls in a round of what takes so long and leaves so much."""
        return max(1, min(self.calls, int(min(self.budget_s / max(seconds, 1e-9), self.budget_bytes / max(output_bytes, 1)))))


@dataclass(frozen=True, eq=False)
class Profile:
    """What was measured, as what the other parts take.

    Attributes:
      graph: the graph with measured exec_s [N, D], and the bytes that its tensors really have.
      costs: its costs on the given topology with measured links.
      kernel: int32 [N], which of the distinct kernels a vertex runs, -1 for inputs.
      num_kernels: how many distinct ones there are.
    """

    graph: DataflowGraph
    costs: CostModel
    kernel: np.ndarray
    num_kernels: int


@dataclass(frozen=True, eq=False)
class _Distinct:
    """A kernel to measure, on its operands' tensors in the order of their vertices; how often in a round; and what it computes."""

    kernel: Kernel
    arrays: Sequence[np.ndarray]
    calls: int
    output: np.ndarray


class Profiler:
    """Measures on TensorFlow devices; device d of a topology is `devices[d]`. Whatever is measured, the rest is idle.

    A kernel is measured once for each operation, shapes, slices, parameters and kind of device; links one by one, but only one of those
    between logical devices of one CPU, which copy alike.
    """

    def __init__(self, devices: Sequence[str], effort: Effort | None = None, progress: Callable[[int, int], None] | None = None):
        """Args: devices: TensorFlow names, as `prepare_devices` gives them; progress: called with (done, total) as work is done."""
        self._devices, self._effort = devices, effort or Effort()
        self._progress = progress or (lambda done, total: None)

    def profile(self, graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray]) -> Profile:
        """Measures all that `graph` needs on `topology`, which has as many devices as this profiler.

        Args:
          inputs: the tensor of each input vertex, by vertex index.

        Raises:
          GraphError: a vertex without kernel, or an input without tensor.
        """
        distinct, number, output_bytes = self._distinct_kernels(graph, inputs)
        kinds, links = device_kinds(self._devices), distinct_links(self._devices)
        sizes = link_sizes(output_bytes[graph.sources[graph.work_edges]], self._effort.sizes)
        kernel_jobs = {(k, kind): partial(self._time_kernel, one, kinds.index(kind))
                       for k, one in enumerate(distinct) for kind in dict.fromkeys(kinds)}
        link_jobs = {(pairs[0], size): partial(self._time_link, *pairs[0], size) for pairs in links for size in sizes}
        seconds = self._medians(kernel_jobs | link_jobs)

        by_kernel = np.array([[seconds[k, kind] for kind in kinds] for k in range(len(distinct))])
        exec_s = np.where(graph.is_input[:, None], np.nan, by_kernel[number])
        measured = replace(graph, exec_s=exec_s, output_bytes=output_bytes, edge_bytes=output_bytes[graph.sources],
                           transfer_s=np.full(graph.num_edges, np.nan))
        latency_s, bandwidth = np.zeros((2, len(self._devices), len(self._devices)))
        np.fill_diagonal(bandwidth, np.inf)
        for pairs in links:
            at = tuple(np.transpose(pairs))
            latency_s[at], bandwidth[at] = fit_link(sizes, [seconds[pairs[0], size] for size in sizes])
        timed = replace(topology, name=f"{topology.name}-measured", latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
        return Profile(measured, build_costs(measured, timed), number, len(distinct))

    def _distinct_kernels(self, graph: DataflowGraph, inputs: Mapping[int, np.ndarray]) -> tuple[list[_Distinct], np.ndarray, np.ndarray]:
        """The distinct kernels, which of them each vertex runs (int32 [N], -1 for inputs), and the bytes of each output [N].

        Vertices are met in topological order; one that runs a kernel met before takes that one's output for its own, which has the
        same shape, so that only distinct kernels are computed at all.
        """
        number, tensor = np.full(graph.num_vertices, -1, np.int32), dict[int, np.ndarray]()
        met, distinct = dict[tuple, int](), list[_Distinct]()
        for v in graph.topological_order.tolist():
            if graph.is_input[v]:
                tensor[v] = np.asarray(_present(inputs.get(v), graph, v, "inputs", "a tensor"))
                continue
            kernel = _present(graph.kernel[v], graph, v, "kernel", "one")
            key = kernel_key(kernel, tensor)
            if key not in met:
                met[key] = len(distinct)
                distinct.append(self._first_call(kernel, tensor))
            number[v] = met[key]
            tensor[v] = distinct[met[key]].output
        return distinct, number, np.array([tensor[v].nbytes for v in range(graph.num_vertices)], np.float64)

    def _first_call(self, kernel: Kernel, tensor: Mapping[int, np.ndarray]) -> _Distinct:
        """Calls a kernel on every device, as TensorFlow's first call there takes many times a later one."""
        places = list(dict.fromkeys(operand.vertex for operand in kernel.operands))
        alone = replace(kernel, operands=tuple(replace(o, vertex=places.index(o.vertex)) for o in kernel.operands))
        arrays = [tensor[place] for place in places]
        trace, output = self._run(alone, arrays, list(range(len(self._devices))), 1)
        return _Distinct(alone, arrays, self._effort.affordable(trace.makespan_s, output.nbytes), output)

    def _medians(self, jobs: Mapping[Hashable, Callable[[], np.ndarray]]) -> dict[Hashable, float]:
        """Median of all that a job, done once a round, returns."""
        times: dict[Hashable, list[np.ndarray]] = {key: [] for key in jobs}
        for done in range(self._effort.rounds):
            for i, (key, job) in enumerate(jobs.items(), start=1):
                times[key].append(job())
                self._progress(done * len(jobs) + i, self._effort.rounds * len(jobs))
        return {key: float(np.median(np.concatenate(parts))) for key, parts in times.items()}

    def _time_kernel(self, distinct: _Distinct, device: int) -> np.ndarray:
        """Seconds by call."""
        # Copies: vertices that share a stand-in would else read one buffer, and find it in the cache.
        log = self._run(distinct.kernel, [array.copy() for array in distinct.arrays], [device], distinct.calls)[0].log
        return log.end_s - log.start_s

    def _time_link(self, source: int, destination: int, size: int) -> np.ndarray:
        """Seconds by copy of a tensor of `size` bytes."""
        calls = self._effort.affordable(0.0, 2 * size)
        log = self._run(_COPY, [np.ones(size // 4, np.float32)], [source], calls, destination)[0].log
        return log.transfer_end_s - log.transfer_start_s

    def _run(self, kernel: Kernel, arrays: Sequence[np.ndarray], devices: Sequence[int], calls: int,
             destination: int | None = None) -> tuple[Trace, np.ndarray]:
        """Runs `kernel` so often on each of `devices`; each output is sent to `destination`, if given. The trace, and one output."""
        first, places = len(arrays), [d for d in devices for _ in range(calls)]
        made = range(first, first + len(places))
        nodes = [{"id": i, "input": True} for i in range(first)] + [{"id": v, "exec_s": 0, "kernel": _record(kernel)} for v in made]
        edges = [{"source": i, "target": v} for v in made for i in range(first)]
        if destination is not None:
            readers = range(made.stop, made.stop + len(places))
            nodes += [{"id": r, "exec_s": 0, "kernel": _record(replace(_COPY, operands=(Operand(v),)))}
                      for v, r in zip(made, readers, strict=True)]
            edges += [{"source": v, "target": r, "transfer_s": 0} for v, r in zip(made, readers, strict=True)]
            places += [destination] * len(readers)
        graph = graph_from_records(nodes, [{"transfer_s": 0, **edge} for edge in edges], {"name": f"profile of {kernel.op}"})
        costs = build_costs(graph, Topology.from_json({"devices": [{"name": name} for name in self._devices]}))
        assignment = assignment_from_devices(graph, costs, [None] * first + places)
        with TensorFlowExecutor(dict(enumerate(arrays)), devices=self._devices, warmup=False) as executor:
            trace = executor.execute(graph, costs, assignment)
            return trace, next(iter(executor.outputs.values()))


def profile(graph: DataflowGraph, topology: Topology, inputs: Mapping[int, np.ndarray], effort: Effort | None = None,
            progress: Callable[[int, int], None] | None = None) -> Profile:
    """`Profiler.profile` on as many TensorFlow devices as the topology has."""
    return Profiler(prepare_devices(topology.num_devices), effort, progress).profile(graph, topology, inputs)


def kernel_key(kernel: Kernel, tensor: Mapping[int, np.ndarray]) -> tuple:
    """Equal for kernels that take equally long: operation, parameters, and of each operand shape, type, slice, and which are one tensor."""
    places = [operand.vertex for operand in kernel.operands]
    operands = tuple((tensor[o.vertex].shape, tensor[o.vertex].dtype.str, o.slice, places.index(o.vertex)) for o in kernel.operands)
    return kernel.op, json.dumps(kernel.params, sort_keys=True), operands


def device_kinds(devices: Sequence[str]) -> list[str]:
    """The kind of each TensorFlow device: logical CPUs are alike, and so are GPUs where all of the machine are of one make."""
    makes = {str(tf.config.experimental.get_device_details(gpu).get("device_name")) for gpu in tf.config.list_physical_devices("GPU")}
    return ["CPU" if "CPU" in name else next(iter(makes)) if len(makes) == 1 else name for name in devices]


def distinct_links(devices: Sequence[str]) -> list[list[tuple[int, int]]]:
    """All pairs (source, destination) of different devices; those that copy alike stand together."""
    pairs = [(s, t) for s in range(len(devices)) for t in range(len(devices)) if s != t]
    of_cpu = [all("CPU" in devices[d] for d in pair) for pair in pairs]
    alike = [pair for pair, yes in zip(pairs, of_cpu, strict=True) if yes]
    return [*([alike] if alike else []), *([pair] for pair, yes in zip(pairs, of_cpu, strict=True) if not yes)]


def _record(kernel: Kernel) -> dict:
    return {"op": kernel.op, "params": kernel.params, "operands": [{"vertex": o.vertex, "slice": o.slice} for o in kernel.operands]}


def _present(value, graph: DataflowGraph, v: int, field: str, expected: str):
    if value is None:
        raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: {field}: expected {expected}, got none; only graphs whose "
                         f"vertices all have kernels, and whose inputs have tensors, can be profiled")
    return value
