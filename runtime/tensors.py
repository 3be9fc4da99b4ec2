"""Real kernels: a Backend that calls each vertex's kernel on its TensorFlow device and copies tensors between devices."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from doppler_tf.errors import ConfigError, DeviceLostError, GraphError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, Transfers
from doppler_tf.schedule.dispatch import Dispatcher
from doppler_tf.schedule.memory import may_run_short
from runtime.calls import OPERATIONS, XLA, KernelCall, execute_on, finish_on
from runtime.clusters.watch import watched
from runtime.devices import count_cores, host_of, prepare_topology, server_of, with_all_cores
from runtime.engine import Engine
from runtime.graph_calls import kernel_calls
from runtime.residency import Residency

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster

# Words in TensorFlow's errors when the process that serves a device is gone, or has been started again.
_GONE = ("UnavailableError", "UNAVAILABLE", "poisoned", "context_id")
# Of a task in progress for so long, and again after as long, the machines are asked whether they still answer.
CHECK_S = 1.0


class TensorFlowBackend:
    """A Backend that computes. Device d of the topology is TensorFlow device `devices[d]`."""

    device_kind = "tf"
    time_scale = 1.0

    def __init__(self, inputs: Mapping[int, np.ndarray | tf.Tensor], fetch: Iterable[int] = (), devices: Sequence[str] | None = None,
                 warmup: bool = True, keep_inputs: bool = False, cluster: Cluster | None = None, build: str = OPERATIONS):
        """Takes the inputs of one graph.

        Args:
          inputs: the tensor of each input vertex, by vertex index.
          fetch: tensors that are kept besides those that nothing consumes.
          devices: TensorFlow device names; by default `prepare_devices` finds as many as the topology has.
          warmup: do the first run twice; TensorFlow's first call of a kernel on a device takes many times a later one.
          keep_inputs: keep inputs on the devices from run to run, which is faster for many runs. Where not all tensors fit, or a plan has
            others in their place, they leave all the same.
          cluster: takes the place of `devices`. A host is the memory of the machine whose device has the fastest link from it.
          build: how calls of captured models are built, as CapturedCall's.
        """
        self._build = build
        self._inputs, self._fetch, self._cluster = inputs, frozenset(fetch), cluster
        self._devices = devices if cluster is None else cluster.devices
        self.warmup, self._keep_inputs = warmup, keep_inputs
        self._placed: dict[tuple[int, int], tf.Tensor] = {}
        self._calls: tuple[DataflowGraph, dict[str, dict[int, KernelCall]]] | None = None  # by build
        self._layouts = weakref.WeakKeyDictionary[Transfers, _Layout]()

    def feed(self, inputs: Mapping[int, np.ndarray | tf.Tensor]) -> None:
        """Later runs take these tensors for these input vertices; all other inputs stay."""
        self._inputs = {**self._inputs, **inputs}
        self._placed = {key: tensor for key, tensor in self._placed.items() if key[0] not in inputs}

    def use(self, build: str) -> None:
        """Calls are built so in later runs."""
        self._build = build

    def open(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, transfers: Transfers) -> TensorFlowSession:
        """Checks that every vertex can run, places inputs where they are used, and compiles calls that are new on their device.

        Raises:
          GraphError: a vertex without a kernel, or with one that does not fit its operands.
          ConfigError: an input without a tensor, or too few TensorFlow devices.
          DeviceLostError: a device is gone.
        """
        layout = self._layouts.get(transfers)
        if layout is None:
            layout = self._layouts[transfers] = self._laid_out(graph, costs, assignment)
        if self._cluster is None:
            return self._open(layout)
        # TensorFlow tells all machines of a new function, and holds Python's lock until they have answered.
        back = self._cluster.take_back(layout.devices, layout.used, ask_all=self._is_new(graph))
        self._placed = {key: tensor for key, tensor in self._placed.items() if server_of(layout.devices[key[1]]) not in back}
        return watched(partial(self._open, layout), lambda: _check(self._cluster, layout.devices, layout.used), CHECK_S)

    def _laid_out(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> _Layout:
        lacking = next((v for v in graph.work_vertices.tolist() if graph.kernel[v] is None), None)
        if lacking is not None:
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(lacking)!r}: kernel: expected one, got none; run graphs without "
                             f"kernels on emulated devices, or make the graph with `workload`")
        devices, host = self._devices if self._devices is not None else prepare_topology(costs.topology), costs.topology.host_device
        if self._cluster is not None and host is not None:
            devices = [*devices, host_of(devices[costs.topology.bandwidth_bytes_per_s[host, :host].argmax()])]
        if len(devices) < costs.num_devices:
            raise ConfigError(f"devices: expected {costs.num_devices} TensorFlow devices for {costs.topology.name}, got {len(devices)}; "
                              f"name one for each device of the topology")
        inputs_stay = self._keep_inputs and assignment.after is None and not may_run_short(graph, costs, assignment.device).any()
        return _Layout(graph, assignment, devices[:costs.num_devices], host, self._fetch, inputs_stay)

    def _open(self, layout: _Layout) -> TensorFlowSession:
        placed = self._place(layout)
        calls = layout.calls.get(self._build)
        if calls is None:
            calls = self._prepared_calls(layout, {v: tensor for (v, _), tensor in placed.items()})
            self._warm(layout, calls, layout.names(self._build))
            layout.fix(calls, placed)
            layout.calls[self._build] = calls
        return TensorFlowSession(layout, calls, layout.names(self._build), placed, self._cluster)

    def _warm(self, layout: _Layout, calls: Mapping[int, KernelCall], names: Sequence[str]) -> None:
        """Compiles what is new on its device, on all cores."""
        used: dict[KernelCall, list[int]] = {}
        for v, call in calls.items():
            if v not in layout.loaded:
                used.setdefault(call, []).append(layout.device[v])

        def warm(call: KernelCall) -> None:
            for d in used[call]:
                try:
                    call.warm(names[d])
                except tf.errors.OpError as error:
                    _raise_if_lost(error, names, self._cluster, d)
                    raise

        if self._cluster is None:
            with ThreadPoolExecutor(count_cores(), "compile") as threads:
                list(threads.map(warm, used))
        else:  # a thread of a pool that waits for another machine would keep the process from ending
            list(map(warm, used))

    def _prepared_calls(self, layout: _Layout, inputs: Mapping[int, tf.Tensor]) -> dict[int, KernelCall]:
        if self._is_new(layout.graph):
            specs = {v: tf.TensorSpec(x.shape, x.dtype) for v, x in inputs.items()}
            others = {} if self._calls is None or self._calls[0] is not layout.graph else self._calls[1]
            self._calls = layout.graph, {**others, self._build: kernel_calls(layout.graph, specs, self._build)}
        return self._calls[1][self._build]

    def _is_new(self, graph: DataflowGraph) -> bool:
        return self._calls is None or self._calls[0] is not graph or self._build not in self._calls[1]

    def _place(self, layout: _Layout) -> dict[tuple[int, int], tf.Tensor]:
        """Inputs by (vertex, device), on every device that uses them."""
        placed, devices = self._placed if layout.inputs_stay else {}, layout.devices
        for d, taken in layout.taken.items():
            new = [v for v in taken if (v, d) not in placed]
            if not new:
                continue
            # To each other machine once: its devices copy from each other.
            server = server_of(devices[d])
            near = [] if server is None else [other for other, name in enumerate(devices) if server_of(name) == server]
            sources = [next((placed[v, other] for other in near if (v, other) in placed), None) for v in new]
            try:
                tensors = [self._input(layout.graph, v) if source is None else source for v, source in zip(new, sources, strict=True)]
                copies = tensors if all(tensor.device.endswith(devices[d]) for tensor in tensors) else _sent(tensors, devices[d])
                for tensor in copies if server is not None else ():
                    _size_bytes(tensor)  # a lost server raises here: the shape is asked for after the call
            except tf.errors.OpError as error:
                _raise_if_lost(error, devices, self._cluster, d)
                raise
            placed.update(zip(((v, d) for v in new), copies, strict=True))
        return placed

    def _input(self, graph: DataflowGraph, v: int) -> tf.Tensor:
        if v not in self._inputs:
            raise ConfigError(f"{graph.name}: input vertex {graph.vertex_label(v)!r}: inputs: expected a tensor, got none; give one for "
                              f"every input vertex that has consumers")
        value = self._inputs[v]
        return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value)


class _Layout:
    """What all runs of one assignment share, beside the tensors of inputs.

    Attributes:
      device: of each vertex; devices: their names; host: the one that is a host, if any; used: those that run a vertex.
      taken: by device the inputs that its kernels take.
      embedded_bytes: by device, of inputs that are a part of kernels.
      kept: the device of every tensor that outlives a run; inputs_stay: whether the backend keeps inputs that a session frees.
      calls: by build, of each vertex that is no input; operands: the tensors that each takes.
      size_bytes: by tensor.
      loaded: the tensor that each load on the host hands on; loads: how many loads each such tensor has.
    """

    def __init__(self, graph: DataflowGraph, assignment: Assignment, devices: Sequence[str], host: int | None, fetch: Collection[int],
                 inputs_stay: bool):
        self.graph, self.devices, self.host, self.device = graph, devices, host, assignment.device.tolist()
        self.inputs_stay = inputs_stay
        self.used = np.unique(assignment.device[graph.work_vertices]).tolist()
        edges = np.flatnonzero(graph.is_input[graph.sources])
        used = sorted(set(zip(graph.sources[edges].tolist(), assignment.device[graph.targets[edges]].tolist(), strict=True)))
        self.taken: dict[int, list[int]] = {}
        for v, d in used:
            if v in graph.taken_inputs:
                self.taken.setdefault(d, []).append(v)
        self.embedded_bytes = np.zeros(len(devices))
        for v, d in used:
            if v not in graph.taken_inputs:
                self.embedded_bytes[d] += np.nan_to_num(graph.tensor_bytes[graph.tensor_ptr[v]])
        unused = np.setdiff1d(np.flatnonzero(~graph.is_input[graph.tensor_producer]), graph.edge_tensor)
        home = assignment.device[graph.tensor_producer].tolist()
        self.kept = {tensor: home[tensor] for tensor in sorted(fetch | set(unused.tolist()))}
        self.first_tensor: list[int] = graph.tensor_ptr.tolist()
        self.operands = [None if kernel is None else [self.first_tensor[operand.vertex] + operand.output for operand in kernel.operands]
                         for kernel in graph.kernel]
        self.loaded = {v: self.operands[v][0] for v, d in enumerate(self.device) if d == host}
        self.loads = Counter(self.loaded.values())
        self.calls: dict[str, dict[int, KernelCall]] = {}

    def names(self, build: str) -> Sequence[str]:
        """The devices' names for calls of a build. XLA has no other cores than those of its device, so a device that computes alone lends
        it all."""
        return list(map(with_all_cores, self.devices)) if build == XLA and len(self.used) == 1 else self.devices

    def fix(self, calls: dict[int, KernelCall], placed: Mapping[tuple[int, int], tf.Tensor]) -> None:
        """Takes the sizes of tensors, which stay the same in later runs."""
        self.size_bytes = {self.first_tensor[v] + k: size for v, call in calls.items() for k, size in enumerate(call.output_bytes)}
        self.size_bytes.update({self.first_tensor[v]: _size_bytes(value) for (v, _), value in placed.items()})


class TensorFlowSession:
    """A Session that holds tensors by (tensor, device)."""

    def __init__(self, layout: _Layout, calls: Mapping[int, KernelCall], devices: Sequence[str],
                 placed: Mapping[tuple[int, int], tf.Tensor], cluster: Cluster | None):
        """Args: devices: their names; placed: the inputs by (vertex, device); cluster: as the backend's."""
        self._calls, self._devices, self._cluster = calls, devices, cluster
        self._operands, self._first_tensor, self._size_bytes = layout.operands, layout.first_tensor, layout.size_bytes
        self._resident = {(layout.first_tensor[v], d): tensor for (v, d), tensor in placed.items()}
        self.kept = layout.kept
        self._staying = frozenset(self._resident) if layout.inputs_stay else frozenset()
        self._is_served = [server_of(device) is not None for device in devices]
        self._on_this_cpu = list(map(_on_this_cpu, devices))
        self.check_s = None if cluster is None else CHECK_S
        self.caller_may_run = cluster is None
        held_bytes = layout.embedded_bytes.copy()
        for tensor, d in self._resident:
            held_bytes[d] += self._size_bytes[tensor]
        self._residency = Residency(held_bytes)
        self._host, self._loaded, self._loads_left = layout.host, layout.loaded, dict(layout.loads)
        self._over = False
        self._lock = threading.Lock()  # guards the resident tensors; no kernel and no copy runs while it is held
        self._arriving: dict[tuple[int, str | None], threading.Lock] = {}  # by tensor and server

    def run_vertex(self, vertex: int, device: int) -> None:
        """Runs the vertex's kernel. All its operands must be resident on its device. A load hands its operand on."""
        name = self._devices[device]
        operands = [self._resident[tensor, device] for tensor in self._operands[vertex]]
        if vertex in self._loaded:  # no call, which another machine might not answer
            self._drop_if_last(self._loaded[vertex], device)
            self._store(self._first_tensor[vertex], device, *operands)
            return
        try:
            outputs = self._calls[vertex](operands, name)
            finish_on(name)
            for tensor, output in enumerate(outputs, start=self._first_tensor[vertex]):
                self._store(tensor, device, output)
        except tf.errors.OpError as error:
            _raise_if_lost(error, self._devices, self._cluster, device)
            raise

    def run_transfer(self, transfer: int, tensor: int, source: int, destination: int) -> None:
        """Copies a whole tensor, or shares it between logical CPUs."""
        try:
            value = self._resident[tensor, source]
            # Also between logical CPUs, which share the buffer: TensorFlow would make a function anew, in 3 to 9 ms, for operands of other
            # devices than before.
            if not self.is_instant(source, destination) and self._on_this_cpu[source] and self._on_this_cpu[destination]:
                copy = execute_on(self._devices[destination], "DeepCopy", [value], ("T", value.dtype.as_datatype_enum))[0]
            elif self._is_served[source] or self._is_served[destination]:
                # Two workers copy from one to the other, and not by way of this process. Python's lock is free meanwhile.
                # TensorFlow sends a tensor to a server once. A copy to another of its devices fails until that has arrived.
                with self._lock:
                    arriving = self._arriving.setdefault((tensor, server_of(self._devices[destination])), threading.Lock())
                with arriving:
                    copy = execute_on(self._devices[destination], "Identity", [value], ("T", value.dtype.as_datatype_enum))[0]
            else:
                copy = execute_on(self._devices[destination], "Identity", [value], ("T", value.dtype.as_datatype_enum))[0]
            self._store(tensor, destination, copy)
        except tf.errors.OpError as error:
            _raise_if_lost(error, self._devices, self._cluster, source, destination)
            raise

    def is_instant(self, source: int, destination: int) -> bool:
        """Whether the devices are logical CPUs, and neither is a host, which has memory of its own."""
        return self._on_this_cpu[source] and self._on_this_cpu[destination] and self._host not in (source, destination)

    def _drop_if_last(self, tensor: int, device: int) -> None:
        """Drops a tensor on the host before its last load's output, which is the same buffer, is counted."""
        self._loads_left[tensor] -= 1  # loads run one at a time
        if not self._loads_left[tensor]:
            self.free(tensor, device)

    def free(self, tensor: int, device: int) -> None:
        """Drops a tensor, unless it is to be fetched."""
        if self.kept.get(tensor) == device:
            return
        with self._lock:
            if self._resident.pop((tensor, device), None) is not None and (tensor, device) not in self._staying:
                self._residency.remove(device, self._size_bytes[tensor])

    def check(self, devices: Sequence[int]) -> None:
        """Raises DeviceLostError if the machine of a device does not answer."""
        _check(self._cluster, self._devices, devices)

    def cancel(self) -> None:
        """Drops all tensors. Kernels that run cannot be stopped; their outputs are dropped when they end."""
        with self._lock:
            self._over = True
            self._resident.clear()

    def held(self, tensor: int) -> tf.Tensor:
        """A kept tensor, on its device."""
        return self._resident[tensor, self.kept[tensor]]

    def fetch(self, tensor: int) -> np.ndarray:
        """The array of a kept tensor, from its device now. Raises DeviceLostError where that is gone."""
        d = self.kept[tensor]
        try:
            return self._resident[tensor, d].numpy()
        except tf.errors.OpError as error:
            _raise_if_lost(error, self._devices, self._cluster, d)
            raise

    def peak_tensor_bytes(self) -> np.ndarray:
        """float64 [D]: the most bytes of tensors held by device; tensors of logical CPU devices count wherever they are placed, though
        inputs share one buffer."""
        return self._residency.peak_bytes

    def _store(self, tensor: int, device: int, value: tf.Tensor) -> None:
        with self._lock:
            if not self._over:
                self._resident[tensor, device] = value
                self._residency.add(device, self._size_bytes[tensor])


