"""A function of your own on several devices, in one call: captured, measured, placed, and run as often as you like."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from doppler_tf.batches import Batches, repeat_graph
from doppler_tf.cli.calibration_runs import profiled
from doppler_tf.cli.inputs import LOCAL, load_topology
from doppler_tf.cli.measured_choice import choose_batches_by_runs, choose_by_runs
from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.costs import build_costs
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.formats.cluster_json import read_cluster
from doppler_tf.placement import place, place_batches
from doppler_tf.topology import cpu

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.topology import Topology
    from doppler_tf.trace import Trace
    from runtime import TensorFlowExecutor
    from runtime.captured_program import CapturedBatches
    from runtime.cluster import Cluster

# Runs by which an assignment is chosen.
MEASURED_RUNS = 48
# `map` joins so many batches into one run for each batch in flight.
_BATCHES_A_RUN = 8


def prepare_devices(count: int | None = None) -> list[str]:
    """Makes as many TensorFlow devices, and returns their names. Call it before TensorFlow's first operation.

    Args:
      count: None: a device for each GPU, or without GPUs for each core that this process may use.

    Raises:
      ConfigError: TensorFlow is initialised with fewer devices.
    """
    runtime, local = import_quietly("runtime"), import_quietly("runtime.local")
    return runtime.prepare_devices(local.count_local_devices() if count is None else count)


def connect(cluster: str | Path) -> Cluster:
    """Connects to the machines of a cluster file, for `distribute`. Call it before TensorFlow's first operation.

    Raises:
      FormatError: no ClusterSpec. ConfigError: a worker does not answer, or TensorFlow is initialised.
    """
    return import_quietly("runtime.cluster").Cluster(read_cluster(cluster))


def distribute(function, example_inputs, topology: str = LOCAL, budget_s: float | None = 30.0, in_flight: int = 1,
               pieces: int | None = None, folder: str | Path | None = None, seed: int = 0, cluster: Cluster | None = None) -> Distributed:
    """Places a function on the devices of this machine, or of a cluster.

    The function is captured, its kernels are measured, and the best assignment is searched. Runs decide between the assignments found
    and simple ones, such as all on one device.

    Args:
      function: a tf.function, a Keras 2 model or any callable; as `data.capture.capture`.
      example_inputs: a tuple of all arguments, or the only argument. Shapes and types count, values do not.
      topology: `local`, or a topology with as many devices as shall be used here.
      budget_s: seconds of the search; None: no search, constructive heuristics alone.
      in_flight: `map` works on this many batches at once.
      pieces: large operations are cut into so many tiles. None: runs decide between one and a tile for each device; with batches in
        flight nothing is cut.
      folder: for the captured model; None: a temporary one.
      cluster: as `connect` gives it; takes the place of `topology`.

    Returns:
      The function, placed: call it as the original. Its variables are copies of the original's.

    Raises:
      ConfigError: the function cannot be captured, or TensorFlow has too few devices (see `prepare_devices`).
    """
    for name, value in (("in_flight", in_flight), ("pieces", 1 if pieces is None else pieces)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise field_error(ConfigError, "distribute", "", name, "an integer >= 1", value)
    runtime, concrete = import_quietly("runtime"), import_quietly("data.capture.concrete")
    if cluster is None:
        target = load_topology(topology)
        devices = runtime.prepare_devices(target.num_devices)
    else:
        devices = cluster.devices
        target = cluster.named(cpu(len(devices)))  # of which only the number counts, as all costs are measured
    temporary = tempfile.TemporaryDirectory(prefix="doppler_") if folder is None else None
    name = getattr(function, "name", None) or getattr(function, "__name__", type(function).__name__)
    traced, root = concrete.concrete(function, example_inputs, name), Path(temporary.name if folder is None else folder)
    both = pieces is None and in_flight == 1 and target.num_devices > 1
    share_s = None if budget_s is None else budget_s / (2 if both else 1)
    best = _Candidate(traced, name, root / "model", target, 1 if pieces is None else pieces, in_flight, share_s, seed, cluster)
    if both:
        cut = _Candidate(traced, name, root / "cut", target, target.num_devices, in_flight, share_s, seed, cluster)
        best = cut if cut.median_s < best.low_s else best
    return Distributed(traced.function, best.program, best.graph, best.costs, best.pattern, in_flight, best.predicted_s, devices, temporary,
                       cluster)


class _Candidate:
    """A function captured, measured and placed.

    Attributes:
      graph, costs, program: what was captured and measured.
      pattern, predicted_s: as of `Distributed`.
      median_s, low_s: of the runs of what was chosen, the median and the lower quartile.
    """

    def __init__(self, traced, name: str, model_folder: Path, target: Topology, pieces: int, in_flight: int, budget_s: float | None,
                 seed: int, cluster: Cluster | None):
        specs = [argument.spec for argument in traced.arguments]
        graph = import_quietly("data.capture").capture(traced.function, specs, model_folder=model_folder, name=name, pieces=pieces)
        self.program = import_quietly("runtime.captured_program").CapturedProgram(graph, seed)
        profile = profiled(graph, build_costs(graph, target), self.program.inputs, anew=False, cluster=cluster)
        self.graph, self.costs = profile.graph, profile.costs
        if in_flight == 1:
            placed = place(self.graph, self.costs, seed=seed, budget_s=budget_s)
            assignment, self.predicted_s, found = choose_by_runs(self.graph, self.costs, placed, MEASURED_RUNS, None, seed, cluster)
            self.pattern = [assignment]
        else:
            batches = repeat_graph(self.graph, self.costs.topology, in_flight, in_flight)
            placed = place_batches(batches, seed=seed, budget_s=budget_s)
            assignment, together_s, found = choose_batches_by_runs(batches, placed, MEASURED_RUNS, None, seed, cluster)
            self.pattern, self.predicted_s = batches.pattern(assignment), together_s / in_flight
        chosen = found["measured"][found["chosen"]]
        self.median_s, self.low_s = chosen["median_s"], chosen["low_s"]


class Distributed:
    """A function on several devices. `close()`, or leaving a `with` block, ends its threads.

    Attributes:
      graph, costs: what was captured and measured.
      pattern: the assignment of batch b is `pattern[b % len(pattern)]`; a single call takes the first.
      in_flight: batches that `map` works on at once.
      predicted_s: simulated seconds of a batch, where batches follow each other.
      variables: the present values of the variables that the function updates, by name.
      trace: of the last run.
    """

    def __init__(self, traced, program, graph: DataflowGraph, costs: CostModel, pattern: list[Assignment], in_flight: int,
                 predicted_s: float, devices: list[str], temporary: tempfile.TemporaryDirectory | None, cluster: Cluster | None = None):
        self.graph, self.costs, self.pattern, self.in_flight, self.predicted_s = graph, costs, pattern, in_flight, predicted_s
        self.variables: dict[str, np.ndarray] = {}
        self.trace: Trace | None = None
        self._traced, self._program, self._devices, self._temporary, self._cluster = traced, program, devices, temporary, cluster
        self._one_run_at_a_time = threading.Lock()
        self._prepared_for: dict[int, tuple[Batches, Assignment, TensorFlowExecutor, CapturedBatches]] = {}

    @property
    def assignment(self) -> Assignment:
        """The assignment of a single call."""
        return self.pattern[0]

    def __call__(self, *arguments):
        """One call, with the arguments of the original; returns what the original returns."""
        return self._run([arguments])[0]

    def map(self, batches: Iterable) -> Iterator:
        """Calls the function with each batch in turn, `in_flight` of them at once, and yields results in order.

        Args:
          batches: a tuple holds the arguments of a call, anything else is the only one.
        """
        waiting, most = [], _BATCHES_A_RUN * self.in_flight
        for batch in batches:
            waiting.append(batch if type(batch) is tuple else (batch,))
            if len(waiting) == most:
                yield from self._run(waiting)
                waiting = []
        if waiting:
            yield from self._run(waiting)

    def export(self, folder: str | Path) -> Path:
        """Writes a SavedModel whose operations name their devices, for TensorFlow alone. Raises FormatError: it cannot be written."""
        import_quietly("runtime.placed_model").write_placed_model(folder, self.graph, self.assignment, self._devices)
        return Path(folder)

    def close(self) -> None:
        """Ends all threads and removes a temporary folder."""
        for _, _, executor, _ in self._prepared_for.values():
            executor.close()
        self._prepared_for = {}
        if self._temporary is not None:
            self._temporary.cleanup()

    def __repr__(self) -> str:
        from doppler_tf.report import notebook

        return notebook.of_distributed(self).text()

    def _repr_html_(self) -> str:
        from doppler_tf.report import notebook

        return notebook.of_distributed(self).html()

    def plot(self) -> Figure:
        """The Gantt picture of the last run, or of a simulation, as a matplotlib figure."""
        from doppler_tf.report import notebook

        return notebook.of_distributed(self).figure()

    def __enter__(self) -> Distributed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _run(self, calls: list[tuple]) -> list:
        named = [self._named(arguments) for arguments in calls]
        with self._one_run_at_a_time:
            batches, assignment, executor, program = self._prepared(len(calls))
            given = program.given(named, self.variables)
            executor.feed(given)
            self.trace = executor.execute(batches.graph, batches.costs, assignment)
            results, variables = program.results(executor.outputs, given)
            self.variables |= variables
        return [self._structured(list(each.values())) for each in results]

    def _prepared(self, repeats: int) -> tuple[Batches, Assignment, TensorFlowExecutor, CapturedBatches]:
        """What runs so many calls; made once for each number of calls."""
        if repeats not in self._prepared_for:
            batches = repeat_graph(self.graph, self.costs.topology, repeats, self.in_flight)
            program = self._program.repeated(batches, 0)
            executor = import_quietly("runtime").TensorFlowExecutor(program.inputs, program.fetch, self._devices, keep_inputs=True,
                                                                    cluster=self._cluster)
            self._prepared_for[repeats] = batches, batches.assignment(self.pattern), executor, program
        return self._prepared_for[repeats]

    def _named(self, arguments: tuple) -> dict[str, Any]:
        """The tensors among the arguments, by name. Raises ConfigError: they do not fit the example."""
        import tensorflow as tf

        specs, values = tf.nest.flatten(self._traced.structured_input_signature[0]), tf.nest.flatten(arguments)
        if len(specs) != len(values):
            raise ConfigError(f"{self.graph.name}: expected {len(specs)} arguments, as in the example, got {len(values)}; call it as the "
                              f"original")
        names, tensors = iter(self._program.arguments), {}
        for spec, value in zip(specs, values, strict=True):
            if isinstance(spec, tf.TensorSpec):
                name, tensor = next(names), tf.convert_to_tensor(value, spec.dtype)
                if tensor.shape != (shape := self._program.arguments[name].shape):
                    raise ConfigError(f"{self.graph.name}: argument {name}: expected shape {list(shape)}, as in the example, got "
                                      f"{tensor.shape}; pad it, or distribute the function for this shape, too")
                tensors[name] = tensor
        return tensors

    def _structured(self, values: list) -> Any:
        """Results in the structure that the original returns."""
        import tensorflow as tf

        made, structure = iter(values), self._traced.structured_outputs
        return tf.nest.pack_sequence_as(structure, [None if x is None else tf.convert_to_tensor(next(made))
                                                    for x in tf.nest.flatten(structure)])