def _check(cluster: Cluster, names: Sequence[str], devices: Iterable[int]) -> None:
    silent = cluster.lost_among(names[d] for d in devices)
    if silent is not None:
        raise DeviceLostError(f"{cluster.place(silent)} does not answer", next(d for d in devices if names[d] == silent))


def _raise_if_lost(error: tf.errors.OpError, names: Sequence[str], cluster: Cluster | None, *devices: int) -> None:
    """Raises a DeviceLostError if one of the `devices` that took part is gone, as TensorFlow says of those that another process
    serves."""
    if not any(sign in f"{type(error).__name__} {error.message}" for sign in _GONE):
        return
    servers = {d: server for d in devices if (server := server_of(names[d])) is not None}
    silent = None if cluster is None else cluster.lost_among(names[d] for d in servers)
    gone = next((d for d, server in servers.items() if (names[d] == silent if silent else server in error.message)),
                next(iter(servers), None))
    if gone is not None:
        where = f"TensorFlow's {names[gone]}"
        if cluster is not None:
            cluster.lose(servers[gone])
            where = cluster.place(names[gone])
        raise DeviceLostError(f"{where} does not answer", gone) from error


def _sent(tensors: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Copies on a device. One operation for all, as each takes 15 us. `tf.identity_n` would hold Python's lock until another machine has
    answered."""
    return execute_on(device, "IdentityN", list(tensors), ("T", [tensor.dtype.as_datatype_enum for tensor in tensors]), len(tensors))


@functools.cache  # each run asks
def _on_this_cpu(device: str) -> bool:
    """Whether a device is a logical CPU of this process. These share tensors."""
    return "CPU" in device and server_of(device) is None


def _size_bytes(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() * tensor.dtype.size


class TensorFlowExecutor(Engine):
    """The asynchronous engine on real kernels; `outputs` holds what the last run computed."""

    def __init__(self, inputs: Mapping[int, np.ndarray | tf.Tensor], fetch: Iterable[int] = (), devices: Sequence[str] | None = None,
                 dispatch: str | None = None, warmup: bool = True, keep_inputs: bool = False, timeout_s: float | None = None,
                 restart_on_loss: bool = False, cluster: Cluster | None = None, build: str = OPERATIONS):
        """Args: as TensorFlowBackend's; dispatch: `fifo`, `b_level` or `order`; None: the assignment's own;
          timeout_s, restart_on_loss: as Engine's."""
        backend = TensorFlowBackend(inputs, fetch, devices, warmup, keep_inputs, cluster, build)
        self.feed = backend.feed
        super().__init__(backend, partial(Dispatcher, rule=dispatch), timeout_s, restart_on_loss)

    @property
    def tensors(self) -> dict[int, tf.Tensor]:
        """As `outputs`, but tensors that stay on their devices. After a run whose device is lost, reading one fails."""
        session = self._session
        return {} if self._executed is None else {tensor: session.held(tensor) for tensor in session.kept}
